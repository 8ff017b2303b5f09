"""Microseconds that were measured while others had the processor are told with that."""

import time

import msgspec
import numpy as np

from models.cli.compare import format_figures
from models.forge.export.benchmark import compare_graphs
from models.forge.timing import LoadMeter
from tests.models.bundles import write_bundle
from tests.models.conftest import contents, echo_graph, make


def spin(seconds: float) -> None:
    """Use the processor for so long, in its own time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_loop_that_waits_for_a_processor_is_busy():
    with LoadMeter() as load:
        spin(0.005)
        time.sleep(0.05)
    assert load.busy


def test_a_loop_that_had_the_processor_to_itself_is_not_busy(monkeypatch):
    for clock in ("perf_counter", "process_time"):  # of a machine that never lets a loop wait
        monkeypatch.setattr(time, clock, iter((3.0, 3.5)).__next__)
    with LoadMeter() as load:
        pass
    assert (load.wall_s, load.busy) == (0.5, False)


def test_time_between_loops_does_not_count():
    load = LoadMeter()
    began = time.perf_counter()
    for _ in range(3):
        with load:
            spin(0.001)
        time.sleep(0.03)
    assert load.wall_s <= time.perf_counter() - began - 0.09


def test_graphs_that_are_compared_share_one_verdict_on_the_load():
    first, second = compare_graphs([echo_graph(), echo_graph(2.0)], np.zeros((1, 10), np.float32), most_s=0.05)
    assert first.busy is second.busy


def test_a_bundle_forged_on_a_busy_machine_says_so(tmp_path):
    bundle = make(tmp_path / "echo-1")
    precision = bundle.manifest.target.precision
    for busy, told in (
        ([precision], "12 us where it was forged, measured on a busy machine"),
        ([], "12 us where it was forged"),
    ):
        report = msgspec.json.encode({"p50_us": {precision: 12.3}, "busy": busy})
        found = write_bundle(tmp_path / f"known-{len(busy)}", bundle.manifest, contents(), report)
        assert format_figures(found)["p50"] == told
