"""Joules of graphics cards: shared by engine seconds, idle apart, together what the counters say. No card is needed."""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.engine.base import EchoEngine
from cloud_hub.engine.card_energy import open_energy_counters
from cloud_hub.engine.types import EngineSetup
from cloud_hub.serving import energy
from cloud_hub.serving.energy import IDLE_MODEL, EnergyLedger, EnergyUser
from cloud_hub.storage.costs import CostKind, Usage, read_costs_aside
from policies.serving.capacity import CardMemory
from policies.serving.fair_queue import extract_tenant
from policies.serving.placement import GIB
from tests.cloud_hub.doubles.devices import CARD, SimDevice
from tests.cloud_hub.doubles.nvml import Nvml
from tests.cloud_hub.doubles.site import Ear, serving
from tests.examples import further

CARDS = tuple(CardMemory(index, "card", 24 * GIB, 20 * GIB) for index in range(2))
ACME, CLINIC = EnergyUser("acme", "digits@1", "eu"), EnergyUser("clinic", "chat", "eu")
DAY = 20_000
NOON = (DAY * 24 + 12) * 3600.0


def joules(used: list[Usage]) -> dict[tuple[str, str], int]:
    sums: Counter[tuple[str, str]] = Counter()
    for each in used:
        assert (each.day, each.region, *each.amounts) == (DAY, "eu", CostKind.JOULES)
        sums[each.tenant, each.model] += each.amounts[CostKind.JOULES]
    return dict(sums)


def test_energy_is_shared_by_engine_seconds_and_what_nobody_used_is_idle():
    ledger = EnergyLedger("eu")
    ledger.on_counters({0: 5_000_000, 1: 70_000}, NOON)
    ledger.on_computed(ACME, NOON, NOON + 1.0)
    ledger.on_computed(CLINIC, NOON + 0.25, NOON + 0.75, share=0.5)
    ledger.on_counters({0: 5_300_000, 1: 170_000}, NOON + 4.0)  # 400 J in four seconds
    found = joules(ledger.settle(NOON + 4.0))
    assert found == {("acme", "digits@1"): 80, ("clinic", "chat"): 20, ("", IDLE_MODEL): 300}


def test_an_answer_of_a_minute_gets_the_energy_of_its_minute_though_it_is_reported_at_its_end():
    ledger = EnergyLedger("eu")
    for second in range(61):
        ledger.on_counters({0: 200_000 * second}, NOON + second)
        assert ledger.settle(NOON) == []  # it began then, and is being answered
    ledger.on_computed(CLINIC, NOON, NOON + 60)
    assert joules(ledger.settle(NOON + 60)) == {("clinic", "chat"): 12_000}


def test_a_counter_that_went_back_or_is_not_there_costs_nothing():
    ledger = EnergyLedger("eu")
    for second, told in enumerate(({0: 9_000, 1: 1_000}, {0: 10_000}, {0: 12_000, 1: 90_000}, {0: 500, 1: 91_000})):
        ledger.on_counters(told, NOON + second)
    assert joules(ledger.settle(NOON + 9)) == {("", IDLE_MODEL): 1 + 2 + 1}


@given(
    st.lists(st.integers(0, 700_000), min_size=1, max_size=30),
    st.lists(
        st.tuples(st.sampled_from([ACME, CLINIC]), st.floats(0, 30), st.floats(0, 30), st.floats(0.01, 1)), max_size=20
    ),
)
def test_lines_of_the_bill_are_what_the_counters_say_to_a_joule_each(spent, spans):
    ledger = EnergyLedger("eu")
    ledger.on_counters({0: 0}, NOON)
    for user, begin, seconds, share in spans:
        ledger.on_computed(user, NOON + begin, NOON + begin + seconds, share)
    for second in range(len(spent)):
        ledger.on_counters({0: sum(spent[: second + 1])}, NOON + second + 1)
    billed = sum(joules(ledger.settle(NOON + 100)).values())
    assert sum(spent) / 1000 - 3 - 1e-6 <= billed <= sum(spent) / 1000 + 1e-6


def test_cards_without_a_counter_or_a_driver_are_left_out(monkeypatch):
    driver = Nvml(CARDS)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    counters = open_energy_counters()
    assert counters is not None
    driver.millijoules = [7, None]
    assert counters.read() == {0: 7}
    driver.millijoules = [None, None]
    assert open_energy_counters() is None
    driver.broken = True
    assert open_energy_counters() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_energy_counters() is None


class HundredWatts:
    """The counter of a card that needs 100 W; `reads`: how often it was asked."""

    reads = 0

    def read(self) -> dict[int, int]:
        self.reads += 1
        return {0: int(time.time() * 100_000)}


@pytest.mark.parametrize("device", ["cuda:0", further("cpu")])
async def test_a_hub_bills_joules_to_who_asked_if_a_card_computed_and_else_as_idle(tmp_path: Path, monkeypatch, device):
    monkeypatch.setattr(energy, "READ_S", 0.01)
    counters, asker = HundredWatts(), SimDevice()
    engine = EchoEngine(CARD, compute_s=0.1)
    engine.setup = EngineSetup(device)
    async with serving(tmp_path, asker, engine=engine, energy=counters) as site:
        ear = await Ear.listen(asker, site.broker)
        await until_read(counters)
        ear.ask(1)
        await ear.verdicts(1, within_s=60)
        await until_read(counters)
    found = [each for each in read_costs_aside(site.settings.database_url, 0) if each.kind == CostKind.JOULES]
    models = {(each.tenant, each.model) for each in found if each.amount > 0}
    own = (extract_tenant(asker.id), "echo@1")
    assert (own in models) == (device == "cuda:0")
    assert models <= {own, ("", IDLE_MODEL)}


async def until_read(counters: HundredWatts) -> None:
    """Wait for a read that began after now."""
    seen = counters.reads
    async with asyncio.timeout(60):
        while counters.reads < seen + 2:
            await asyncio.sleep(0.005)
