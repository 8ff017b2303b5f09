"""Open Inference Protocol extensions: priority, timeout, Idempotency-Key, repository, statistics, refusals."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.core.web_requests import StillRunningError
from tests.cloud_hub.doubles.api_site import Site, infer_body
from wire.process.tracing import Span
from wire.protocol.messages import RefusalReason

INFER = "/v2/models/digits/infer"
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    yield opened
    await opened.close()


async def test_the_server_names_what_it_speaks(site):
    _, server = await site.ask("GET", "/v2")
    assert server["extensions"] == [
        "binary_tensor_data",
        "model_repository",
        "statistics",
        "schedule_policy",
        "parameters",
    ]


async def test_priority_and_timeout_reach_the_queue(site):
    body = {**infer_body(), "parameters": {"priority": 1, "timeout": 250_000}}
    assert (await site.ask("POST", INFER, json=body))[0] == 200
    assert (site.hub.wishes[-1].priority, site.hub.wishes[-1].timeout_s) == (1, 0.25)
    await site.ask("POST", INFER, json=infer_body())
    assert (site.hub.wishes[-1].priority, site.hub.wishes[-1].timeout_s) == (0, 0.0)


async def test_a_version_that_made_room_is_not_ready_and_a_request_for_it_is_taken(site):
    site.hub.displaced = {"digits@6"}
    assert (await site.ask("GET", "/v2/models/digits/versions/6/ready"))[0] == 404
    status, described = await site.ask("GET", "/v2/models/digits/versions/6")
    assert (status, described["name"], described["versions"]) == (200, "digits", ["7"])
    status, answer = await site.ask("POST", "/v2/models/digits/versions/6/infer", json=infer_body())
    assert (status, answer["model_version"]) == (200, "6")
    status, answer = await site.ask("POST", INFER, json=infer_body())
    assert (status, answer["model_version"]) == (200, "7")
    assert (await site.ask("POST", "/v2/models/digits/versions/5/infer", json=infer_body()))[0] == 404
    assert (await site.ask("POST", "/v2/models/digits@6/infer", json=infer_body()))[0] == 404


@pytest.mark.parametrize("parameters", [{"priority": -1}, {"priority": True}, {"timeout": "1s"}, {"timeout": 10**12}])
async def test_a_schedule_that_means_nothing_is_refused_by_name(site, parameters):
    status, said = await site.ask("POST", INFER, json={**infer_body(), "parameters": parameters})
    assert (status, next(iter(parameters)) in said["error"]) == (400, True)


async def test_an_idempotency_key_goes_with_a_print_of_path_and_payload(site):
    for key, body, path in (
        ('"k1"', infer_body(), INFER),
        ("k1", infer_body(), INFER),
        ("k1", infer_body(2), INFER),
        ("k1", infer_body(), "/v2/models/digits/versions/6/infer"),
    ):
        assert (await site.ask("POST", path, json=body, headers={"Idempotency-Key": key}))[0] == 200
    first, second, third, fourth = site.hub.wishes
    assert (first.idempotency, first) == ("k1", second)
    assert len({first.fingerprint, third.fingerprint, fourth.fingerprint}) == 3


@pytest.mark.parametrize("key", ["", '""', "a b", "x" * 129, 'a"b', "tür"])
async def test_an_idempotency_key_that_is_none_is_refused(site, key):
    status, _ = await site.ask("POST", INFER, json=infer_body(), headers={"Idempotency-Key": key})
    assert status == 400
    assert site.hub.wishes == []


async def test_an_idempotency_key_in_use_is_409_and_with_another_payload_422(site):
    site.hub.refuse = RefusalReason.CONFLICT
    assert (await site.ask("POST", INFER, json=infer_body()))[0] == 422
    site.hub.refuse_with = StillRunningError(RefusalReason.BUSY, 1.0)
    async with site.client.post(site.url + INFER, json=infer_body()) as response:
        assert (response.status, response.headers["Retry-After"]) == (409, "1")


@pytest.mark.parametrize(
    ("reason", "status"),
    [(RefusalReason.RATE, 429), (RefusalReason.BUSY, 503), (RefusalReason.DRAINING, 503), (RefusalReason.EXPIRED, 504)],
)
async def test_a_refusal_says_when_to_come_again(site, reason, status):
    site.hub.refuse = reason
    async with site.client.post(site.url + INFER, json=infer_body()) as response:
        assert (response.status, int(response.headers["Retry-After"])) == (status, 3)
        assert list(await response.json()) == ["error"]


async def test_the_repository_lists_loads_and_unloads(site):
    assert (await site.ask("POST", "/v2/repository/models/digits/unload", json={}))[0] == 401
    asked = {"parameters": {"version": "6"}}
    status, _ = await site.ask("POST", "/v2/repository/models/digits/unload", json=asked, headers=site.admin)
    assert (status, site.hub.unloaded) == (200, {"digits@6"})
    _, index = await site.ask("POST", "/v2/repository/index")
    assert [(kept["version"], kept["state"]) for kept in index] == [("6", "UNAVAILABLE"), ("7", "READY")]
    _, ready = await site.ask("POST", "/v2/repository/index", json={"ready": True})
    assert [kept["version"] for kept in ready] == ["7"]
    assert (await site.ask("POST", "/v2/repository/models/digits@6/load", headers=site.admin))[0] == 200
    assert site.hub.unloaded == set()
    assert (await site.ask("POST", "/v2/repository/models/other/load", headers=site.admin))[0] == 404


@pytest.mark.parametrize("name", ["config", "file:1/model.onnx"])
async def test_a_load_with_overrides_is_refused_and_loads_nothing(site, name):
    asked = {"parameters": {name: "{}", "version": "6"}}
    await site.ask("POST", "/v2/repository/models/digits@6/unload", headers=site.admin)
    status, said = await site.ask("POST", "/v2/repository/models/digits/load", json=asked, headers=site.admin)
    assert (status, name in said["error"]) == (400, True)
    assert site.hub.unloaded == {"digits@6"}


@pytest.mark.parametrize("asked", [{"version": True}, {"unload_dependents": "yes"}, {"versoin": "6"}, {"version": 6.5}])
async def test_a_load_parameter_that_means_nothing_is_refused_by_name(site, asked):
    path = "/v2/repository/models/digits/load"
    status, said = await site.ask("POST", path, json={"parameters": asked}, headers=site.admin)
    assert (status, next(iter(asked)) in said["error"]) == (400, True)
    assert (await site.ask("POST", path, json={"parameter": {}}, headers=site.admin))[0] == 400


@pytest.mark.parametrize("name", ["sequence_id", "sequence_start", "sequence_end"])
async def test_a_sequence_is_refused_and_not_ignored(site, name):
    body = {**infer_body(), "parameters": {name: 7 if name == "sequence_id" else True}}
    status, said = await site.ask("POST", INFER, json=body)
    assert (status, name in said["error"], site.hub.wishes) == (400, True, [])
    none = {**infer_body(), "parameters": {"sequence_id": 0, "sequence_start": False, "sequence_end": False}}
    assert (await site.ask("POST", INFER, json=none))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/digits/config", 404), ("POST", "/v2/models/digits/generate", 404), ("GET", "/v3", 404),
        ("POST", "/v2/systemsharedmemory/region/x/register", 404), ("GET", "/v1/admin/secrets", 404),
        ("DELETE", "/v2/models/digits", 405), ("POST", "/metrics", 405),
    ],
)  # fmt: skip
async def test_a_route_that_does_not_exist_is_404_with_and_without_a_token(site, method, path, status):
    for headers in ({}, {"Authorization": "Bearer x"}, site.admin):
        found, said = await site.ask(method, path, headers=headers)
        assert (found, list(said)) == (status, ["error"])


async def test_statistics_count_requests_and_not_their_samples(site):
    for _ in range(3):
        await site.ask("POST", INFER, json=infer_body(2))
    _, found = await site.ask("GET", "/v2/models/digits/versions/7/stats")
    (stats,) = found["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (6, 3)
    assert stats["inference_stats"]["success"] == {"count": 3, "ns": 9_000_000}
    assert stats["inference_stats"]["queue"] == {"count": 3, "ns": 3_000_000}
    assert stats["inference_stats"]["compute_infer"] == {"count": 3, "ns": 6_000_000}
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in stats["batch_stats"]] == [(2, 3)]
    assert len((await site.ask("GET", "/v2/models/stats"))[1]["model_stats"]) == 2
    assert (await site.ask("GET", "/v2/models/other/stats"))[0] == 404


async def test_a_callers_trace_goes_on_below_a_span_of_the_request(site):
    spans: list[Span] = []
    site.hub.observer._sink = spans.extend
    await site.ask("POST", INFER, json=infer_body(), headers={"traceparent": TRACE})
    await site.ask("POST", INFER, json=infer_body(), headers={"traceparent": TRACE[:-1]})
    (span,) = spans
    assert (span.name, span.trace, span.parent) == ("skerry.http", "a" * 32, "b" * 16)
    assert site.hub.wishes[0].trace == f"00-{'a' * 32}-{span.id}-01"
    assert site.hub.wishes[1].trace == ""


async def test_metrics_tell_queue_and_compute_apart(site):
    await site.ask("POST", INFER, json=infer_body(2))
    _, text = await site.ask("GET", "/metrics")
    assert 'skerry_hub_queue_seconds_bucket{le="0.001",model="digits@7"} 2.0' in text
    assert 'skerry_hub_compute_seconds_count{model="digits@7"} 1.0' in text
    assert 'skerry_hub_items_total{model="digits@7"} 2.0' in text
