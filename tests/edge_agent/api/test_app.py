"""The local API for a caller: answers, corrections, events, feedback; and for an attacker."""

import asyncio
import json
import re
from typing import Any

import numpy as np
import pytest

from edge_agent.api.app import OPEN_ROUTES, ApiServer, build_app
from edge_agent.cli.client import request_json
from edge_agent.system.settings import ApiAddress
from tests import ROOT
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api
from wire.http import oip
from wire.http.access import ServerAccess, load_token

UNSURE = [[0.4, 0.3, 0.3]]
SURE = [[0.1, 0.9, 0.0]]


def body(x: Any, **parameters: Any) -> dict[str, Any]:
    shape = list(np.shape(x))
    return {"inputs": [{"name": "scores", "datatype": "FP32", "shape": shape, "data": x}], "parameters": parameters}


async def reply(request: Any, status: int = 200) -> Any:
    async with request as response:
        read = await response.json()
        assert response.status == status, read
        return read


async def ask(session: Any, x: Any, **parameters: Any) -> Any:
    return (await reply(session.post("/v2/models/echo/infer", json=body(x, **parameters))))["parameters"]


async def refused(session: Any, x: Any, status: int = 400, **parameters: Any) -> str:
    line: str = (await reply(session.post("/v2/models/echo/infer", json=body(x, **parameters)), status))["error"]
    assert "\n" not in line
    return line


async def test_a_correction_reaches_the_caller_that_waits():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        asked = await ask(session, UNSURE)
        waiting = asyncio.create_task(reply(session.get(f"/v1/answers/{asked['answer_id']}?wait_s=5")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await agent.verdict(asked["answer_id"], 2)
        kinds = [(r["kind"], r["source"], r["label"]) for r in (await waiting)["records"]]
        assert kinds == [("answer", "local", 0), ("correction", "hub", 2)]
        again = await reply(session.get(f"/v1/answers/{asked['answer_id']}?wait_s=5"))
        assert again == await waiting  # idempotent


async def test_a_wait_without_a_verdict_ends_with_what_is_known():
    async with serve_api(MemoryAgent()) as session:
        asked = await ask(session, UNSURE)
        known = await reply(session.get(f"/v1/answers/{asked['answer_id']}?wait_s=0.05"))
        assert [r["reason"] for r in known["records"]] == ["unsure"]
        assert set(known["records"][0]) >= {"model", "model_version", "policy_hash", "timings", "at_ms", "trace_id"}


@pytest.mark.parametrize("wait_s", ["nan", "-1", "inf", "soon"])
async def test_a_wait_that_is_no_time_is_refused(wait_s):
    async with serve_api(MemoryAgent()) as session:
        asked = await ask(session, SURE)
        await reply(session.get(f"/v1/answers/{asked['answer_id']}?wait_s={wait_s}"), 400)


@pytest.mark.parametrize("path", ["", "/why"])
@pytest.mark.parametrize("answer", ["f" * 32, "..", "x", "%00", "F" * 32, "a" * 4000])
async def test_an_unknown_answer_is_404(answer, path):
    async with serve_api(MemoryAgent()) as session:
        assert (await session.get(f"/v1/answers/{answer}{path}")).status == 404


async def read_events(response: Any, count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    pairs: dict[str, str] = {}
    while len(found) < count:
        line = (await response.content.readline()).decode().strip()
        if line and not line.startswith(":"):
            pairs.update([line.split(": ", 1)])
        elif not line:
            found += [pairs] if "data" in pairs else []
            pairs = {}
    return found


async def test_a_listener_resumes_after_its_last_event_and_misses_nothing():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        for x in (SURE, UNSURE, SURE):
            await ask(session, x)
        async with session.get("/v1/events", headers={"Last-Event-ID": "1"}) as stream:
            assert stream.content_type == "text/event-stream"
            await agent.verdict(f"{2:032x}", 1)
            first = await read_events(stream, 3)
        assert [(e["id"], e["event"]) for e in first] == [("2", "answer"), ("3", "answer"), ("4", "correction")]
        async with session.get("/v1/events?after=2") as stream:
            again = await read_events(stream, 2)
        assert again == first[1:]  # the same ids and the same data
        assert json.loads(again[1]["data"])["answer_id"] == f"{2:032x}"


async def test_a_new_listener_hears_from_now_on_and_an_idle_stream_beats():
    agent = MemoryAgent()
    async with serve_api(agent, heartbeat_s=0.02) as session:
        await ask(session, SURE)
        async with session.get("/v1/events") as stream:
            while await stream.content.readline() != b": beat\n":
                pass
            await ask(session, UNSURE)
            assert [e["id"] for e in await read_events(stream, 1)] == ["2"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "²", "9" * 30])
async def test_a_last_event_that_is_no_number_is_refused(last):
    async with serve_api(MemoryAgent()) as session:
        await reply(session.get("/v1/events", params={"after": last}), 400)


async def test_streams_are_bounded_and_do_not_hold_up_the_end():
    async with serve_api(MemoryAgent(), heartbeat_s=0.02) as session:
        streams = [await session.get("/v1/events") for _ in range(16)]
        await reply(session.get("/v1/events"), 503)
        streams.pop().close()
        for _ in range(100):
            streams.append(await session.get("/v1/events"))
            if streams[-1].status == 200:
                break
            streams.pop().close()
            await asyncio.sleep(0.02)
        assert len(streams) == 16
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 1.5
    for stream in streams:
        stream.close()


@pytest.mark.parametrize(("truth", "kept"), [(2, 2), ("2", 2), (0, 0)])
async def test_feedback_is_kept(truth, kept):
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        asked = await ask(session, SURE)
        await reply(session.post(f"/v1/answers/{asked['answer_id']}/feedback", json={"truth": truth}))
        assert agent.truths == {asked["answer_id"]: kept}


@pytest.mark.parametrize(
    "sent",
    [{"truth": 3}, {"truth": -1}, {"truth": "nine"}, {"truth": 1.5}, {}, {"truth": 1, "x": 1}, [], {"truth": True}],
)
async def test_feedback_that_is_no_label_is_refused(sent):
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        asked = await ask(session, SURE)
        await reply(session.post(f"/v1/answers/{asked['answer_id']}/feedback", json=sent), 400)
        await reply(session.post(f"/v1/answers/{'f' * 32}/feedback", json={"truth": 1}), 404)
        await reply(session.post(f"/v1/answers/{asked['answer_id']}/feedback", data=bytes(2000)), 413)
        assert agent.truths == {}


async def test_a_wrong_sample_is_one_line_and_no_answer():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        assert await refused(session, [[0.5, 0.5]]) == "input 'scores': shape [1,2], expected [-1,3]"
        assert "the model takes 0..1" in await refused(session, [[0.5, 0.5, 1.5]])
        assert "accepted are 1 to 8" in await refused(session, [[0.5, 0.5, 0.5]] * 9)
        raw = json.dumps(body(SURE)).replace("0.9", "NaN")
        await reply(session.post("/v2/models/echo/infer", data=raw), 400)
        await reply(session.post("/v2/models/echo/infer", data=bytes(65 * 1024)), 413)
        await reply(session.post("/v2/models/other/infer", json=body(SURE)), 404)
        await reply(session.post("/v2/models/echo/versions/8/infer", json=body(SURE)), 404)
        assert agent.samples == []


async def test_the_agent_hears_of_a_refused_request_and_can_ask_whether_the_model_before_takes_it():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        await refused(session, [[0.5, 0.5]])
        await refused(session, [[0.5, 1.5]])
        await refused(session, [[0.5, 0.5, 0.5, 0.5]])
        await ask(session, SURE)
        assert agent.refused == [True, False, False]


async def test_one_bad_sample_of_a_batch_answers_none():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        await refused(session, [*SURE, [0.5, 0.5, 1.5]])
        sent = {**body(SURE), "outputs": [{"name": "nope"}]}
        await reply(session.post("/v2/models/echo/infer", json=sent), 400)
        assert agent.samples == []


async def test_a_misspelt_data_class_does_not_let_the_sample_go():
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        line = await refused(session, SURE, data_clas="private")
        assert line == "unknown parameter 'data_clas', did you mean 'data_class'?"
        await refused(session, SURE, data_class="a b")
        await refused(session, SURE, data_class=1)
        assert agent.samples == []
        await ask(session, SURE, data_class="private")
        await ask(session, SURE)
        assert [s.data_class for s in agent.samples] == ["private", ""]


@pytest.mark.parametrize(
    "given", ["", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "no trace", "00-" + "g" * 32 + "-" + "1" * 16 + "-01"]
)
async def test_a_trace_that_is_none_is_replaced_by_a_new_one(given):
    agent = MemoryAgent()
    async with serve_api(agent) as session:
        request = session.post("/v2/models/echo/infer", json=body(SURE), headers={"traceparent": given})
        trace = (await reply(request))["parameters"]["trace_id"]
        assert len(trace) == 32
        assert int(trace, 16)
        assert agent.samples[0].trace.split("-")[1] == trace


async def test_mode_disabled_answers_503_and_says_so_everywhere():
    agent = MemoryAgent()
    agent.mode = "disabled"
    async with serve_api(agent) as session:
        assert (await refused(session, SURE, 503)).startswith("disabled")
        for path in ("/readyz", "/v2/health/ready", "/v2/models/echo/ready"):
            assert (await session.get(path)).status == 503
        for path in ("/healthz", "/v2/health/live", "/v2/models/echo", "/v1/status"):
            assert (await session.get(path)).status == 200


async def test_metrics_count_what_the_agent_counts():
    async with serve_api(MemoryAgent()) as session:
        await ask(session, SURE)
        text = await (await session.get("/metrics")).text()
    assert 'skerry_agent_events_total{kind="answers"} 1.0' in text
    assert "skerry_agent_link 1.0" in text
    assert "process_resident_memory_bytes" in text


DAY_MS = 86_400_000


class WholeStatus(MemoryAgent):
    """An agent whose status has every part that becomes a figure."""

    def status(self) -> dict[str, Any]:
        budgets = {"bytes": {"left": 1, "limit": 2}}
        sent = {"by_rule": {"base": 5}, "sockets": 9, "overhead": 4}
        more = {"notice": 1, "policy_days_left": 3, "drift": {"level": 0.5}, "sent": sent, "budgets": budgets}
        more["energy"] = {"source": "model", "by_rule": {"base": 0.5}}
        more["trace"] = {"spans_sent": 1, "spans_lost": 0}
        more["sources"] = {"gate": {"state": "up", "restarts": 1, "answered": 3, "dropped": {"newer": 2}}}
        more["outputs"] = {"log": {"sent": 7, "dropped": {"too_old": 2}}}
        more |= {"certificate_ends_ms": 2 * DAY_MS, "hub_time_ms": DAY_MS}
        return super().status() | more | {"alarms": ["freeze"]}


async def test_every_page_and_rule_names_only_figures_that_the_agent_has():
    async with serve_api(WholeStatus()) as session:
        text = await (await session.get("/metrics")).text()
    exposed = set(re.findall(r"^(skerry_agent_[a-z_]+)", text, re.MULTILINE))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.yml")]
    named = {page.name: set(re.findall(r"\bskerry_agent_[a-z_]+", page.read_text(encoding="utf-8"))) for page in pages}
    assert {page: names - exposed for page, names in named.items() if names - exposed} == {}
    assert 'skerry_agent_output_records_total{outcome="too_old",output="log"} 2.0' in text
    assert "skerry_agent_sent_bytes_total" in named["ledger.md"]
    assert "skerry_agent_certificate_left_seconds 86400.0" in text
    board = (ROOT / "deploy" / "grafana" / "skerry-agent.json").read_text(encoding="utf-8")
    assert set(re.findall(r"\bskerry_agent_[a-z_]+", board)) <= exposed
    rows = "".join(re.findall(r"^\| `skerry_agent_.*?\|", (ROOT / "docs" / "running.md").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bskerry_agent_[a-z_]+", rows)) == exposed


async def test_a_canary_in_a_sample_comes_back_in_no_error():
    canary = "CANARY-3f9a"
    async with serve_api(MemoryAgent()) as session:
        for sent in (body([[canary] * 3]), {"inputs": canary}, {**body(SURE), "parameters": {"data_class": [canary]}}):
            async with session.post("/v2/models/echo/infer", json=sent) as response:
                assert response.status == 400
                assert canary not in await response.text()


def routes() -> list[tuple[str, str]]:
    agent = MemoryAgent()
    app = build_app(agent, ServerAccess())
    found = {(r.method, r.resource.canonical) for r in app.router.routes() if r.resource and r.method != "HEAD"}
    return sorted(found)


@pytest.mark.parametrize(("method", "route"), routes())
async def test_denied_a_stranger_is_kept_out_of_every_route(method, route, tmp_path):
    agent = MemoryAgent()
    path = route.format(model="echo", version="7", id="0" * 32, subject="0" * 64, name="agent.js")
    async with serve_api(agent) as session:
        assert (await session.request(method, path, headers={"Host": "evil.example"})).status == 403
        assert (await session.request(method, path, headers={"Origin": "http://evil.example"})).status == 403
    access = ServerAccess(token_file=str(tmp_path / "token"))
    async with serve_api(agent, access) as session:
        expected = 200 if route in OPEN_ROUTES else 401
        assert (await session.request(method, path)).status == expected
        good = {"Authorization": f"Bearer {load_token(access)}"}
        async with session.request(method, path, headers=good) as response:
            assert response.status != 401
    assert agent.samples == []


def test_every_route_of_the_protocol_and_of_ours_is_there():
    paths = {path for _, path in routes()}
    assert paths > OPEN_ROUTES
    assert {"/v2", "/v2/models/{model}/versions/{version}/infer", "/v1/events", "/v1/answers/{id}/why"} < paths
    assert len(routes()) == 24


async def test_a_unix_socket_serves_and_is_gone_afterwards(tmp_path):
    agent = MemoryAgent()
    access = ServerAccess(unix=str(tmp_path / "api.sock"))
    server = ApiServer(build_app(agent, access), access)
    assert await server.start() == f"unix:{tmp_path}/api.sock"
    status = await asyncio.to_thread(request_json, ApiAddress(f"unix:{tmp_path}/api.sock"), "/v1/status")
    assert status["mode"] == "answer_now"
    await server.stop()
    assert list(tmp_path.iterdir()) == []


async def test_a_binary_request_of_our_own_client_is_answered():
    async with serve_api(MemoryAgent()) as session:
        sent = oip.encode_infer_request({"scores": np.array(SURE, np.float32)})
        async with session.post("/v2/models/echo/infer", data=sent.body, headers=sent.headers()) as response:
            assert response.headers["Content-Type"] == oip.BINARY_TYPE
            size = int(response.headers[oip.HEADER_LENGTH])
            head = json.loads((await response.read())[:size])
    assert [o["name"] for o in head["outputs"]] == ["scores", "label", "confidence", "label_name"]
