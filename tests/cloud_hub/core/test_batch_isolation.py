"""Samples that make an engine fail cost their own sender: the batches of others stay whole, and have their share."""

from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.core.commands import LOCAL, BatchItem, CheckEngine, QuestionKey, RunBatch
from cloud_hub.core.scheduler import Batcher
from cloud_hub.engine.types import WorkItem
from policies.serving.batching import BatchCost
from policies.serving.isolation import FIRST_S
from tests.cloud_hub.doubles.devices import CARD

MODEL, MOST, HOSTILE = CARD.name, 8, 10
COST = BatchCost(0.05, 0.001)


class Engine:
    """A batcher, and an engine in virtual time that fails each batch with a sample that is poisoned."""

    def __init__(self) -> None:
        self.batcher = Batcher([msgspec.structs.replace(CARD, max_batch=MOST, slots=1)], MOST)
        self.batcher.expect_cost(MODEL, COST)
        self.now = 100.0
        self.number = 0
        self.poisoned: set[BatchItem] = set()
        self.refused: list[BatchItem] = []
        self.answered: list[BatchItem] = []
        self.batches: list[tuple[BatchItem, ...]] = []
        self.spent_s: defaultdict[str, float] = defaultdict(
            float
        )  # by tenant, of batches of its items alone, with checks

    def put(self, tenant: str, count: int = 1, *, poisoned: bool = False, web: bool = False, **how: object) -> None:
        for _ in range(count):
            self.number += 1
            device = LOCAL if web else f"{tenant}--d"
            key = QuestionKey(device, 1, self.number)
            item = BatchItem(key, WorkItem(), self.now, tenant=tenant, flow="key", **how)  # type: ignore[arg-type]
            if poisoned:
                self.poisoned.add(item)
            (self.batcher.add_web_item if web else self.batcher.add_item)(MODEL, item)

    def step(self) -> bool:
        """Run the next batch; False if there is none."""
        commands = [each for each in self.batcher.next_commands(self.now) if isinstance(each, RunBatch)]
        for command in commands:
            self.batches.append(command.items)
            seconds = COST.predict_seconds(float(len(command.items)))
            failed = not self.poisoned.isdisjoint(command.items)
            self._spend(command.items, seconds)
            if not failed:
                self.batcher.finish_batch(command.ticket, seconds)
                self.answered += command.items
                continue
            checks = self.batcher.on_batch_failed(command.ticket)
            for check in checks:
                assert isinstance(check, CheckEngine)
                self._spend(command.items, COST.predict_seconds(1.0))
                self.refused += self.batcher.on_checked(MODEL, works=True, now=self.now)
        return bool(commands)

    def _spend(self, items: tuple[BatchItem, ...], seconds: float) -> None:
        self.now += seconds
        tenants = {item.tenant for item in items}
        self.spent_s[tenants.pop() if len(tenants) == 1 else "several"] += seconds

    def broken_batches(self, tenant: str) -> int:
        """Batches of a tenant's items beside poisoned ones of others."""
        return sum(
            any(item.tenant == tenant for item in batch) and not self.poisoned.isdisjoint(batch)
            for batch in self.batches
        )


def attack(engine: Engine, seconds: float, *, share: int = 1, web: bool = False) -> None:
    """Keep ten hostile tenants' queues, and an honest one's, from running empty; each `share`-th sample is poisoned."""
    until = engine.now + seconds
    queue = engine.batcher.find_queue(MODEL)
    assert queue is not None
    while engine.now < until:
        open_items = Counter(item.tenant for item in queue._waiting)
        for tenant in ("honest", *(f"hostile-{n}" for n in range(HOSTILE))):
            for number in range(2 * MOST - open_items[tenant]):
                hostile = tenant != "honest"
                poisoned = hostile and number % share == 0
                engine.put(tenant, poisoned=poisoned, web=web)
        assert engine.step()


@pytest.mark.parametrize("web", [False, True], ids=["devices", "web requests"])
@pytest.mark.parametrize("share", [1, 3, 16], ids=["all poisoned", "a third", "a sixteenth"])
def test_ten_tenants_of_samples_that_fail_leave_an_honest_one_its_batches_and_its_share(share: int, web: bool):
    engine = Engine()
    attack(engine, 20.0, share=share, web=web)
    before = len(engine.answered)
    assert engine.broken_batches("honest") <= 4 * HOSTILE
    engine.batches.clear()
    engine.spent_s.clear()
    attack(engine, 20.0, share=share, web=web)
    assert engine.broken_batches("honest") == 0, "its batches stay whole"
    honest = [batch for batch in engine.batches if any(item.tenant == "honest" for item in batch)]
    assert sum(len(batch) for batch in honest) >= 0.9 * MOST * len(honest)
    assert engine.spent_s["honest"] >= 0.9 * 20.0 / (HOSTILE + 1), "its share of the engine's time"
    assert len(engine.answered) > before


PUTS = st.lists(
    st.tuples(
        st.sampled_from(["honest", "hostile-1", "hostile-2"]),
        st.integers(1, 12),
        st.booleans(),
        st.sampled_from([{}, {"background": True}, {"web": True}, {"band": 0}]),
        st.sampled_from([0.0, 1.0, FIRST_S]),
    ),
    max_size=12,
)


@settings(max_examples=60)
@given(PUTS)
def test_only_samples_that_fail_alone_are_refused_and_none_is_lost_or_computed_after_it_ended(
    puts: list[tuple[Any, ...]],
):
    engine = Engine()
    for tenant, count, poisoned, how, later_s in puts:
        engine.now += later_s
        engine.put(tenant, count, poisoned=poisoned and tenant != "honest", **how)
        for _ in range(count // 3):
            engine.step()
    while engine.step():
        pass
    assert set(engine.refused) == engine.poisoned
    assert len(engine.answered) + len(engine.refused) == engine.number
    assert len({*engine.answered, *engine.refused}) == engine.number
    assert engine.batcher.queued_by_model() == {MODEL: 0}


def test_a_sender_of_one_bad_sample_is_batched_with_others_again_after_a_while():
    engine = Engine()
    engine.put("hostile", poisoned=True)
    while engine.step():
        pass
    for later_s, together in ((0.0, False), (FIRST_S, True)):
        engine.now += later_s
        engine.put("hostile", 2)
        engine.put("honest", 2)
        engine.batches.clear()
        while engine.step():
            pass
        assert [len(batch) for batch in engine.batches] == ([4] if together else [2, 2])


def test_waiting_jobs_of_a_sender_that_failed_take_no_place_of_a_batch_of_others():
    engine = Engine()
    engine.put("hostile", poisoned=True, background=True)
    while engine.step():
        pass
    engine.put("hostile", MOST, background=True)
    for _ in range(60):
        engine.put("honest", 2 * MOST)
        engine.batches.clear()
        engine.step()
        assert {len(batch) for batch in engine.batches} == {MOST}
        assert {item.tenant for batch in engine.batches for item in batch} == {"honest"}
    while engine.step():
        pass
    assert sum(item.tenant == "hostile" for item in engine.answered) == MOST


def test_a_model_that_is_unloaded_computes_the_repeats_of_a_sender_that_failed_first():
    engine = Engine()
    engine.put("hostile", poisoned=True)
    while engine.step():
        pass
    engine.put("hostile", 3)
    engine.put("hostile", poisoned=True)
    engine.batcher.unload(MODEL)
    while engine.step():
        pass
    assert len(engine.answered) == 3
    assert len(engine.refused) == 2
