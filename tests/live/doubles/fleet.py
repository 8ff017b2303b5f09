"""Drives the agents of a stage: samples in, then wait until every question has its outcome."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from models.bundle.bundle import Bundle
from models.forge.data.digits import corrupt_pictures, load_heldout
from simulations.checking.databases import judge_run
from simulations.checking.events import HistoryReport
from simulations.processes import AgentHandle, ProcessHarness

POLICY = """
schema = 2
name = "live"
version = 1
issued = 2026-01-01
expires = 2099-12-31
[escalation]
mode = "{mode}"
threshold = 0.9
audit_share = 0.0
budget_s = {budget_s}
[egress]
ceiling = "P2"
[[egress.field]]
name = "features"
level = "P2"
[egress.data_class]
open = true
private = false
[locality]
hubs = ["hub-1"]
regions = ["local"]
[retention]
purpose = "test"
[budget]
bytes_per_day = 100_000_000
"""
CANARY = "CANARY"  # planted in what callers say; the stage of every live test is searched for it at the end
QUICK = {"link": {"reconnect_base_s": 0.2, "reconnect_cap_s": 1.0}, "outbox": {"ask_interval_s": 5.0}}
SETTLE_S = 240.0
BUSY_S = 120.0  # for what takes a second on a quiet machine
PATIENT_S = 60.0  # a budget for tests that want the hub's answer however slow the machine is


def policy(folder: Path, mode: str = "hub_first", budget_s: float = 0.5) -> Path:
    """`hub_first` asks about every sample."""
    path = folder / "policy.toml"
    path.write_text(POLICY.format(mode=mode, budget_s=budget_s))
    return path


def samples(count: int, seed: int = 3) -> list[Any]:
    x, _ = load_heldout()
    x = corrupt_pictures(x, np.random.default_rng(seed), 0.5)
    return [x[i % len(x)] for i in range(count)]


async def ask(stage: ProcessHarness, agent: AgentHandle, bundle: Bundle, x: Any, **more: Any) -> dict[str, Any]:
    """One inference; the response's parameters."""
    tensor = {
        "name": bundle.manifest.input.name,
        "shape": [1, *x.shape],
        "datatype": "FP32",
        "data": x.ravel().tolist(),
    }
    body = {"id": f"{CANARY}-request", "inputs": [tensor], **more}
    async with stage.session.post(f"{agent.url}/v2/models/{bundle.manifest.name}/infer", json=body) as response:
        reply = await response.json()
        assert response.status == 200, reply
        return dict(reply["parameters"])


async def burst(
    stage: ProcessHarness, agent: AgentHandle, bundle: Bundle, xs: list[Any], at_once: int = 8
) -> list[dict[str, Any]]:
    """Every sample, `at_once` callers side by side; what each was answered."""
    queue = list(reversed(xs))
    answers: list[dict[str, Any]] = []

    async def caller() -> None:
        while queue:
            answers.append(await ask(stage, agent, bundle, queue.pop()))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(caller())
    return answers


async def until(test: Callable[[], object], within_s: float = BUSY_S) -> None:
    """Look until it is so."""
    end = time.monotonic() + within_s
    while not test():
        assert time.monotonic() < end, "it does not come to pass"
        await asyncio.sleep(0.01)


async def the_hub_answers(stage: ProcessHarness, agent: AgentHandle, bundle: Bundle) -> bool:
    """Within two minutes. What a status says of a link may be older than what a test did to the broker."""
    for sample in samples(120):
        if (await ask(stage, agent, bundle, sample))["source"] == "hub":
            return True
        await asyncio.sleep(1.0)
    return False


async def settle(stage: ProcessHarness, timeout_s: float = SETTLE_S) -> None:
    """Until no running agent has an open question."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        states = [await stage.fetch_status(agent) for agent in stage.agents if agent.child.running]
        if not any(state["open"] for state in states):
            return
        await asyncio.sleep(0.1)
    raise AssertionError([(s["open"], s["in_flight"], s["receipted"], s["counts"]) for s in states])


def judged(stage: ProcessHarness) -> HistoryReport:
    assert stage.hub is not None
    return judge_run([agent.database for agent in stage.agents], stage.hub.questions)
