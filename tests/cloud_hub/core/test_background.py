"""Background items in the queue of a model: they delay others by a share of a batch, and never starve."""

from math import inf

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.core.commands import BatchItem, QuestionKey, RunBatch
from cloud_hub.core.queues import BACKGROUND_WAIT_S, QUIET_S
from cloud_hub.core.scheduler import Batcher
from cloud_hub.engine.types import WorkItem
from policies.serving.batching import BACKGROUND_SHARE, BatchCost, limit_background
from tests.cloud_hub.doubles.devices import CARD

COST = BatchCost(0.05, 0.002)
MOST = 16
costs = st.builds(BatchCost, st.floats(0.0, 0.2), st.floats(0.0, 0.05))


class Desk:
    """The queue of one model, and an engine that computes a batch when it is told."""

    def __init__(self, cost: BatchCost = COST, slots: int = 1) -> None:
        card = msgspec.structs.replace(CARD, slots=slots, max_batch=MOST)
        self.batcher = Batcher([card], MOST)
        self.batcher.expect_cost(CARD.name, cost)
        self.now = 100.0
        self.number = 0
        self.running: list[RunBatch] = []
        self.computed: list[tuple[list[str], list[str]]] = []  # of each batch: others, background

    def put(self, *devices: str, background: bool = False) -> None:
        for device in devices:
            self.number += 1
            key = QuestionKey(device, 1, self.number)
            self.batcher.add_item(CARD.name, BatchItem(key, WorkItem(), self.now, background=background))

    def begin(self) -> None:
        for command in self.batcher.next_commands(self.now):
            assert isinstance(command, RunBatch)
            self.running.append(command)
            kinds = [[i.key.device for i in command.items if i.background is each] for each in (False, True)]
            self.computed.append((kinds[0], kinds[1]))

    def compute(self) -> None:
        """End the oldest batch after the time that it takes."""
        batch = self.running.pop(0)
        took = COST.predict_seconds(len(batch.items))
        self.now += took
        self.batcher.finish_batch(batch.ticket, took)


def test_alone_they_have_full_batches():
    desk = Desk()
    desk.put(*["job"] * 40, background=True)
    desk.begin()
    while desk.running:
        desk.compute()
        desk.begin()
    assert [len(jobs) for _, jobs in desk.computed] == [16, 16, 8]


def test_beside_others_they_take_little_of_a_batch_and_little_time_of_an_idle_engine():
    desk = Desk()
    desk.put(*["job"] * 2000, background=True)
    for _ in range(20):
        desk.put(*["ask"] * 4)
        desk.begin()
        desk.compute()
    beside = [len(jobs) for others, jobs in desk.computed if others]
    assert max(beside[1:]) <= 1 + BACKGROUND_SHARE * COST.predict_seconds(4) / COST.item_s
    assert sum(beside) > 0
    before = len(desk.computed)
    desk.begin()
    while desk.running:
        desk.compute()
        desk.begin()
    assert all(len(jobs) <= 6 for _, jobs in desk.computed[before : before + 10]), "others may come any moment"
    assert len(desk.computed[-2][1]) == MOST, f"none came for {QUIET_S:g} s"


def test_however_much_others_ask_one_a_second_is_computed():
    desk = Desk()
    desk.put(*["job"] * 50, background=True)
    began = desk.now
    while desk.now < began + 20:
        desk.put(*["ask"] * 20)
        desk.begin()
        desk.compute()
    computed = sum(len(jobs) for _, jobs in desk.computed)
    assert 0.9 * 20 / BACKGROUND_WAIT_S - 2 <= computed <= 25
    assert all(len(others) + len(jobs) <= MOST for others, jobs in desk.computed)


@given(costs, st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=20), st.integers(1, 3))
def test_every_item_comes_out_once_and_others_are_never_longer_in_a_batch_than_their_share_allows(cost, rounds, slots):
    desk = Desk(cost, slots)
    for others, jobs in rounds:
        desk.put(*["ask"] * others)
        desk.put(*["job"] * jobs, background=True)
        desk.begin()
        if desk.running:
            desk.compute()
    desk.begin()
    while desk.running:
        desk.compute()
        desk.begin()
    assert sum(len(found) for found, _ in desk.computed) == sum(others for others, _ in rounds)
    assert sum(len(found) for _, found in desk.computed) == sum(jobs for _, jobs in rounds)
    assert len(desk.batcher.queued_by_model()) == 1
    assert desk.batcher.queued_by_model()[CARD.name] == 0


@given(st.floats(0.1, 64), st.floats(0, 64), costs)
def test_what_fills_a_batch_lengthens_it_by_a_share_at_most(weight, usual, cost):
    limit = limit_background(weight, usual, cost)
    assert limit >= weight
    if limit < inf:
        assert cost.predict_seconds(limit) <= cost.predict_seconds(weight) * (1 + BACKGROUND_SHARE) * (1 + 1e-9)
