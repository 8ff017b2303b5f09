"""Crash loop: a model passes every test and crashes the process with its first real sample; a real agent, no hub."""

import time

import pytest

from edge_agent.update.recovery import InstallTable
from models.update.floors import FloorDatabase, Quarantine
from models.update.slots import Store
from tests.edge_agent.app.test_process import address, ended, running
from tests.edge_agent.app.test_process_updates import waited
from tests.edge_agent.doubles.deadly import DEADLY, assign_deadly, crash_once, request_answer
from tests.edge_agent.doubles.installing import make_assignment
from tests.edge_agent.doubles.updates_bench import open_bench
from wire.process.packages import read_version
from wire.protocol.rollout import InstallState


@pytest.fixture
def device(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


@pytest.mark.heavy
def test_cases_38_and_39_a_model_that_crashes_in_its_first_inference_is_gone_after_three_tries_without_a_hub(device):
    config = assign_deadly(device, 2)
    for left in (2, 1, 0):
        crash_once(config)
        row = InstallTable(device.store).read_row()
        assert row.state in (InstallState.ACTIVATING, InstallState.PROBATION)
        assert row.attempts == left + 1
    with running(config) as process:
        place = address(config, process)
        assert request_answer(place, DEADLY)["model_version"] == "1"
        status = waited(place, lambda status: status["install"]["state"] == "idle")
        assert (status["model"], status["install"]["last"]) == ("echo@1", "rolled_back r1")
        assert status["link"] == "down"
        assert ended(process)[0] == 0
    with Store(device.store) as store, FloorDatabase(device.store / "metadata") as floors:
        assert (store.current.version if store.current else 0, store.on_trial, store.candidate) == (1, False, None)
        assert floors.read_floors()["target/models/echo"].version == 1
        digest = make_assignment(device, 1, 2, now_ms=0).digest
        assert Quarantine(store.metadata, read_version()).is_banned(digest, time.time_ns() // 1_000_000)
