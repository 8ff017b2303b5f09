"""Versions of models at the hub: which are known, loaded and used, and what becomes of work when one is retired."""

from math import inf
from typing import Any

import msgspec
import numpy as np
import pytest

from cloud_hub.core.commands import LOCAL, AnswerWebSample, LoadModel, QuestionKey, StoreEnding, UnloadModel
from cloud_hub.core.lineup import MODEL_USE_TTL_MS, RECORD_EVERY_MS, ModelUse, find_model_users
from cloud_hub.core.queues import ModelState
from cloud_hub.core.web_requests import InferOptions
from cloud_hub.registry.device_states import Standing
from policies.serving.batching import BatchCost
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CARD, MANIFEST, MemoryRegistry, SimDevice
from wire.protocol.messages import HelloNote, RefusalReason

NEXT = msgspec.structs.replace(CARD, ref=msgspec.structs.replace(CARD.ref, version=2))
DAY_MS = 86_400_000


def ask_web(bench: Bench, request: int, samples: int = 1, model: str = CARD.name, **wish: Any) -> RefusalReason | None:
    refused = bench.core.queue_web_request(
        request, model, [np.zeros(10, np.float32)] * samples, bench.now, InferOptions(tenant="acme", **wish)
    )
    return refused.reason if refused else None


# Known and loaded


def test_a_version_that_becomes_known_is_loaded_when_something_asks_for_it(bench):
    lineup = bench.core.lineup
    lineup.add_version(NEXT)
    lineup.add_version(msgspec.structs.replace(NEXT, weight_bytes=99))
    assert list(lineup.known_models) == [CARD.name, NEXT.name]
    assert lineup.known_models[NEXT.name] is NEXT, "it was known"
    assert lineup.ready == (CARD,)
    assert bench.core.flush(bench.now) == []
    assert ask_web(bench, 1, model=NEXT.name) is None
    assert bench.core.flush(bench.now) == [LoadModel(NEXT.name)]
    assert lineup.on_loaded(NEXT.name, "", None, bench.now) == []
    assert lineup.ready == (CARD, NEXT)
    assert bench.core.counts["loads"] == 1
    assert [command.model for command in bench.core.flush(bench.now)] == [NEXT.name]


@pytest.mark.parametrize("cost", [BatchCost(inf, 0.0), BatchCost(0.0, inf), BatchCost(inf, inf)])
def test_a_warm_up_that_measured_no_time_leaves_the_estimate_as_it_is(bench, cost):
    lineup, batcher = bench.core.lineup, bench.core._batcher
    lineup.on_measured(CARD.name, BatchCost(0.05, 0.005), bench.now)
    before = batcher.served_per_s
    assert before > 0
    lineup.on_measured(CARD.name, cost, bench.now)
    assert batcher.served_per_s == before


def test_a_load_that_failed_is_counted_and_says_why(bench):
    lineup = bench.core.lineup
    lineup.add_version(NEXT)
    assert lineup.load(NEXT.name, bench.now) == [LoadModel(NEXT.name)]
    assert lineup.on_loaded(NEXT.name, "no memory", None, bench.now) == []
    assert lineup.model_states()[NEXT.name] == (ModelState.COLD, "no memory")
    assert (bench.core.counts["load_failures"], bench.core.counts["loads"]) == (1, 0)
    assert bench.core.engines_down() == (NEXT.name,)


def test_an_engine_that_was_loaded_for_a_version_retired_meanwhile_is_unloaded(bench):
    lineup = bench.core.lineup
    assert lineup.on_loaded("gone@1", "", None, bench.now) == [UnloadModel("gone@1")]
    assert lineup.on_loaded("gone@1", "no memory", None, bench.now) == []
    assert not bench.core.counts["loads"] + bench.core.counts["load_failures"]


@pytest.mark.parametrize(("cost", "known"), [(BatchCost(0.0, 0.01), True), (BatchCost(0.0, inf), False)])
def test_a_cost_that_was_measured_counts_until_batches_give_a_better_one(bench, cost, known):
    bench.core.lineup.on_measured(CARD.name, cost, bench.now)
    queue = bench.core.lineup._context.batcher.find_queue(CARD.name)
    assert (queue.served_per_s > 0) is known


def test_a_version_without_room_at_the_start_is_displaced_and_still_known(device):
    bench = Bench(device, max_loaded=1)
    lineup = bench.core.lineup
    lineup.add_version(NEXT)
    lineup.displace_unloaded()
    assert lineup.displaced == (NEXT,)
    assert lineup.load(NEXT.name, bench.now) == [LoadModel(NEXT.name), UnloadModel(CARD.name)]


def test_replicas_that_did_not_start_are_counted(bench):
    bench.core.lineup.on_replicas(CARD.name, 1, "no memory", bench.now)
    bench.core.lineup.on_replicas(CARD.name, 3, "", bench.now)
    assert bench.core.counts["replica_failures"] == 1
    assert bench.core.lineup._context.batcher.find_queue(CARD.name).card.slots == 3


# Retired


def test_all_that_waits_for_a_retired_version_ends_with_the_reason(device, bench):
    bench.ask(device, 1)
    bench.settle()
    bench.ask(device, 2)
    bench.ask(device, 3)
    bench.commit()
    assert ask_web(bench, 7, samples=2) is None
    commands = bench.core.lineup.retire(CARD.name, bench.now)
    assert commands[0] == UnloadModel(CARD.name)
    endings = [command.ending for command in commands if isinstance(command, StoreEnding)]
    assert [(ending.key.seq, ending.refusal) for ending in endings] == [
        (2, RefusalReason.MODEL_GONE),
        (3, RefusalReason.MODEL_GONE),
    ]
    assert [command for command in commands if isinstance(command, AnswerWebSample)] == [
        AnswerWebSample(QuestionKey(LOCAL, 7, index), RefusalReason.MODEL_GONE) for index in range(2)
    ]
    assert not bench.core.lineup.known_models
    bench._obey(commands)
    bench.ask(device, 4)
    bench.settle()
    assert {refusal.reason for refusal in bench.refusals(device)} == {RefusalReason.MODEL_GONE}


@pytest.mark.parametrize(
    ("state", "unloaded"),
    [(ModelState.READY, True), (ModelState.CLOSING, True), (ModelState.COLD, False), (ModelState.LOADING, False)],
)
def test_a_retired_version_is_unloaded_if_it_is_loaded(bench, state, unloaded):
    lineup = bench.core.lineup
    lineup.add_version(NEXT)
    lineup._context.batcher.find_queue(NEXT.name).state = state
    assert lineup.retire(NEXT.name, bench.now) == [UnloadModel(NEXT.name)] * unloaded


# Used


def hello(*versions: int) -> HelloNote:
    return HelloNote(1, "boot", "agent/1", tuple(msgspec.structs.replace(MANIFEST.ref, version=v) for v in versions))


def test_a_hello_is_recorded_when_its_models_change_and_once_a_day(bench):
    lineup = bench.core.lineup
    assert set(lineup.record_hellos({"d1": hello(1), "d2": hello(1)}, 0)) == {"d1", "d2"}
    assert lineup.record_hellos({"d1": hello(1)}, RECORD_EVERY_MS) == {}
    changed = lineup.record_hellos({"d1": hello(1), "d2": hello(1, 2, 2)}, RECORD_EVERY_MS)
    assert changed == {"d2": ModelUse(hello(1, 2, 2).models, RECORD_EVERY_MS)}
    assert changed["d2"].versions() == ("echo@1", "echo@2")
    assert set(lineup.record_hellos({"d1": hello(1)}, RECORD_EVERY_MS + 1)) == {"d1"}
    assert lineup.speakers["d1"].at_ms == RECORD_EVERY_MS + 1 == DAY_MS + 1


def test_a_version_is_used_by_devices_that_named_it_within_thirty_days_and_are_not_gone():
    devices = {name: SimDevice(name) for name in ("d1", "d2", "d3", "d4")}
    states = {"d2": Standing.SUSPENDED, "d3": Standing.REVOKED, "d4": Standing.ACTIVE}
    registry = MemoryRegistry(device.enrolled(states.get(name, Standing.ACTIVE)) for name, device in devices.items())
    speakers = {name: ModelUse(hello(1).models, 5) for name in ("d9", *devices)}
    speakers["d4"] = ModelUse(hello(2).models, 5)
    found = find_model_users(speakers, "echo@1", 5 + MODEL_USE_TTL_MS, registry)
    assert found == {"d1": 5, "d2": 5}
    assert MODEL_USE_TTL_MS == 30 * DAY_MS
    assert find_model_users(speakers, "echo@1", 6 + MODEL_USE_TTL_MS, registry) == {}


def test_what_devices_use_is_taken_once_and_asked_for_by_version(device, bench):
    bench.say(device.ask_topic, device.hello())
    uses = bench.core.take_model_uses(bench.now)
    assert list(uses) == [device.id]
    assert bench.core.take_model_uses(bench.now + 2 * DAY_MS) == {}
    ms = int(bench.now * 1000)
    assert bench.core.lineup.devices_using(CARD.name, ms) == {device.id: ms}


# Web requests


def test_a_web_request_that_is_dropped_leaves_its_places_and_is_not_computed(bench):
    assert ask_web(bench, 1, samples=3) is None
    assert ask_web(bench, 2) is None
    assert bench.core.open_count == 4
    bench.core.drop_web_request(1)
    bench.core.drop_web_request(9)
    assert bench.core.open_count == 1
    (batch,) = bench.core.flush(bench.now)
    assert [item.key for item in batch.items] == [QuestionKey(LOCAL, 2, 0)]
    assert bench.core.is_waited_for(batch.items[0])
    bench.core.drop_web_request(2)
    assert not bench.core.is_waited_for(batch.items[0])


def test_a_hub_that_stops_refuses_each_open_web_sample_as_draining(bench):
    ask_web(bench, 1, samples=2)
    bench.core.drain()
    assert bench.core.draining
    assert ask_web(bench, 2) is RefusalReason.DRAINING
    assert bench.core.refuse_web_requests(bench.now) == [
        AnswerWebSample(QuestionKey(LOCAL, 1, index), RefusalReason.DRAINING) for index in range(2)
    ]
    assert bench.core.refuse_web_requests(bench.now) == []


def test_a_web_sample_is_refused_once_nine_tenths_of_its_time_are_over(bench):
    for request in (1, 2):
        ask_web(bench, request, timeout_s=10.0)
    (batch,) = bench.core.flush(bench.now)
    assert len(batch.items) == 2
    ask_web(bench, 3, timeout_s=10.0, request_bytes=77)
    (item,) = (each for each in bench.core.lineup._context.batcher.open_web_items() if each.key.epoch == 3)
    assert (item.deadline, item.hard, item.request_bytes) == (bench.now + 9.0, True, 77)
    ask_web(bench, 4)
    (item,) = (each for each in bench.core.lineup._context.batcher.open_web_items() if each.key.epoch == 4)
    assert item.deadline == inf
