"""What a hub remembers of open questions, queues and shards: counts, bounds, and when a queue may send or close."""

from math import inf

import msgspec

from cloud_hub.core.commands import BatchItem, QuestionKey
from cloud_hub.core.context import STREAMS, QuestionMemory
from cloud_hub.core.queues import Batch, ModelQueue, ModelState
from cloud_hub.core.shards import ServedShards
from cloud_hub.engine.types import WorkItem
from cloud_hub.rollout.progress import WINDOW_S, RateWindow
from policies.serving.batching import BatchCost
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CARD, SimDevice
from wire.protocol.topics import compute_shard


def item(seq: int, *, background: bool = False, now: float = 0.0, device: str = "acme--d1") -> BatchItem:
    return BatchItem(QuestionKey(device, 1, seq), WorkItem(), now, background=background)


def queue_of(waiting: int = 0, background: int = 0, *, slots: int = 1, most: int = 4) -> ModelQueue:
    queue = ModelQueue(msgspec.structs.replace(CARD, slots=slots, weight_bytes=100 * slots), most, lambda _: True)
    for seq in range(waiting):
        queue.put_item(item(seq))
    for seq in range(background):
        queue.put_item(item(1000 + seq, background=True))
    return queue


def is_closed(queue: ModelQueue) -> bool:
    return queue.closed


def run(queue: ModelQueue, count: int) -> None:
    for _ in range(count):
        ticket = len(queue.running)
        queue.running[ticket] = Batch(ticket, queue.card.name, (item(ticket),), 0)


def test_open_questions_are_counted_for_their_device_and_tenant_and_no_longer_once_they_ended():
    first, second, stranger = SimDevice("acme--d1"), SimDevice("acme--d2"), SimDevice("other--d1")
    bench = Bench(first, second, stranger)
    memory = bench.core._context.memory
    for device, seq in ((first, 1), (first, 2), (second, 1), (stranger, 1)):
        bench.ask(device, seq)
    bench.flush()
    bench.commit()  # looks up which of them are new
    assert (len(memory), memory.tenants) == (4, 2)
    assert [memory.count_for_device(each.id) for each in (first, second, stranger)] == [2, 1, 1]
    assert [memory.count_for_tenant(each) for each in ("acme", "other", "nobody")] == [3, 1, 0]
    one = next(iter(memory))
    assert memory.is_waiting(one.item)
    again = msgspec.structs.replace(one.item)
    assert not memory.is_waiting(again), "a repeat is another item"
    one.ending = True
    assert not memory.is_waiting(one.item)
    assert memory.remove(one.key) is one
    assert memory.remove(one.key) is None
    assert (memory.count_for_device(first.id), memory.count_for_tenant("acme"), len(memory)) == (1, 2, 3)
    memory.forget_shards({compute_shard(stranger.id)})
    assert (memory.tenants, memory.count_for_tenant("other")) == (1, 0)


def test_a_queue_closes_after_all_that_waited_background_items_too_and_nothing_that_came_later():
    queue = queue_of(3, 2)
    queue.close()
    assert (queue.state, is_closed(queue), queue.idle) == (ModelState.CLOSING, False, True)
    for seq in range(50, 60):
        queue.put_item(item(seq))
    taken = 0
    while queue.idle:
        attempt, items, over = queue.form_batch(0.0)
        assert (attempt, over) == (0, [])
        taken += len(items)
        assert taken <= 20
    assert taken >= 5
    assert is_closed(queue)
    queue.suspects.append(item(99))
    assert not is_closed(queue)
    queue.suspects.clear()
    queue.again.append((1, (item(98),)))
    assert not is_closed(queue)
    queue.again.clear()
    run(queue, 1)
    assert not is_closed(queue)
    assert is_closed(queue_of(1)) is False, "a ready one is not closed"


def test_an_empty_queue_is_closed_at_once():
    queue = queue_of()
    queue.close()
    assert is_closed(queue)


def test_a_queue_may_send_while_a_slot_is_free_and_then_one_full_batch_ahead_for_each():
    for slots in (1, 2):
        for waiting, most_running in ((1, slots), (3, slots), (4, 2 * slots), (9, 2 * slots)):
            queue = queue_of(waiting, slots=slots)
            run(queue, most_running - 1)
            assert queue.idle, (slots, waiting)
            run(queue, 1)
            assert not queue.idle, (slots, waiting)
    for hinder in ("checking", "down"):
        queue = queue_of(1)
        setattr(queue, hinder, 1)
        assert not queue.idle
    queue = queue_of(1)
    for state in (ModelState.COLD, ModelState.LOADING):
        queue.state = state
        assert not queue.idle


def test_more_wait_than_a_batch_takes_only_beyond_its_size():
    assert [queue_of(count).pressed for count in (3, 4, 5)] == [False, False, True]
    assert len(queue_of(3, 2)) == 5
    assert queue_of(3, 2).background == 2


def test_replicas_share_the_weights_and_one_more_or_less_changes_the_whole():
    queue = queue_of(slots=2)
    assert queue.replica_bytes == 100
    queue.set_replicas(3)
    assert (queue.card.slots, queue.card.weight_bytes, queue.replica_bytes) == (3, 300, 100)
    card = queue.card
    queue.set_replicas(3)
    assert queue.card is card


def test_a_throughput_is_known_from_a_cost_and_none_while_the_engine_is_down():
    queue = queue_of(slots=2, most=4)
    assert queue.served_per_s == 0.0
    queue.expect_cost(BatchCost(0.06, 0.01))
    assert round(queue.served_per_s, 6) == 80.0
    queue.down = 1
    assert queue.served_per_s == 0.0


def test_dead_items_are_searched_for_once_there_are_many():
    queue = ModelQueue(CARD, 4, lambda each: each.key.seq >= 65)
    for seq in range(70):
        queue.put_item(item(seq))
    for _ in range(64):
        queue.on_abandoned()
    assert len(queue) == 70
    queue.on_abandoned()
    assert len(queue) == 5


def key(seq: int, epoch: int = 1) -> QuestionKey:
    return QuestionKey("acme--d1", epoch, seq)


def test_a_question_is_certainly_new_only_above_what_the_store_is_known_to_hold():
    memory = QuestionMemory()
    stream = ("acme--d1", 1)
    assert not memory.is_certainly_new(key(1)), "nothing is known of this stream"
    memory.raise_highest(stream, 9, known=False)
    assert not memory.is_certainly_new(key(100)), "a mark that no store confirmed says nothing"
    memory.raise_highest(stream, 5)
    assert [memory.is_certainly_new(key(seq)) for seq in (4, 5, 6)] == [False, False, True]
    memory.raise_highest(stream, 8, known=False)
    memory.raise_highest(stream, 2)
    assert [memory.is_certainly_new(key(seq)) for seq in (8, 9)] == [False, True]
    assert not memory.is_certainly_new(key(9, epoch=2))
    memory.forget_shards({compute_shard("acme--d1")})
    assert not memory.is_certainly_new(key(100))


def test_of_streams_the_least_recently_used_is_forgotten_first():
    memory = QuestionMemory()
    for epoch in range(STREAMS):
        memory.raise_highest(("acme--d1", epoch), 0)
    memory.raise_highest(("acme--d1", 0), 0, known=False)
    assert memory.is_certainly_new(key(1, epoch=1))
    memory.raise_highest(("acme--d1", STREAMS), 0)
    assert [memory.is_certainly_new(key(1, epoch=epoch)) for epoch in (0, 1, 2, STREAMS)] == [True, False, True, True]


def test_a_hub_serves_all_shards_until_it_serves_by_lease():
    shards, device = ServedShards(), "acme--d1"
    shard = compute_shard(device)
    assert (shards.includes(device), shards.find_beginning(device), shards.pick([device])) == (True, 0.0, (device,))
    shards.add([shard], 5.0)
    shards.forget_shards({shard})
    assert shards.includes(device)
    shards.serve_by_lease()
    assert (shards.includes(device), shards.find_beginning(device), shards.pick([device])) == (False, inf, ())
    shards.add([shard], 5.0)
    assert (shards.includes(device), shards.find_beginning(device)) == (True, 5.0)
    shards.forget_shards({(shard + 1) % 256})
    assert shards.includes(device)
    shards.forget_shards({shard})
    assert not shards.includes(device)


def test_a_rate_holds_in_every_minute_and_a_place_is_free_when_its_minute_is_over():
    window = RateWindow()
    assert (window.free_places(2, 0.0), window.free_at(2)) == (2, -inf)
    window.record_sent("a", 0.0)
    assert (window.free_places(2, 0.0), window.free_at(2)) == (1, -inf)
    window.record_sent("b", 10.0)
    assert (window.free_places(2, 10.0), window.free_at(2)) == (0, WINDOW_S)
    assert (window.free_places(2, 59.9), window.free_places(2, 60.0)) == (0, 1)
    assert window.free_places(0, 60.0) == 0
    window.record_sent("c", 5.0)  # the clock went back
    assert list(window) == [(10.0, "b"), (10.0, "c")]


def test_times_of_assignments_are_those_of_their_sending():
    window = RateWindow([(3.0, "b"), (1.0, "a")])
    assert list(window) == [(1.0, "a"), (3.0, "b")]
    window.record_sent("c", 4.0)
    window.record_sent("d", 5.0)
    window.settle_times(9.0)
    assert list(window) == [(1.0, "a"), (3.0, "b"), (9.0, "c"), (9.0, "d")]
    window.settle_times(20.0)
    assert list(window)[-1] == (9.0, "d"), "what was settled stays"


def test_a_batch_of_others_is_filled_with_background_items_although_a_sender_is_batched_by_itself():
    queue = queue_of(waiting=1, background=2)
    queue.isolate_sender(item(7, device="evil--d1"), 0.0)
    queue.expect_cost(BatchCost(0.05, 0.0))
    _, items, _ = queue.form_batch(0.0)
    assert [each.background for each in items] == [False, True, True]
