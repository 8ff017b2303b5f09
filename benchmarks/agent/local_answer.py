"""Benchmark: time the agent adds to one confident local answer, in-process, over the bare model.

`python -m benchmarks.agent.local_answer`. Bare call and agent take turns, sample by sample, on sessions with equal
options. The answers are real: gate, policy, record; the database writer runs in its own thread as in production.
"""

import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure, find_median, format_number
from benchmarks.harness.rig import POLICY
from edge_agent.app.agent import Agent
from edge_agent.identity.identity import HubKeys, Identity, generate_payload_key
from edge_agent.question.records import AnswerRecord, Sample
from edge_agent.system.settings import AgentSettings
from models.bundle.bundle import open_bundle
from models.bundle.manifest import EDGE_FILE
from models.forge.data.digits import load_heldout
from models.runtime.onnx_runner import LOGITS, OnnxRunner
from policies.language.document import parse_policy
from wire.transport.base import LinkLostError, Transport

ROUNDS = 5
TIMES = 2000
BREATH = 20  # answers between two turns of the event loop
LIMIT_US = 25.0


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """Median over `ROUNDS` of p50(agent) - p50(bare), microseconds."""
    opened = open_bundle(bundle)
    bare = _open_bare(opened.read_file(EDGE_FILE))
    outputs = [LOGITS, *(feature.name for feature in opened.manifest.features)]
    policy = parse_policy(POLICY.format(mode="answer_now", threshold=0.0)).compile()
    agent = Agent(AgentSettings(state_dir=folder), _make_identity(folder), OnnxRunner(opened), policy, _fail_connect)
    await agent.open()
    running = asyncio.create_task(agent.run())
    samples = [np.ascontiguousarray(x) for x in load_heldout()[0]]
    try:
        rounds = [
            await _run_round(agent, samples, lambda x: bare.run(outputs, {opened.manifest.input.name: x[None]}))
            for _ in range(ROUNDS + 1)
        ][1:]
    finally:
        agent.stop()
        await running
    added = [with_agent - alone_us for with_agent, alone_us in rounds]
    terms = (
        f"bare InferenceSession.run p50 {format_number(median(r[1] for r in rounds))} us,"
        f" through the agent {format_number(median(r[0] for r in rounds))} us ({TIMES} x {ROUNDS} rounds, in turns)",
        f"added per round: {', '.join(format_number(value) for value in added)} us",
    )
    return [Figure("agent's added time per local answer, p50", median(added), "us", LIMIT_US, terms=terms)]


async def _run_round(agent: Agent, samples: list[npt.NDArray[Any]], bare: Any) -> tuple[float, float]:
    clock, with_agent, alone_s = time.perf_counter, [], []
    for number in range(TIMES):
        x = samples[number % len(samples)]
        sample = Sample(x, "open")
        began = clock()
        bare(x)
        between = clock()
        answer = agent.answer_now(sample)
        with_agent.append(clock() - between)
        alone_s.append(between - began)
        if not isinstance(answer, AnswerRecord):
            raise TypeError("a confident answer must come back at once")
        if number % BREATH == 0:
            await asyncio.sleep(0.001)
    return find_median(with_agent) * US, find_median(alone_s) * US


def _open_bare(graph: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _make_identity(folder: Path) -> Identity:
    """A device that was enrolled nowhere: nothing leaves in this benchmark."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

    signing, hpke = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    hub = HubKeys("hub-1", "local", hpke.public_key().public_bytes_raw(), signing.public_key().public_bytes_raw())
    return Identity("demo--bench", "127.0.0.1", 1, (hub,), 0, signing, hpke, generate_payload_key(), folder)


async def _fail_connect() -> Transport:
    raise LinkLostError("this benchmark has no broker")


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
