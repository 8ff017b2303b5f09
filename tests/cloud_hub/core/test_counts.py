"""What a hub counts, story by story: all of it, and each thing once."""

from collections.abc import Callable

import msgspec
import pytest

from cloud_hub.core.commands import ErasureRequest, QuestionEnding, QuestionKey
from cloud_hub.storage.jobs import StoreJob
from tests.cloud_hub.doubles.bench import POISON, Bench
from tests.cloud_hub.doubles.devices import CARD, SimDevice
from wire.protocol.messages import RefusalReason


def ask(bench: Bench, *seqs: int) -> None:
    (device,) = bench.devices.values()
    for seq in seqs:
        bench.ask(device, seq)
    bench.commit()  # looked up
    bench.flush()


def answered_at_once(bench: Bench) -> None:
    ask(bench, 1, 2)
    bench.infer()
    bench.commit()


def answered_after_their_receipts(bench: Bench) -> None:
    ask(bench, 1, 2)
    bench.commit()
    bench.infer()
    bench.commit()


def repeated_while_open_and_after(bench: Bench) -> None:
    (device,) = bench.devices.values()
    ask(bench, 1)
    bench.commit()
    bench.say(device.up, device.question(1, bench.now))  # another receipt
    bench.infer()
    bench.commit()
    bench.say(device.up, device.question(1, bench.now))


def repeated_while_its_verdict_is_written(bench: Bench) -> None:
    (device,) = bench.devices.values()
    ask(bench, 1)
    bench.commit()
    bench.flush()
    bench.infer()
    bench.say(device.up, device.question(1, bench.now))
    bench.commit()


def poisoned(bench: Bench) -> None:
    ask(bench, POISON)
    bench.commit()
    bench.settle()


def not_looked_up_not_stored_and_not_ended(bench: Bench) -> None:
    (device,) = bench.devices.values()
    bench.ask(device, 1)
    bench.ask(device, 2)
    bench.lose_commit()
    ask(bench, 1, 2)
    bench.lose_commit()
    ask(bench, 3, 4)
    bench.infer()  # of what could not be stored: it answers nobody
    bench.flush()
    bench.infer()
    bench.lose_commit()


def restored_and_forgotten(bench: Bench) -> None:
    ask(bench, 1, 2)
    bench.commit()
    owed = list(bench.store.read_unanswered())
    damaged = msgspec.structs.replace(owed[1], sealed=b"")
    bench._begin()
    bench._obey(bench.core.restore_questions([owed[0], damaged], bench.now))


def vanished_and_erased(bench: Bench) -> None:
    (device,) = bench.devices.values()
    ask(bench, 1, 2, 3)
    bench.commit()
    keys = [QuestionKey(device.id, device.epoch, seq) for seq in (1, 2, 3)]
    bench._obey(bench.core.on_vanished(keys[:1], bench.now))
    request = ErasureRequest(device.id, b"", 0, int(bench.now * 1000), questions=tuple(keys[1:]))
    (erasure,) = bench.store.apply_jobs([StoreJob(erases=[request])])[0].erased
    bench._obey(bench.core.on_erased(erasure.keys, erasure.stone, bench.now))


def models_loaded_and_not(bench: Bench) -> None:
    lineup = bench.core.lineup
    lineup.on_loaded(CARD.name, "no memory", None, bench.now)
    lineup.on_loaded(CARD.name, "", CARD, bench.now)
    lineup.on_loaded("unknown@1", "", CARD, bench.now)
    lineup.on_replicas(CARD.name, 1, "no memory", bench.now)
    lineup.on_replicas(CARD.name, 2, "", bench.now)


def notes_and_gaps(bench: Bench) -> None:
    (device,) = bench.devices.values()
    bench.say(device.ask_topic, device.hello())
    bench.say(device.ask_topic, device.ask(7, 8))
    bench.settle()


STORIES: list[tuple[Callable[[Bench], None], dict[str, int]]] = [
    (answered_at_once, {"accepted": 2, "verdicts": 2}),
    (answered_after_their_receipts, {"accepted": 2, "receipts": 2, "verdicts": 2}),
    (repeated_while_open_and_after, {"accepted": 1, "receipts": 2, "verdicts": 1, "duplicates": 2}),
    (repeated_while_its_verdict_is_written, {"accepted": 1, "receipts": 1, "verdicts": 1, "duplicates": 1}),
    (poisoned, {"accepted": 1, "receipts": 1, "engine_failures": 2, "ended.engine": 1}),
    (not_looked_up_not_stored_and_not_ended, {"accepted": 4, "receipts": 2, "store_failures": 6}),
    (restored_and_forgotten, {"restored": 1, "forgotten": 1}),
    (vanished_and_erased, {"accepted": 3, "receipts": 3, "vanished": 3, "erased": 2}),
    (models_loaded_and_not, {"loads": 1, "load_failures": 1, "replica_failures": 1}),
    (notes_and_gaps, {"notes": 2, "gaps": 2}),
]


@pytest.mark.parametrize(("story", "counts"), STORIES, ids=lambda each: getattr(each, "__name__", ""))
def test_each_thing_that_happens_is_counted_once_and_nothing_else_is(bench, story, counts):
    story(bench)
    assert {name: count for name, count in bench.core.counts.items() if count} == counts


def test_an_ending_of_a_question_that_is_not_open_any_more_is_not_tried_again(bench: Bench, device: SimDevice):
    gone = QuestionEnding(QuestionKey(device.id, device.epoch, 9), 0, refusal=RefusalReason.EXPIRED)
    bench._obey(bench.core.on_end_failed([gone], bench.now))
    bench.wait(60.0)
    assert bench.job.endings == []
    assert bench.core.counts["store_failures"] == 1
