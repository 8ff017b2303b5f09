"""The process is ended, or the disk refuses, at each named point of a real install: the next process finds a model."""

import json
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

from models.update.floors import commit_floor
from tests import ROOT
from tests.edge_agent.doubles.install_kills import list_points
from tests.edge_agent.doubles.installing import make_assignment
from tests.edge_agent.doubles.updates_bench import UpdateBench, open_bench

FEW = ("store_rename_slot", "load", "roll_back")


@pytest.fixture
def device(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


def results(device: UpdateBench, mode: str, *wanted: str) -> dict[str, dict[str, Any]]:
    """Version 1 is committed, version 2 is assigned; what became of it for each point."""
    device.publish_bundle(1)
    base = device.folder / "lives"
    first = device.run_worker().current
    assert first
    commit_floor(device.store / "metadata", first)
    device.store.rename(device.folder / "kept")
    base.mkdir()
    (device.folder / "kept").rename(base / "installed")
    device.publish_bundle(2)
    order = make_assignment(device, 1, 2, now_ms=time.time_ns() // 1_000_000, soak_s=0.0, min_inferences=0)
    facts = {"job": msgspec.json.encode(device.make_job()).decode(), "assignment": msgspec.json.encode(order).decode()}
    file = device.folder / "facts.json"
    file.write_text(json.dumps(facts))
    words = [sys.executable, "-m", "tests.edge_agent.doubles.install_kills", str(base), str(file), mode, *wanted]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def check_killed(found: dict[str, dict[str, Any]]) -> None:
    for at, facts in found.items():
        assert facts["said"] == "killed", (at, facts)
        back = at in ("roll_back", "in_rolling_back", "before_rolled_back", "in_rolled_back")
        assert facts["serves"] in ((1,) if back else (1, 2)), (at, facts)
        rest = (facts["state"], facts["trial"], facts["candidate"], facts["litter"], facts["same"])
        assert rest == ("idle", False, False, 0, True), (at, facts)
        ended = {1: "rolled_back", 2: "committed"}[facts["serves"]]
        assert facts["ended"] == ended or (at == "before_checking" and not facts["ended"]), (at, facts)


@pytest.mark.further
def test_cases_19_and_41_killed_at_some_named_points_the_next_process_ends_with_a_model_that_serves(device):
    found = results(device, "kill", *FEW)
    assert len(found) == len(FEW)
    check_killed(found)


@pytest.mark.heavy
def test_cases_19_and_41_killed_at_every_named_point_the_next_process_ends_with_a_model_that_serves(device):
    found = results(device, "kill")
    assert len(found) == len(list_points("kill"))
    check_killed(found)


@pytest.mark.heavy
def test_a_disk_that_is_full_in_download_sync_and_rename_is_failed_disk_and_the_old_model_serves(device):
    wanted = ("store_unpack", "store_sync_slot", "store_rename_slot", "store_sync_index", "store_rename_index")
    for at, facts in results(device, "full", *wanted).items():
        assert facts["said"] == "failed disk met", (at, facts)
        assert (facts["serves"], facts["state"], facts["trial"], facts["litter"]) == (1, "idle", False, 0), (at, facts)


@pytest.mark.heavy
def test_a_disk_that_is_full_at_any_named_point_leaves_a_model_that_serves(device):
    for at, facts in results(device, "full").items():
        assert facts["serves"] in (1, 2), (at, facts)
        assert (facts["state"], facts["trial"], facts["litter"], facts["same"]) == ("idle", False, 0, True), (at, facts)
