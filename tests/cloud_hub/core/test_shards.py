"""A core that serves by lease: what it lost it forgets and says nothing of, what it gained it computes."""

from cloud_hub.storage.jobs import StoreJob
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.messages import StatusReply
from wire.protocol.topics import compute_shard

OTHERS = frozenset(range(256))


def leased(*devices: SimDevice) -> Bench:
    bench = Bench(*devices)
    bench.core.served.serve_by_lease()
    return bench


def gain(bench: Bench, *devices: SimDevice) -> None:
    shards = {compute_shard(device.id) for device in devices}
    owed = [each for each in bench.store.read_unanswered() if compute_shard(each.key.device) in shards]
    bench._obey(bench.core.on_gained(shards, owed, bench.now))


def lose(bench: Bench, *devices: SimDevice) -> None:
    bench._obey(bench.core.on_lost({compute_shard(device.id) for device in devices}, bench.now))


def accept(bench: Bench, device: SimDevice) -> None:
    """Ask question 1 and let it be looked up, so that it is about to be stored."""
    bench.ask(device, 1)
    bench.commit()
    assert bench.job.keeps


def test_of_a_shard_that_is_not_served_nothing_is_answered_or_written(device: SimDevice):
    bench = leased(device)
    bench.ask(device, 1)
    bench.say(device.ask_topic, device.hello())
    bench.settle()
    assert bench.replies(device) == []
    assert bench.writes == 0
    assert bench.core.counts["dropped.not_served"] == 2


def test_one_that_is_gained_is_served_beside_one_that_is_not():
    ours, theirs = SimDevice("demo--d1"), SimDevice("demo--d2")
    assert compute_shard(ours.id) != compute_shard(theirs.id)
    bench = leased(ours, theirs)
    gain(bench, ours)
    for each in (ours, theirs):
        bench.ask(each, 1)
    bench.settle()
    assert set(bench.verdicts(ours)) == {1}
    assert bench.replies(theirs) == []


def test_what_is_owed_is_computed_by_whoever_gains_it(device: SimDevice):
    bench = Bench(device)
    accept(bench, device)
    bench.commit()
    bench._begin()  # another hub, on the same store
    bench.core.served.serve_by_lease()
    gain(bench, device)
    bench.settle()
    assert set(bench.verdicts(device)) == {1}


def test_a_result_that_comes_after_the_loss_is_neither_written_nor_said(device: SimDevice):
    bench = leased(device)
    gain(bench, device)
    accept(bench, device)
    bench.flush()
    bench.commit()
    bench.flush()
    assert bench.receipts(device) == [1]
    lose(bench, device)
    bench.infer()
    bench.settle()
    assert bench.replies(device) == []
    assert [each.key.seq for each in bench.store.read_unanswered()] == [1]
    assert bench.core.open_count == 0
    assert bench.core.counts["handed_over"] == 1


def test_a_commit_that_ends_after_the_loss_says_nothing_and_an_ask_at_the_new_holder_heals_it(device: SimDevice):
    bench = leased(device)
    gain(bench, device)
    accept(bench, device)
    bench.flush()
    bench.infer()
    lose(bench, device)
    bench.commit()  # of question and verdict, under the lease that was still held
    bench.settle()
    assert bench.replies(device) == []
    gain(bench, device)
    bench.say(device.ask_topic, device.ask(1))
    bench.settle()
    assert set(bench.verdicts(device)) == {1}


def test_an_ending_that_could_not_be_written_is_not_tried_again_after_the_loss(device: SimDevice):
    bench = leased(device)
    gain(bench, device)
    accept(bench, device)
    bench.flush()
    bench.commit()
    bench.infer()
    bench.lose_commit()
    lose(bench, device)
    bench.wait(1.0)
    assert not bench.job.endings
    assert bench.core.open_count == 0


def test_of_a_question_that_could_not_be_stored_nothing_is_said_after_the_loss(device: SimDevice):
    bench = leased(device)
    gain(bench, device)
    accept(bench, device)
    lose(bench, device)
    bench.lose_commit()
    bench.settle()
    assert bench.replies(device) == []
    assert bench.core.counts["store_failures"] == 1


def test_a_lookup_that_is_under_way_at_the_loss_answers_nobody(device: SimDevice):
    bench = leased(device)
    gain(bench, device)
    bench.ask(device, 1)
    bench.say(device.ask_topic, device.ask(5))
    assert len(bench.job.finds) == 2
    lose(bench, device)
    bench.settle()
    assert bench.replies(device) == []


def test_what_another_hub_stored_meanwhile_is_looked_up_and_not_taken_for_new(device: SimDevice):
    bench = leased(device)
    gain(bench, device)
    bench.ask(device, 1)
    bench.settle()
    assert set(bench.verdicts(device)) == {1}
    lose(bench, device)
    frame = device.question(2, bench.now)
    other = Bench(device)
    other.store = bench.store
    other.say(device.up, frame)
    other.settle()
    assert set(other.verdicts(device)) == {2}
    gain(bench, device)
    bench.say(device.up, frame)
    assert [len(find.keys) for find in bench.job.finds] == [1]
    bench.settle()
    assert set(bench.verdicts(device)) == {2}


def test_a_job_without_the_shards_that_were_lost_keeps_the_rest():
    assert not StoreJob()
    assert StoreJob(prune_before_ms=1, prune_shards=OTHERS)


def test_a_hub_without_leases_serves_every_shard(device: SimDevice, bench: Bench):
    bench.say(device.ask_topic, device.ask(3))
    bench.settle()
    assert bench.replies(device) == [StatusReply(device.epoch, (), (3,))]
