"""Routes of the hub's web API: enrolment, devices, inference, health, metrics."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud_hub.doubles.api_site import CARD, DEVICE, Site, infer_body
from tests.cloud_hub.doubles.joiner import Joiner
from wire.protocol.messages import RefusalReason


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    yield opened
    await opened.close()


# ---- enrolment, invites, devices


async def test_invited_device_enrols_is_listed_suspended_and_back(site):
    invited = await site.invite()
    assert invited["invite"].startswith("skerry1:")
    joiner = Joiner()
    status, reply = await site.ask("POST", "/v1/enrol", json=joiner.request(site.token()))
    assert status == 200
    assert json.loads(reply["body"])["device"] == DEVICE
    _, listed = await site.ask("GET", "/v1/admin/devices", headers=site.admin)
    assert [(d["device"], d["state"], d["tenant"]) for d in listed["devices"]] == [(DEVICE, "active", "demo")]
    path = f"/v1/admin/devices/{DEVICE}"
    for state in ("suspended", "active", "revoked"):
        status, shown = await site.ask("POST", f"{path}/state", json={"state": state}, headers=site.admin)
        assert (status, shown["state"]) == (200, state)
    status, _ = await site.ask("POST", f"{path}/state", json={"state": "active"}, headers=site.admin)
    assert status == 409
    _, shown = await site.ask("GET", path, headers=site.admin)
    assert shown["state"] == "revoked"
    assert not any("key" in field for field in shown)


async def test_token_used_twice_is_403(site):
    token = site.token()
    assert (await site.ask("POST", "/v1/enrol", json=Joiner().request(token)))[0] == 200
    status, body = await site.ask("POST", "/v1/enrol", json=Joiner().request(token))
    assert status == 403
    assert "used" in body["error"]


async def test_thousand_guesses_are_cut_off(site):
    guess = Joiner().request("x" * 43)
    statuses = [(await site.ask("POST", "/v1/enrol", json=guess))[0] for _ in range(1000)]
    assert 20 <= statuses.count(403) <= 40
    assert statuses.count(403) + statuses.count(429) == 1000
    assert site.registry.devices() == ()


async def test_damaged_request_is_400_and_leaves_the_invite_good(site):
    token = site.token()
    status, body = await site.ask("POST", "/v1/enrol", json=Joiner().request(token, proof="AAAA"))
    assert status == 400
    assert token not in body["error"]
    assert (await site.ask("POST", "/v1/enrol", json=Joiner().request(token)))[0] == 200


@pytest.mark.parametrize("attack", ["+", "#", "a/b", "", "a" * 65, "$SYS", "tür--1", "hub"])
async def test_no_invite_for_an_id_that_may_not_stand_in_a_topic(site, attack):
    status, body = await site.ask("POST", "/v1/admin/invites", json={"device": attack}, headers=site.admin)
    assert status == 400
    assert "\n" not in body["error"]


@pytest.mark.parametrize("expires", [0, -1, 1e12, "1h", None])
async def test_an_invite_lives_for_a_sane_time(site, expires):
    body = {"device": DEVICE, "expires_s": expires}
    assert (await site.ask("POST", "/v1/admin/invites", json=body, headers=site.admin))[0] == 400


async def test_unknown_device_and_unknown_state_are_told_apart(site):
    assert (await site.ask("GET", "/v1/admin/devices/demo--nobody", headers=site.admin))[0] == 404
    await site.ask("POST", "/v1/enrol", json=Joiner().request(site.token()))
    body = {"state": "asleep"}
    assert (await site.ask("POST", f"/v1/admin/devices/{DEVICE}/state", json=body, headers=site.admin))[0] == 400


async def test_status_tells_of_open_invites(site):
    await site.invite()
    _, status = await site.ask("GET", "/v1/admin/status", headers=site.admin)
    assert (status["open_invites"], status["hub"]) == (1, "hub-1")


# ---- inference


async def test_json_inference_answers_with_three_numbers_and_a_name(site):
    status, answer = await site.ask("POST", "/v2/models/digits/infer", json=infer_body(2))
    assert status == 200
    assert (answer["id"], answer["model_version"], answer["parameters"]["source"]) == ("q", "7", "hub")
    assert answer["parameters"]["in_domain"] == ",", "two samples, and this engine cannot tell"
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["scores"]["shape"] == [2, 3]
    names = [CARD.labels[label] for label in outputs["label"]["data"]]
    assert outputs["label_name"]["data"] == names


async def test_the_newest_version_answers_unless_one_is_named(site):
    assert (await site.ask("GET", "/v2/models/digits"))[1]["versions"] == ["6", "7"]
    assert (await site.ask("POST", "/v2/models/digits/versions/6/infer", json=infer_body()))[1]["model_version"] == "6"


@pytest.mark.parametrize(
    "path",
    ["/v2/models/none/infer", "/v2/models/digits/versions/99/infer", "/v2/models/digits@7/infer"],
)
async def test_unknown_model_or_version_is_404(site, path):
    assert (await site.ask("POST", path, json=infer_body()))[0] == 404


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "other"}, "unknown input"),
        ({"datatype": "INT64", "data": [1, 2, 3, 4]}, "datatype"),
        ({"shape": [1, 4]}, "shape"),
        ({"shape": [257, 2, 2], "data": [0] * 257 * 4}, "batch"),
        ({"data": [1.0, 2.0, 3.0]}, "values"),
        ({"data": [1e39, 0, 0, 0]}, "finite"),
    ],
)
async def test_a_sample_that_does_not_fit_is_refused_by_name(site, change, says):
    body = infer_body()
    body["inputs"][0].update(change)
    status, answer = await site.ask("POST", "/v2/models/digits/infer", json=body)
    assert status == 400
    assert says in answer["error"]
    assert all(engine.batches == [] for engine in site.hub.engines.values())


async def test_a_parameter_the_hub_does_not_know_is_refused(site):
    body = {**infer_body(), "parameters": {"data_class": "open"}}
    assert (await site.ask("POST", "/v2/models/digits/infer", json=body))[0] == 400


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (RefusalReason.BUSY, 503),
        (RefusalReason.DRAINING, 503),
        (RefusalReason.MODEL_GONE, 404),
        (RefusalReason.ENGINE, 500),
        (RefusalReason.SCHEMA, 400),
    ],
)
async def test_a_refusal_of_the_hub_becomes_its_status(site, reason, status):
    site.hub.refuse = reason
    async with site.client.post(f"{site.url}/v2/models/digits/infer", json=infer_body()) as response:
        assert response.status == status
        assert ("Retry-After" in response.headers) == (status == 503)


async def test_body_over_the_limit_is_413(site):
    assert (await site.ask("POST", "/v2/models/digits/infer", json=infer_body(200)))[0] == 413


# ---- health and metrics


async def test_ready_is_a_fresh_round_trip_each_time(site):
    assert await site.ask("GET", "/readyz") == (200, {"ready": True, "reason": ""})
    site.hub.engines[CARD.name].broken = True
    assert await site.ask("GET", "/readyz") == (503, {"ready": False, "reason": "digits@7 failed"})
    assert site.hub.probes == 2


async def test_a_hub_whose_models_rest_is_ready_for_whoever_asks_unless_one_cannot_be_loaded(site: Site):
    site.hub.engines.clear()
    assert await site.ask("GET", "/readyz") == (200, {"ready": True, "reason": ""})
    site.hub.facts["engines_down"] = ["digits@7"]
    assert await site.ask("GET", "/readyz") == (503, {"ready": False, "reason": "digits@7 failed"})
    site.hub.facts["replicas"] = {}
    assert await site.ask("GET", "/readyz") == (503, {"ready": False, "reason": "no model is loaded"})


async def test_replicas_that_are_wanted_are_exported(site: Site):
    _, text = await site.ask("GET", "/metrics")
    for line in ("replicas_wanted", "replicas", "replicas_needed"):
        assert f'skerry_hub_{line}{{model="digits@7"}}' in text
    assert 'skerry_hub_replicas_wanted{model="digits@7"} 3.0' in text


async def test_many_who_ask_at_once_share_one_round_trip(site):
    began = time.monotonic()
    answers = await asyncio.gather(*(site.ask("GET", "/readyz") for _ in range(20)))
    assert {status for status, _ in answers} == {200}
    assert site.hub.probes <= 2 + time.monotonic() - began  # one a second


async def test_an_engine_that_hangs_is_not_ready_and_does_not_hang_the_asker(site):
    site.hub.hang = True
    async with asyncio.timeout(40):  # the engine hangs for a minute
        status, body = await site.ask("GET", "/readyz")
    assert status == 503
    assert "0.3 s" in body["reason"]
    assert (await site.ask("GET", "/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("link_up", False, "no link to the broker"),
        ("store_fault", "the database is read-only", "the database is read-only"),
    ],
)
async def test_without_link_or_database_the_hub_is_not_ready_and_says_why(site, fact, value, said):
    site.hub.facts[fact] = value
    status, body = await site.ask("GET", "/readyz")
    assert (status, body["reason"]) == (503, said)


async def test_metrics_show_the_hub_and_name_no_caller(site):
    for path in ("/v1/admin/devices/demo--secret", "/some/secret/path", "/v2/models/secret-model"):
        await site.ask("GET", path, headers=site.admin)
    _, text = await site.ask("GET", "/metrics")
    assert 'skerry_hub_events_total{event="intake.accepted"} 5.0' in text
    assert 'skerry_hub_queued{model="digits@7"} 0.0' in text
    assert "skerry_hub_open 3.0" in text
    assert 'route="/v1/admin/devices/{device}"' in text
    assert "secret" not in text


async def test_a_hub_that_is_alone_is_its_region_s_only_one(site):
    status, answer = await site.ask("GET", "/v1/admin/hubs", headers=site.admin)
    assert status == 200
    (hub,) = answer["hubs"]
    assert (hub["member"], hub["state"], hub["shards"], hub["ranges"]) == ("hub", "alive", 256, [[0, 255]])
    assert {each["task"] for each in hub["tasks"]} >= {"retirements", "rollouts", "keeper", "rotation"}
