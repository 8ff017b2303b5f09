"""Benchmark: round trip of one escalation over loopback TLS, against a floor measured in the same run.

`python -m benchmarks.agent.round_trip`. The floor is what any system with these promises has to do:
an echo of the same bytes through the same broker (QoS 1, two processes), the hub's model alone, three durable commits
(question on the device, question and verdict on the hub), and two times seal, sign, verify, open. Echo and escalation
take turns.
"""

import asyncio
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, find_median, find_percentile, format_number
from benchmarks.harness.rig import POLICY, BenchmarkRig, read_line, run_child
from benchmarks.harness.terms import build_verdict_plaintext, time_commit_us, time_sealing
from edge_agent.app.agent import Agent
from edge_agent.identity.identity import Identity
from edge_agent.question.records import AnswerSource, Sample
from edge_agent.system.settings import AgentSettings
from models.bundle.bundle import open_bundle
from models.forge.data.digits import load_heldout
from models.runtime.onnx_runner import OnnxRunner
from policies.language.document import parse_policy
from wire.protocol.topics import TopicChannel, build_topic
from wire.transport.mqtt import MqttTransport

ROUNDS = 5
TIMES = 250
WARM = 50
LIMIT = 1.5


async def measure_ratio(rig: BenchmarkRig, identity: Identity) -> Figure:
    """The ratio escalation / floor, median of `ROUNDS` paired rounds."""
    manifest = open_bundle(rig.bundle).manifest
    question = time_sealing(bytes(manifest.fixed_bytes), TopicChannel.QUESTION)
    verdict = time_sealing(build_verdict_plaintext(len(manifest.labels)), TopicChannel.REPLY)
    crypto_us = question.out_us + question.in_us + verdict.out_us + verdict.in_us
    ratios, echoes, asked, tails, commits, model_us = [], [], [], [], [], await _time_model_us(rig)
    for _ in range(ROUNDS):
        echo = find_median(await _time_echoes(rig, identity, question.frame_bytes, verdict.frame_bytes)) * US
        commit = time_commit_us(rig.folder)
        taken = await _time_escalations(rig, identity)
        floor = echo + model_us + 3 * commit + crypto_us
        ratios.append(find_median(taken) * US / floor)
        echoes.append(echo)
        commits.append(commit)
        asked.append(find_median(taken) * US)
        tails.append(find_percentile(taken, 0.99) * US)
    floor = median(echoes) + model_us + 3 * median(commits) + crypto_us
    terms = (
        f"escalation p50 {format_number(median(asked))} us, "
        f"p99 {format_number(median(tails))} us ({TIMES} x {ROUNDS} rounds)",
        f"floor {format_number(floor)} us = echo {format_number(median(echoes))} + model {format_number(model_us)} "
        f"+ 3 commits of {format_number(median(commits))} + 2 x (seal, sign, verify, open) {format_number(crypto_us)}",
        f"ratio per round: {', '.join(format_number(ratio) for ratio in ratios)}",
    )
    return Figure("escalation round trip, p50, over its floor", median(ratios), "x", LIMIT, terms=terms)


async def _time_echoes(rig: BenchmarkRig, identity: Identity, question_bytes: int, verdict_bytes: int) -> list[float]:
    """Seconds of each echo, from the device to the hub's place and back."""
    async with run_child(
        "benchmarks.agent.echo_peer", *rig.as_hub, str(verdict_bytes), log=rig.folder / "echo.log"
    ) as peer:
        await read_line(peer)
        link = await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())
        await link.subscribe((build_topic(identity.device, TopicChannel.REPLY),))
        up, payload, taken = build_topic(identity.device, TopicChannel.QUESTION), bytes(question_bytes), []
        for _ in range(TIMES + WARM):
            began = time.perf_counter()
            link.post(up, payload)
            await link.receive()
            taken.append(time.perf_counter() - began)
        await link.close()
    return taken[WARM:]


async def _time_escalations(rig: BenchmarkRig, identity: Identity) -> list[float]:
    """Seconds of each `Agent.infer` that the hub answered, one at a time."""
    policy = parse_policy(POLICY.format(mode="hub_first", threshold=0.9)).compile()
    settings = AgentSettings(state_dir=rig.folder / "device-0")

    async def connect() -> MqttTransport:
        return await MqttTransport.connect("127.0.0.1", rig.broker.port, identity.device, identity.tls_context())

    async with rig.run_hub():
        agent = Agent(settings, identity, OnnxRunner(open_bundle(rig.bundle)), policy, connect)
        running = asyncio.create_task(agent.run())
        try:
            return await _ask_repeatedly(agent)
        finally:
            agent.stop()
            await running


async def _ask_repeatedly(agent: Agent) -> list[float]:
    samples = [np.ascontiguousarray(x) for x in load_heldout()[0]]
    while agent.status()["link"] != "up":
        await asyncio.sleep(0.05)
    taken = []
    for number in range(TIMES + WARM):
        began = time.perf_counter()
        answer = await agent.infer(Sample(samples[number % len(samples)], "open"))
        taken.append(time.perf_counter() - began)
        if answer.source is not AnswerSource.HUB:
            raise RuntimeError(f"asked the hub, got {answer.source}: {answer.why}")
    return taken[WARM:]


async def _time_model_us(rig: BenchmarkRig) -> float:
    """The hub's model alone, in a process of its own: torch stays out of this one."""
    async with run_child("benchmarks.hub.raw_model", str(rig.bundle), log=rig.folder / "model.log") as process:
        return float(await read_line(process))


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            identity = (await rig.enrol_devices(1))[0]
        return [await measure_ratio(rig, identity)]


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
