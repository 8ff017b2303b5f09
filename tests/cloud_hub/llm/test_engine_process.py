"""Engines that the hub starts: never outlive it, are started again, and are given up if they do not get ready."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_hub.llm import engine_process
from cloud_hub.llm.engine_process import EngineProcess, find_reason
from cloud_hub.llm.model import LanguageModel
from cloud_hub.llm.settings import LlmSettings
from simulations.processes import list_children
from tests import ROOT
from tests.cloud_hub.doubles.language_site import QUICK
from tests.examples import SetTimes
from wire.process.logging import JsonLog

ECHO = (sys.executable, "-m", "cloud_hub.llm.echo", "--port", "{port}")
# An engine with a child of its own, as vLLM has; neither ends when it is asked to.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    with open(sys.argv[1], "w") as file:
        file.write(f"{os.getpid()} {child}")
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch, set_times: SetTimes) -> None:
    """The engine is started in the working directory, and is a module of this project. Its times are short."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    set_times(engine_process, GRACE_S=0.3, FIRST_WAIT_S=0.05)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not look():
            await asyncio.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def settings(*command: str, start_s: float = 120.0) -> LlmSettings:
    return LlmSettings(name="echo", command=command, start_s=start_s, **QUICK)


async def test_a_started_engine_gets_ready_is_started_again_when_it_dies_and_ends_with_the_hub():
    log = io.StringIO()
    model = LanguageModel(settings(*ECHO), "", lambda record: None, JsonLog(log))
    running = asyncio.create_task(model.run())
    await until(lambda: model.ready)
    assert model.engine is not None
    guard = model.engine.pid
    (engine,) = list_children(guard, Path(sys.executable).name)
    os.kill(engine, signal.SIGKILL)
    await until(lambda: not model.ready)
    await until(lambda: model.ready and model.engine is not None and model.engine.starts == 2)
    (second,) = list_children(model.engine.pid, Path(sys.executable).name)
    running.cancel()
    await asyncio.wait({running})
    assert is_gone(second)
    died = next(line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "llm_engine_died")
    assert died["code"] == 128 + signal.SIGKILL


async def test_wrong_options_are_told_in_one_line_and_nothing_gets_ready():
    log = io.StringIO()
    engine = EngineProcess(settings(*ECHO, "--tensor-paralel", "2"), "", lambda: False, JsonLog(log))
    running = asyncio.create_task(engine.run())
    await until(lambda: "llm_engine_died" in log.getvalue())
    running.cancel()
    await asyncio.wait({running})
    died = json.loads(log.getvalue().splitlines()[0])
    assert died["code"] == 2
    assert "unrecognized arguments" in died["said"]


def test_the_first_error_is_the_reason_and_not_what_follows_from_it():
    lines = [
        "(EngineCore pid=7) ERROR 11-24 04:00:00 [core.py:866] Traceback (most recent call last):",
        "(EngineCore pid=7) ERROR 11-24 04:00:00 [core.py:866] ValueError: no room for the KV cache of 4096 tokens",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "resource_tracker: There appear to be 1 leaked shared_memory objects",
    ]
    assert find_reason(lines) == "ValueError: no room for the KV cache of 4096 tokens"
    assert find_reason(["usage: serve [--port PORT]", "api_server.py: error: no such option: --pord"]) == (
        "error: no such option: --pord"
    )
    assert find_reason(["loading", "gone"]) == "gone"
    assert find_reason([]) == ""


async def test_a_program_that_is_not_there_is_told_in_one_line():
    log = io.StringIO()
    engine = EngineProcess(settings("/nowhere/vllm", "{port}"), "", lambda: False, JsonLog(log))
    running = asyncio.create_task(engine.run())
    await until(lambda: "llm_engine_died" in log.getvalue())
    running.cancel()
    await asyncio.wait({running})
    assert "nowhere" in json.loads(log.getvalue().splitlines()[0])["said"]


@pytest.mark.further
async def test_an_engine_that_does_not_get_ready_in_time_is_ended_with_its_children(tmp_path: Path):
    log = io.StringIO()
    told = settings(sys.executable, "-c", STUBBORN, str(tmp_path / "pids"), "{port}", start_s=2.0)
    engine = EngineProcess(told, "", lambda: False, JsonLog(log))
    running = asyncio.create_task(engine.run())
    await until(lambda: "llm_engine_died" in log.getvalue())
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    running.cancel()
    await asyncio.wait({running})
    assert "not ready within 2 s" in json.loads(log.getvalue().splitlines()[0])["said"]
    await until(lambda: all(map(is_gone, pids)))


@pytest.mark.further
async def test_an_engine_and_its_children_end_with_a_hub_that_is_killed(tmp_path: Path):
    program = (
        "import asyncio,sys\n"
        "from cloud_hub.llm import engine_process\n"
        "from cloud_hub.llm.settings import LlmSettings\n"
        "from wire.process.logging import JsonLog\n"
        "told = LlmSettings(name='echo', command=tuple(sys.argv[1:]))\n"
        "engine_process.GRACE_S = 0.3\n"
        "asyncio.run(engine_process.EngineProcess(told, '', lambda: True, JsonLog()).run())\n"
    )
    words = [sys.executable, "-c", program, sys.executable, "-c", STUBBORN, str(tmp_path / "pids"), "{port}"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL) as hub:
        await until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert not any(map(is_gone, pids))
        hub.kill()
    await until(lambda: all(map(is_gone, pids)))
