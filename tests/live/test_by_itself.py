"""Nothing is sent, asked or written but what docs/running.md lists: each program under `strace`, with a new home."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from models.bundle.bundle import Bundle
from simulations.processes import ProcessHarness
from tests import ROOT
from tests.live.doubles.fleet import QUICK, ask, policy, samples, settle
from tests.live.doubles.strace import Behaviour, Tracer, find_unlisted
from tests.live.test_docs import MY_PKG

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
PAGE = ROOT / "docs" / "running.md"
SKERRY = Path(sys.executable).with_name("skerry")
FORGE = ("my_pkg:build_model", "--data", "my_pkg:samples", "--effort", "quick", "--out", "mine")
SPREAD = """
import sys, pathlib
import numpy as np
from cloud_hub.engine.factory import open_engine
from cloud_hub.engine.types import EngineOptions, WorkItem
from tests.cloud_hub.doubles.gangs import SHAPES, gang_bundle
if __name__ == "__main__":
    bundle = gang_bundle(pathlib.Path("."), "echo")
    engine = open_engine(bundle.path, EngineOptions(pipeline=2, devices=2, ready_s=300.0))
    x = np.zeros(SHAPES["echo"], np.uint8)
    assert engine.infer([WorkItem({"features": x})])
    engine.stop()
"""
OWN_PROGRAM = """
import sys
from models.bundle.bundle import open_bundle
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner
bundle = open_bundle(sys.argv[1])
check_golden(bundle, OnnxRunner(bundle))
"""
CLIENT = """
import sys
from skerry_client import Agent
with Agent(sys.argv[1]) as agent:
    print(agent.status())
"""


class Unlisted(NamedTuple):
    connections: list[str]
    queries: list[str]
    files: list[str]


def listed() -> dict[str, tuple[list[str], list[str]]]:
    """The page's table: of each program, patterns of what it connects to and of what it writes."""
    part = PAGE.read_text(encoding="utf-8").partition("### By itself")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in part.splitlines() if line.startswith("|")][2:]
    return {
        re.findall(r"`([^`]+)`", row[0])[0]: (re.findall(r"`([^`]+)`", row[1]), re.findall(r"`([^`]+)`", row[2]))
        for row in rows
    }


def judge(program: str, found: Behaviour, tracer: Tracer, state: Path) -> None:
    connections, files = (listed()["every program"][at] + listed()[program][at] for at in (0, 1))
    assert found.calls, "nothing was traced"
    unlisted = Unlisted(
        find_unlisted(found.connections, connections),
        list(found.queries),
        find_unlisted(found.files, [tracer.expand(pattern, state) for pattern in files]),
    )
    assert unlisted == Unlisted([], [], []), f"{program}: {unlisted}"


@pytest.fixture
def tracer(tmp_path: Path) -> Tracer:
    return Tracer(tmp_path / "traced")


def test_the_demo(tracer):
    tracer.run(SKERRY, "demo")
    judge("skerry demo", tracer.read(), tracer, tracer.work)


def test_a_run_of_the_forge(tracer):
    (tracer.work / "my_pkg.py").write_text(MY_PKG)
    tracer.run(SKERRY, "models", "forge", *FORGE)
    judge("skerry models forge", tracer.read(), tracer, tracer.work)


def test_the_simulator(tracer):
    tracer.run(SKERRY, "sim", "run", "partition")
    judge("skerry sim", tracer.read(), tracer, tracer.work)


def test_an_engine_that_is_spread_over_processes(tracer):
    script = tracer.work / "spread.py"
    script.write_text(SPREAD)
    tracer.run(sys.executable, script)
    judge("an engine over several processes", tracer.read(), tracer, tracer.work)


def test_your_own_program_that_runs_a_bundle(tracer, bundle: Bundle):
    tracer.run(sys.executable, "-c", OWN_PROGRAM, bundle.path)
    judge("your own program with a bundle", tracer.read(), tracer, tracer.work)


async def test_a_hub_and_an_agent_that_fetches_updates_asks_and_is_asked(tracer, tmp_path, bundle: Bundle):
    async with ProcessHarness(tmp_path / "stage") as stage:
        stage.folder.mkdir()
        hub = await stage.configure_hub(bundle.path, policies=[policy(tmp_path)])
        hub.child.python = str(tracer.make_interpreter("hub"))
        await stage.launch_hub()
        agent = await stage.add_agent("cam", "tuf:digits", "tuf:live", QUICK)
        agent.child.python = str(tracer.make_interpreter("agent"))
        await stage.start_agent(agent)
        for sample in samples(3):
            await ask(stage, agent, bundle, sample)
        await settle(stage)
        tracer.run(sys.executable, "-c", CLIENT, agent.url)
    judge("python -m edge_agent", tracer.read("agent"), tracer, agent.folder)
    judge("python -m cloud_hub", tracer.read("hub"), tracer, hub.folder)
    judge("a program with skerry_client", tracer.read(), tracer, tracer.work)
