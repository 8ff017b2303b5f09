"""A server that computes a hub's model, beside the same ONNX in this process; what is lost when it is killed.

The server is MLServer where its environment was made (`python -m benchmarks.harness.environments mlserver`), else the
shipped double, in this process; the row says which.
"""

import asyncio
import contextlib
import time
from pathlib import Path

from benchmarks.harness.environments import MLSERVER
from benchmarks.harness.figures import Figure, find_median
from cloud_hub.engine.base import Engine
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions, RemoteServer
from tests.cloud_hub.doubles.devices import SimDevice
from tests.cloud_hub.doubles.site import Ear, effects_in, serving
from tests.cloud_hub.doubles.v2_server import V2Server
from tests.cloud_hub.engine.test_remote import GRAPHS, golden_bundle, questions
from tests.cloud_hub.runtime.test_remote_engine import NET, echo_bundle
from tests.live.engines.mlserver import MlServer

ROUNDS, WARM = 400, 40
QUESTIONS = 200
ALL_GRAPHS = {**GRAPHS, "echo-tail": NET, "echo-whole": NET}


async def run_benchmark(folder: Path, _bundle: Path) -> list[Figure]:
    """Return the figures."""
    installed = MLSERVER.is_installed()
    name = MLSERVER.packages[0].replace("==", " ") if installed else "the shipped double"
    server: MlServer | V2Server
    server = MlServer(folder / "graphs", ALL_GRAPHS) if installed else V2Server(ALL_GRAPHS)
    await asyncio.to_thread(server.start)
    try:
        added = await asyncio.to_thread(_measure_added, folder, server.url, name)
        return [added, *await _measure_killed(folder, server, name)]
    finally:
        await asyncio.to_thread(server.kill)


def _measure_added(folder: Path, url: str, name: str) -> Figure:
    """One question at a time, here and there by turns."""
    there = RemoteServer(url, "digits-tail", "digits-whole")
    remote = open_engine(golden_bundle(folder), EngineOptions(max_batch=8, remote={"digits": there}))
    local = open_engine(golden_bundle(folder), EngineOptions(max_batch=8))
    taken: dict[Engine, list[float]] = {local: [], remote: []}
    asked = questions(1)[:1]
    for number in range(WARM + ROUNDS):
        for engine, found in taken.items():
            began = time.perf_counter()
            engine.infer(asked)
            if number >= WARM:
                found.append(time.perf_counter() - began)
    remote.stop()
    local_ms, remote_ms = (find_median(each) * 1e3 for each in taken.values())
    terms = (f"in this process {local_ms:.2f} ms", f"by {name} {remote_ms:.2f} ms")
    return Figure(
        f"remote engine over the same ONNX in process, p50 ({name})", remote_ms - local_ms, "ms", 2.0, terms=terms
    )


async def _measure_killed(folder: Path, server: MlServer | V2Server, name: str) -> list[Figure]:
    """Kill it while questions of a device wait; start it again at the same port once the hub has noticed."""
    there = RemoteServer(server.url, "echo-tail", "echo-whole", answer_s=30.0)
    options = EngineOptions(max_batch=4, remote={"echo@1": there})
    engine = await asyncio.to_thread(open_engine, echo_bundle(folder), options)
    device = SimDevice()
    async with serving(folder, device, engine=engine) as site:
        ear = await Ear.listen(device, site.broker)
        ear.ask(*range(1, QUESTIONS // 2 + 1))
        answered = list(await ear.verdicts(1, within_s=60))
        await asyncio.to_thread(server.kill)
        ear.ask(*range(QUESTIONS // 2 + 1, QUESTIONS + 1))
        async with asyncio.timeout(60):
            while not site.hub.status()["engines_down"]:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_hear_all(ear, answered), 120)
    lost = QUESTIONS - len(set(answered))
    doubled = len(answered) - len(set(answered)) + max(0, effects_in(folder) - QUESTIONS)
    terms = (f"{QUESTIONS} questions, {name} killed and started again",)
    return [
        Figure("remote engine killed under load: questions lost", lost, "questions", 0.0, terms=terms),
        Figure("remote engine killed under load: answered twice", doubled, "questions", 0.0),
    ]


async def _hear_all(ear: Ear, answered: list[int]) -> None:
    """Append every verdict's number as it comes, until each question has one."""
    while len(set(answered)) < QUESTIONS:
        answered += [reply[0] for reply in await ear.heard() if isinstance(reply, tuple)]
