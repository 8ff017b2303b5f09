"""Benchmark: the hub of another checkout and of this one in turns: processor time for a verdict and for an HTTP answer.

    python -m benchmarks.hub.compare BEFORE [--rounds 4]

Broker, senders and client are this checkout's in both; only the hub's process is the other one's. What counts is the
ratio of the medians: rates are worth nothing on a machine that does other work.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness.benchmark import run_measured
from benchmarks.harness.figures import US, Figure
from benchmarks.harness.rig import ROOT, BenchmarkRig, read_line, run_child
from benchmarks.hub import sealed
from benchmarks.hub.engines import CARD
from benchmarks.hub.load import HttpTarget
from benchmarks.hub.peers import V2
from edge_agent.identity.identity import Identity

DEVICES, ROUNDS, LIMIT = 8, 4, 1.03
ROWS = {"8 x 32 under way": (8, 32, 200), "8 x 4 under way": (8, 4, 200), "one at a time": (1, 1, 60)}
HTTP = "an HTTP answer"


async def compare_hubs(folder: Path, bundle: Path, before: Path, rounds: int) -> list[Figure]:
    """Processor time of this checkout's hub over that of another one, by row."""
    found: dict[tuple[str, str], list[float]] = {}
    async with BenchmarkRig(folder, bundle) as rig:
        async with rig.run_hub():
            devices = await rig.enrol_devices(DEVICES)
        for side, tree in _order_turns(before, rounds):
            for row, seconds in (await _measure_hub(rig, devices, tree)).items():
                found.setdefault((row, side), []).append(seconds * US)
    return [_make_figure(row, found[row, "before"], found[row, "now"]) for row in (*ROWS, HTTP)]


def _order_turns(before: Path, rounds: int) -> Iterator[tuple[str, Path]]:
    """Each side comes first in every other round."""
    for turn in range(rounds):
        pair = [("before", before), ("now", ROOT)]
        yield from pair if turn % 2 == 0 else reversed(pair)


async def _measure_hub(rig: BenchmarkRig, devices: Sequence[Identity], tree: Path) -> dict[str, float]:
    """Seconds of the hub's processor for each answer."""
    words = (str(rig.state.root), *rig.as_hub)
    async with run_child("benchmarks.hub.server", *words, log=rig.folder / "compare.log", tree=tree) as hub:
        target = HttpTarget(f"{await read_line(hub)}/v2/models/{CARD.ref.name}/infer", json.dumps(V2).encode())
        await sealed.measure_mqtt(rig, list(devices[:2]), hub.pid, 8, 60)  # the first questions are looked up
        spent = {
            row: (await sealed.measure_mqtt(rig, list(devices[:count]), hub.pid, window, each)).hub_s
            for row, (count, window, each) in ROWS.items()
        }
        return {**spent, HTTP: (await sealed.measure_http(target, hub.pid)).hub_s}


def _make_figure(row: str, before: list[float], now: list[float]) -> Figure:
    each = ", ".join(f"{a / b:.2f}" for a, b in zip(now, before, strict=True))
    terms = (f"before {median(before):,.0f} us, now {median(now):,.0f} us; rounds: {each}",)
    return Figure(
        f"hub's processor time, {row}: now over before", median(now) / median(before), "x", LIMIT, terms=terms
    )


def main() -> int:
    """0 if no row takes more than before."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub.compare", description=__doc__)
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    found = run_measured("compare", lambda folder, bundle: compare_hubs(folder, bundle, asked.before, asked.rounds))
    for figure in found:
        print(f"{figure.name}: {figure.value:.2f} {figure.unit}", *figure.terms, sep="\n    ")
    return 0 if all(figure.held for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
