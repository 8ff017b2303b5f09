"""Benchmark: what a verdict costs the hub in a session beside one whose question and verdict are sealed by themselves.

`python -m benchmarks.hub.sessions`, two minutes. One hub and one broker; both ways take turns, each first in every
other round. What counts is the ratio of the medians of the hub's processor time; rates are worth nothing on a machine
that does other work.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import US, Figure
from benchmarks.harness.rig import BenchmarkRig, read_line, run_child
from benchmarks.hub.sealed import measure_mqtt

DEVICES, ROUNDS, LIMIT = 8, 5, 0.75
ROWS = {"8 x 32 under way": (8, 32, 200), "8 x 4 under way": (8, 4, 200), "one at a time": (1, 1, 60)}


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """The hub's processor time for a verdict in sessions over without, by row."""
    found: dict[tuple[str, bool], list[float]] = {(row, way): [] for row in ROWS for way in (False, True)}
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        async with run_child("benchmarks.hub.server", str(rig.state.root), *rig.as_hub, log=folder / "hub.log") as hub:
            await read_line(hub)
            await measure_mqtt(rig, devices, hub.pid, 8, 40)  # the first questions are looked up
            for row, in_session in _order_turns():
                count, window, each = ROWS[row]
                spent = await measure_mqtt(rig, devices[:count], hub.pid, window, each, in_session=in_session)
                found[row, in_session].append(spent.hub_s * US)
    return [_make_figure(row, found[row, False], found[row, True]) for row in ROWS]


def _order_turns() -> Iterator[tuple[str, bool]]:
    """Every row by both ways in each round; each way comes first in every other one."""
    for turn in range(ROUNDS):
        for way in (False, True) if turn % 2 == 0 else (True, False):
            yield from ((row, way) for row in ROWS)


def _make_figure(row: str, signed: list[float], in_session: list[float]) -> Figure:
    rounds = ", ".join(f"{a / b:.2f}" for a, b in zip(in_session, signed, strict=True))
    terms = (
        f"signed one by one {median(signed):,.0f} us, in a session {median(in_session):,.0f} us; rounds: {rounds}",
    )
    name = f"hub's processor time of a verdict, {row}: in a session over signed one by one"
    return Figure(name, median(in_session) / median(signed), "x", LIMIT if "32" in row else 1.0, terms=terms)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
