"""One question's trace, from the device's sample to the engine's rank, as an OTLP receiver gets it from both sides."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import AgentHandle, ProcessHarness
from tests.live.doubles.fleet import PATIENT_S, QUICK, ask, policy, samples, settle
from tests.wire.doubles.otlp_receiver import OtlpReceiver, Received

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
UNDER_DEVICE = {"skerry.infer", "skerry.link", "skerry.queue", "skerry.compute", "skerry.verdict"}


async def until(look: Callable[[], bool], said: Callable[[], object], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, said()
        await asyncio.sleep(0.1)


async def start(stage: ProcessHarness, bundle: Bundle, folder: Path, endpoint: str) -> AgentHandle:
    await stage.start_hub(bundle.path, {"trace": {"endpoint": endpoint}})
    rules = policy(folder, "hub_first", PATIENT_S)
    agent = await stage.add_agent("a", bundle.path, rules, {**QUICK, "trace": {"endpoint": endpoint}})
    await stage.start_agent(agent)
    return agent


async def test_a_collector_gets_one_complete_tree_from_the_sample_on_the_device_to_the_rank(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    with OtlpReceiver() as receiver:
        agent = await start(stage, bundle, tmp_path, receiver.endpoint)
        (sample,) = samples(1)
        answer = await ask(stage, agent, bundle, sample)
        assert answer["source"] == "hub"

        def tree() -> dict[str, Received]:
            return {span.name: span for span in receiver.spans if span.trace == answer["trace_id"]}

        await until(lambda: {*tree()} >= {*UNDER_DEVICE, "skerry.device", "skerry.rank"}, tree)
        found = tree()
        root = found.pop("skerry.device")
        assert (root.parent, root.service, root.instance) == ("", "skerry-agent", agent.device)
        rank = found.pop("skerry.rank")
        assert (rank.parent, rank.service) == (found["skerry.compute"].id, "skerry-hub")
        assert {span.parent for span in found.values()} == {root.id}
        assert {*found} == UNDER_DEVICE
        for span in (*found.values(), rank):
            assert root.start_ns - 50_000_000 <= span.start_ns <= span.end_ns
        # what the device's spans carry: names, ids, times and the model, nothing that is made of the sample
        own = [span for span in receiver.spans if span.service == "skerry-agent"]
        assert {key for span in own for key in span.attributes} == {"skerry.model"}
        assert not any(sample.tobytes()[:32] in body for body in receiver.raw)


async def test_spans_for_a_collector_that_is_down_are_counted_on_both_sides_and_answers_go_on(
    stage: ProcessHarness, bundle: Bundle, tmp_path: Path
):
    with OtlpReceiver() as receiver:
        nobody = receiver.endpoint
    agent = await start(stage, bundle, tmp_path, nobody)
    for sample in samples(3):
        assert (await ask(stage, agent, bundle, sample))["source"] == "hub"
    await settle(stage)
    assert stage.hub is not None
    hub = stage.hub.folder.parent / "hub.log"
    for log in (agent.child.log, hub):
        await until(lambda log=log: '"event":"spans_lost"' in log.read_text(), log.read_text)  # type: ignore[misc]
        lines = [json.loads(line) for line in log.read_text().splitlines() if '"spans_lost"' in line]
        assert lines[-1]["lost"] > 0
        assert not any('"logger":"opentelemetry' in line for line in log.read_text().splitlines())
    assert (await stage.fetch_status(agent))["trace"]["spans_lost"] > 0
    async with stage.session.get(f"{agent.url}/metrics") as response:
        assert 'skerry_agent_spans_total{outcome="lost"}' in await response.text()
    async with stage.session.get(f"{stage.hub.url}/metrics") as response:
        assert 'skerry_hub_events_total{event="spans_lost"}' in await response.text()
