"""Batches of one model and of several: what is abandoned, what fails, engines that are checked, models that go."""

import msgspec
import pytest

from cloud_hub.core.commands import BatchItem, CheckEngine, LoadModel, QuestionKey, RunBatch, UnloadModel
from cloud_hub.core.queues import SWEEP_AT, ModelState
from cloud_hub.core.scheduler import RECHECK_CAP_S, Batcher
from cloud_hub.engine.types import WorkItem
from policies.serving.batching import BatchCost
from tests.cloud_hub.doubles.devices import CARD
from wire.protocol.messages import RefusalReason

MODEL, MOST = CARD.name, 4
OTHER = msgspec.structs.replace(CARD, ref=msgspec.structs.replace(CARD.ref, name="other"))


class Desk:
    """A batcher whose items are waited for until the test says otherwise. Its engine answers when the test says so."""

    def __init__(self, slots: int = 1) -> None:
        self.card = msgspec.structs.replace(CARD, slots=slots, max_batch=MOST)
        self.gone: set[QuestionKey] = set()
        self.batcher = Batcher([self.card], MOST, lambda item: item.key not in self.gone)
        self.number = 0

    def put(self, count: int = 1, model: str = MODEL, now: float = 0.0, **how: object) -> list[BatchItem]:
        items = []
        for _ in range(count):
            self.number += 1
            items.append(BatchItem(QuestionKey("acme--d1", 1, self.number), WorkItem(), now, **how))  # type: ignore[arg-type]
            self.batcher.add_item(model, items[-1])
        return items

    def leave(self, items: list[BatchItem]) -> None:
        for item in items:
            self.gone.add(item.key)
            self.batcher.on_abandoned(MODEL)

    def run(self, now: float = 0.0) -> list[RunBatch]:
        return [command for command in self.batcher.next_commands(now) if isinstance(command, RunBatch)]

    @property
    def waiting(self) -> int:
        return self.batcher.queued_by_model()[MODEL]


def seqs(items: object) -> list[int]:
    return [item.key.seq for item in items]  # type: ignore[attr-defined]


# Abandoned


@pytest.mark.parametrize(("waiting", "unswept"), [(SWEEP_AT + 10, SWEEP_AT), (4 * SWEEP_AT, 2 * SWEEP_AT)])
def test_abandoned_items_leave_the_queue_once_they_are_many_and_half_of_it(waiting: int, unswept: int) -> None:
    desk = Desk()
    items = desk.put(waiting - 1) + desk.put(background=True)
    desk.leave(items[:unswept])
    assert desk.waiting == waiting
    desk.leave(items[-1:])
    assert desk.waiting == waiting - unswept - 1
    desk.leave(items[unswept : unswept + 1])
    assert desk.waiting == waiting - unswept - 1, "the count begins anew"


def test_the_dead_of_every_model_are_removed_on_demand() -> None:
    desk = Desk()
    desk.batcher.add_model(OTHER)
    desk.leave(desk.put(2) + desk.put(background=True))
    desk.gone.update(item.key for item in desk.put(2, OTHER.name))
    desk.batcher.remove_dead()
    assert desk.batcher.queued_by_model() == {MODEL: 0, OTHER.name: 0}


def test_what_was_abandoned_is_neither_computed_nor_tried_again() -> None:
    desk = Desk()
    first, second, third = desk.put(3)
    (batch,) = desk.run()
    assert not desk.batcher.on_batch_failed(batch.ticket)
    desk.leave([second])
    (batch,) = desk.run()
    assert seqs(batch.items) == seqs([first, third])
    desk.batcher.finish_batch(batch.ticket, 0.1)
    (gone,) = desk.put()
    desk.leave([gone])
    assert not desk.run()
    assert desk.waiting == 0


# Failures


def test_a_failed_batch_is_tried_whole_then_one_by_one_and_what_fails_alone_is_returned_if_the_engine_works() -> None:
    desk = Desk()
    items = desk.put(3)
    (batch,) = desk.run()
    assert not desk.batcher.on_batch_failed(batch.ticket)
    assert desk.waiting == 3
    (batch,) = desk.run()
    assert seqs(batch.items) == seqs(items)
    assert not desk.batcher.on_batch_failed(batch.ticket)
    alone = []
    checks = []
    for _ in items:
        (batch,) = desk.run()
        alone += seqs(batch.items)
        if batch.items[0] is items[1]:
            desk.batcher.finish_batch(batch.ticket, 0.1)
            continue
        checks = desk.batcher.on_batch_failed(batch.ticket)
        assert checks == [CheckEngine(MODEL)]
        assert not desk.run(), "nothing runs while the engine is checked"
        assert desk.batcher.on_checked(MODEL, works=True, now=0.0) == batch.items
    assert alone == seqs(items)
    assert not desk.batcher.down_models()


def test_one_check_of_an_engine_is_under_way_at_a_time() -> None:
    desk = Desk(slots=2)
    desk.put(2)
    for batch in desk.run():
        assert not desk.batcher.on_batch_failed(batch.ticket)
    running = desk.run()
    assert [len(batch.items) for batch in running] == [1, 1]
    found = [desk.batcher.on_batch_failed(batch.ticket) for batch in running]
    assert found == [[CheckEngine(MODEL)], []]
    assert len(desk.batcher.on_checked(MODEL, works=True, now=0.0)) == 2


def test_an_engine_that_fails_its_check_is_down_its_items_wait_and_it_is_checked_with_growing_delays() -> None:
    desk = Desk()
    (item,) = desk.put()
    for _ in range(2):
        (batch,) = desk.run()
        checks = desk.batcher.on_batch_failed(batch.ticket)
    assert checks == [CheckEngine(MODEL)]
    now, delays = 100.0, []
    for _ in range(6):
        assert desk.batcher.on_checked(MODEL, works=False, now=now) == ()
        assert (desk.batcher.down_models(), desk.batcher.served_per_s, desk.waiting) == ((MODEL,), 0.0, 1)
        assert not desk.run(now)
        began = now
        while not (commands := desk.batcher.on_wake(now)):
            now += 0.5
        assert commands == [CheckEngine(MODEL)]
        assert not desk.batcher.on_wake(now), "one check at a time"
        delays.append(now - began)
    assert delays == [2.0, 4.0, 8.0, 16.0, RECHECK_CAP_S, RECHECK_CAP_S]
    assert desk.batcher.on_checked(MODEL, works=True, now=now) == ()
    (batch,) = desk.run(now)
    assert batch.items == (item,)
    assert not desk.batcher.down_models()


# Models that come and go


def test_news_of_a_model_that_was_removed_changes_nothing() -> None:
    desk = Desk()
    desk.put(2)
    (batch,) = desk.run()
    desk.batcher.remove_model(MODEL)
    desk.batcher.on_abandoned(MODEL)
    desk.batcher.count_refused(MODEL, 1, RefusalReason.BUSY)
    desk.batcher.on_loaded(MODEL, "", 0.0)
    assert desk.batcher.on_checked(MODEL, works=False, now=0.0) == ()
    assert desk.batcher.on_batch_failed(batch.ticket) == []
    assert desk.batcher.find_queue(MODEL) is None
    assert not desk.batcher.queued_by_model()


def test_a_model_that_is_removed_returns_all_that_waited_for_it() -> None:
    desk = Desk()
    failed = desk.put()
    for _ in range(2):
        (batch,) = desk.run()
        desk.batcher.on_batch_failed(batch.ticket)
    waiting = desk.put(6) + desk.put(2, background=True) + desk.put(deadline=-1.0, hard=True)
    assert sorted(seqs(desk.batcher.remove_model(MODEL))) == sorted(seqs(failed + waiting))


def test_a_model_is_loaded_once_when_work_arrives_and_a_failed_load_is_tried_again_while_work_waits() -> None:
    desk = Desk()
    batcher = desk.batcher
    batcher.add_model(OTHER)
    batcher.add_model(OTHER, ModelState.READY)
    assert batcher.model_state(OTHER.name) is ModelState.COLD, "it was known"
    assert batcher.next_commands(0.0) == []
    desk.put(1, OTHER.name)
    assert batcher.next_commands(0.0) == [LoadModel(OTHER.name)]
    assert batcher.next_commands(0.0) == batcher.load(OTHER.name) == batcher.on_wake(0.0) == []
    batcher.on_loaded(OTHER.name, "no room", 10.0)
    assert batcher.model_states()[OTHER.name] == (ModelState.COLD, "no room")
    assert (batcher.next_commands(10.0), batcher.down_models()) == ([], (OTHER.name,))
    assert batcher.on_wake(11.9) == []
    assert batcher.on_wake(12.0) == [LoadModel(OTHER.name)]
    batcher.on_loaded(OTHER.name, "no room", 12.0)
    assert batcher.on_wake(15.9) == []
    assert batcher.on_wake(16.0) == [LoadModel(OTHER.name)]
    larger = msgspec.structs.replace(OTHER, weight_bytes=77)
    batcher.on_loaded(OTHER.name, "", 16.0, larger)
    assert batcher.model_states()[OTHER.name] == (ModelState.READY, "")
    assert (batcher.down_models(), batcher.weight_bytes(OTHER.name)) == ((), 77)
    assert [command.model for command in batcher.next_commands(16.0)] == [OTHER.name]


def test_a_failed_load_for_which_nothing_waits_any_more_is_not_tried_again() -> None:
    desk = Desk()
    desk.batcher.add_model(OTHER)
    desk.batcher.load(OTHER.name)
    desk.batcher.on_loaded(OTHER.name, "no room", 10.0)
    assert desk.batcher.on_wake(100.0) == []


def test_a_closed_model_computes_what_waited_and_no_more_and_then_it_is_unloaded() -> None:
    desk = Desk()
    before = desk.put(MOST) + desk.put(1, background=True)
    assert desk.batcher.unload(MODEL) == []
    after = desk.put(6)
    computed: list[int] = []
    for _ in range(10):
        commands = desk.batcher.next_commands(0.0)
        if commands == [UnloadModel(MODEL)]:
            break
        for command in commands:
            assert isinstance(command, RunBatch)
            computed += seqs(command.items)
            desk.batcher.finish_batch(command.ticket, 0.1)
    assert len(computed) >= len(before)
    assert desk.batcher.model_state(MODEL) is ModelState.COLD
    assert desk.waiting == len(before) + len(after) - len(computed) > 0
    assert desk.batcher.next_commands(0.0) == [LoadModel(MODEL)], "what is left loads it again"


def test_an_idle_model_is_unloaded_at_once_and_one_that_is_asked_for_again_stays() -> None:
    desk = Desk()
    assert desk.batcher.unload(MODEL) == [UnloadModel(MODEL)]
    assert desk.batcher.unload(MODEL) == [], "it is cold"
    desk = Desk()
    desk.put()
    desk.run()
    assert desk.batcher.unload(MODEL) == []
    assert desk.batcher.model_state(MODEL) is ModelState.CLOSING
    assert desk.batcher.load(MODEL) == []
    assert desk.batcher.model_state(MODEL) is ModelState.READY


def test_a_model_whose_engine_is_checked_or_runs_is_not_unloaded_yet() -> None:
    desk = Desk()
    desk.put()
    for _ in range(2):
        (batch,) = desk.run()
        desk.batcher.on_batch_failed(batch.ticket)
    assert desk.batcher.unload(MODEL) == []
    assert desk.batcher.next_commands(0.0) == []
    desk.batcher.on_checked(MODEL, works=True, now=0.0)
    assert desk.batcher.next_commands(0.0) == [UnloadModel(MODEL)]


# Slots and figures


def test_one_batch_a_slot_runs_and_one_full_batch_a_slot_is_queued_ahead() -> None:
    desk = Desk()
    desk.put(MOST)
    assert [len(batch.items) for batch in desk.run()] == [MOST]
    desk.put(MOST - 1)
    assert desk.run() == [], "it could still grow"
    desk.put()
    assert [len(batch.items) for batch in desk.run()] == [MOST]
    desk.put(3 * MOST)
    assert desk.run() == []


def test_beside_work_that_is_waited_for_no_background_item_is_queued_ahead() -> None:
    desk = Desk()
    desk.batcher.remove_model(MODEL)
    desk.batcher.add_model(msgspec.structs.replace(CARD, slots=1, max_batch=1), ModelState.READY)
    desk.put()
    assert len(desk.run()) == 1
    desk.put(background=True)
    assert desk.run() == []
    desk.put()
    assert len(desk.run()) == 1


def test_throughput_is_that_of_the_engines_that_have_work_or_of_all_if_none_has() -> None:
    desk = Desk(slots=2)
    desk.batcher.add_model(msgspec.structs.replace(OTHER, max_batch=MOST, slots=1), ModelState.READY)
    assert desk.batcher.served_per_s == 0.0, "unknown"
    desk.batcher.expect_cost(MODEL, BatchCost(0.0, 0.01))
    desk.batcher.expect_cost(OTHER.name, BatchCost(0.0, 0.1))
    assert desk.batcher.served_per_s == pytest.approx(210.0)
    desk.put(1, OTHER.name)
    assert desk.batcher.served_per_s == pytest.approx(10.0)
    desk.batcher.next_commands(0.0)
    assert desk.batcher.served_per_s == pytest.approx(10.0), "it runs"


def test_models_with_more_than_a_batch_waiting_are_pressed() -> None:
    desk = Desk()
    desk.put(MOST)
    assert desk.batcher.pressed == 0
    desk.put()
    assert desk.batcher.pressed == 1


def test_web_samples_are_counted_by_tenant_and_answered_once() -> None:
    desk = Desk()
    items = [
        BatchItem(QuestionKey("", 0, number), WorkItem(), 5.0, tenant=tenant)
        for number, tenant in enumerate(("acme", "acme", "beta"))
    ]
    for item in items:
        desk.batcher.add_web_item(MODEL, item)
    batcher = desk.batcher
    assert (batcher.web_open, batcher.tenants, batcher.count_for_tenant("acme")) == (3, 2, 2)
    assert (batcher.open_web_items(), batcher.last_used(MODEL)) == (items, 5.0)
    assert batcher.claim_web_item(items[0].key) is items[0]
    assert batcher.claim_web_item(items[0].key) is None
    assert (batcher.web_open, batcher.tenants, batcher.count_for_tenant("acme")) == (2, 2, 1)
    batcher.drop_web_items(MODEL, [item.key for item in items])
    assert (batcher.web_open, batcher.tenants, batcher.count_for_tenant("acme")) == (0, 0, 0)
    assert not desk.run()


def test_samples_that_were_refused_for_lack_of_room_arrived_all_the_same() -> None:
    desk = Desk()
    queue = desk.batcher.find_queue(MODEL)
    assert queue is not None
    desk.put(2)
    desk.put(1, background=True)
    desk.batcher.count_refused(MODEL, 3, RefusalReason.BUSY)
    desk.batcher.count_refused(MODEL, 3, RefusalReason.POLICY)
    assert (queue.arrived, queue.background) == (5, 1)


def test_a_background_item_that_cannot_be_in_time_is_returned_as_expired_too() -> None:
    desk = Desk()
    desk.batcher.expect_cost(MODEL, BatchCost(0.5, 0.0))
    (late,) = desk.put(now=10.0, deadline=10.4, hard=True, background=True)
    (soft,) = desk.put(now=10.0, background=True)
    (batch,) = desk.run(10.0)
    assert batch.items == (soft,)
    assert desk.batcher.take_expired() == [late]


def test_what_cannot_be_in_time_is_returned_as_expired_once() -> None:
    desk = Desk()
    desk.batcher.expect_cost(MODEL, BatchCost(0.5, 0.0))
    (late,) = desk.put(now=10.0, deadline=10.4, hard=True)
    (soft,) = desk.put(now=10.0, deadline=10.4)
    (batch,) = desk.run(10.0)
    assert batch.items == (soft,)
    assert desk.batcher.take_expired() == [late]
    assert desk.batcher.take_expired() == []
