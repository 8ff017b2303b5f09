"""Replicas that follow a model's load: at once up, late down, to zero and back, and a waiting room with an end."""

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.core.commands import AnswerWebSample, Command, LoadModel, RunBatch, SetReplicas, UnloadModel
from cloud_hub.core.core import HubCore
from cloud_hub.core.web_requests import InferOptions
from cloud_hub.engine.types import ModelCard
from cloud_hub.security.envelopes import HubEnvelopes
from cloud_hub.system.settings import HubSettings
from policies.serving.batching import BatchCost
from policies.serving.scaling import ScalingRules
from tests.cloud_hub.doubles.devices import CARD, HUB, NOW_S, MemoryRegistry
from wire.protocol.messages import Prediction, RefusalReason

RULES = ScalingRules(
    floor=0, ceiling=6, deadline_s=1.0, drain_s=2.0, down_after_s=30.0, idle_s=60.0, room_items=5, room_s=10.0
)
COST = BatchCost(0.05, 0.005)
ANSWER = Prediction(0, 1.0, (), "echo@1")


class Hall:
    """A core whose engine answers each batch within the second, and whose launcher starts what is asked for."""

    def __init__(self, rules: ScalingRules = RULES, card: ModelCard = CARD, **settings: Any) -> None:
        told = HubSettings(scaling={"echo": rules}, max_batch=4, **settings)
        self.core = HubCore(told, (card,), MemoryRegistry(()), HubEnvelopes(HUB))
        self.card = card
        self.now = NOW_S
        self.requests = 0
        self.asked: list[int] = []  # replicas, of the launcher
        self.loads: list[str] = []
        self.refused: list[RefusalReason] = []
        self.batches: list[RunBatch] = []
        self.can_load = self.can_start = True
        self.obey(self.core.lineup.on_measured(card.name, COST, self.now))

    def ask(self, samples: int = 1) -> RefusalReason | None:
        self.requests += 1
        refused = self.core.queue_web_request(
            self.requests, self.card.name, [np.zeros(10, np.float32)] * samples, self.now, InferOptions(tenant="acme")
        )
        self.obey(self.core.flush(self.now))
        return refused.reason if refused else None

    def pass_seconds(self, seconds: int, requests: int = 0) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for _ in range(requests):
                self.ask()
            self.answer()
            self.obey(self.core.on_wake(self.now))
            self.obey(self.core.flush(self.now))
            self.answer()

    def answer(self) -> None:
        while self.batches:
            batch = self.batches.pop(0)
            self.obey(self.core.on_results(batch.ticket, [ANSWER] * len(batch.items), 0.07, self.now))

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case RunBatch():
                    self.batches.append(command)
                case SetReplicas(model, count):
                    self.asked.append(count)
                    found, why = (count, "") if self.can_start else (self.running, "no memory")
                    self.obey(self.core.lineup.on_replicas(model, found, why, self.now))
                case LoadModel(model):
                    self.loads.append(model)
                    if self.can_load:
                        self.obey(self.core.lineup.on_loaded(model, "", self.card, self.now))
                case UnloadModel(model):
                    self.loads.append("-" + model)
                case AnswerWebSample(_, RefusalReason() as reason):
                    self.refused.append(reason)

    @property
    def view(self) -> Any:
        return self.core.lineup.scaling.views()["echo@1"]

    @property
    def running(self) -> int:
        return int(self.view.running)


def test_replicas_come_at_once_with_the_load_and_go_late_one_by_one():
    hall = Hall()
    hall.pass_seconds(5, requests=2)
    assert hall.asked == [], "one is enough"
    hall.pass_seconds(12, requests=150)
    assert hall.running >= 4
    assert hall.asked == sorted(hall.asked)
    most = hall.running
    hall.pass_seconds(29, requests=2)
    assert hall.running == most, "not before less has been enough for long"
    hall.pass_seconds(60, requests=2)
    assert hall.running == 1
    assert all(before - after == 1 for before, after in zip(hall.asked, hall.asked[1:], strict=False) if before > after)


def test_a_version_is_scaled_by_its_own_rules_before_those_of_its_model():
    own = msgspec.structs.replace(RULES, ceiling=3)
    core = HubCore(HubSettings(scaling={"echo": RULES, "echo@1": own}), (CARD,), MemoryRegistry(()), HubEnvelopes(HUB))
    scaling = core.lineup.scaling
    assert [scaling.find_rules(name) for name in ("echo@1", "echo@2", "other@1")] == [own, RULES, None]


def test_without_a_limit_of_memory_replicas_of_any_size_start():
    hall = Hall(card=msgspec.structs.replace(CARD, weight_bytes=1 << 40))
    hall.pass_seconds(12, requests=150)
    assert hall.running > 1


def test_arrivals_are_counted_over_ten_seconds():
    hall = Hall()
    hall.pass_seconds(12)
    hall.pass_seconds(1, requests=40)
    at_once = hall.view.need
    hall.pass_seconds(9)
    assert 0 < hall.view.need <= at_once
    hall.pass_seconds(1)
    assert hall.view.need == 0


def test_replicas_that_do_not_start_are_asked_for_again_with_growing_delays_and_come_once_they_can():
    hall = Hall()
    hall.can_start = False
    times = []
    for second in range(60):
        before = len(hall.asked)
        hall.pass_seconds(1, requests=150)
        times += [second] * (len(hall.asked) - before)
    assert hall.view.why == "no memory"
    assert [later - earlier for earlier, later in pairwise(times)] == [4, 8, 16]
    hall.can_start = True
    hall.pass_seconds(33, requests=150)
    assert (hall.running, hall.view.why) == (hall.view.wanted, "")
    assert hall.running > 1


def test_a_model_nobody_asks_for_rests_and_is_loaded_for_whoever_asks():
    hall = Hall()
    hall.pass_seconds(59)
    assert hall.loads == []
    hall.pass_seconds(5)
    assert hall.loads == ["-echo@1"]
    assert (hall.view.wanted, hall.running) == (0, 0)
    assert [card.name for card in hall.core.lineup.resting] == ["echo@1"]
    assert hall.ask() is None
    assert hall.loads == ["-echo@1", "echo@1"]
    hall.answer()
    hall.pass_seconds(1)
    assert (hall.running, hall.core.lineup.resting, hall.refused) == (1, (), [])


def test_the_waiting_room_has_a_size_and_an_end_and_nobody_is_left_in_it():
    hall = Hall()
    hall.pass_seconds(65)
    hall.can_load = False
    assert [hall.ask() for _ in range(7)] == [None] * 5 + [RefusalReason.BUSY] * 2
    assert hall.ask(3) is RefusalReason.BUSY
    hall.pass_seconds(9)
    assert hall.refused == []
    hall.pass_seconds(2)
    assert hall.refused == [RefusalReason.BUSY] * 5
    assert hall.core.open_count == 0
    assert hall.ask() is None, "there is room again"


def test_jobs_that_wait_elsewhere_wake_a_resting_model_and_take_capacity():
    hall = Hall()
    hall.pass_seconds(65)
    hall.core.lineup.scaling.on_backlog({"echo@1": 1.0})
    hall.pass_seconds(1)
    assert hall.loads == ["-echo@1", "echo@1"]
    hall.core.lineup.scaling.on_backlog({"echo@1": 900.0 * 200})
    hall.pass_seconds(2)
    assert hall.running >= 4


def test_a_replica_that_started_ends_the_growth_of_the_pauses():
    hall = Hall()
    hall.can_start = False
    hall.pass_seconds(12, requests=150)
    hall.can_start = True
    hall.pass_seconds(12, requests=150)
    assert hall.running > 1
    hall.can_start = False
    hall.pass_seconds(12, requests=2)
    before = len(hall.asked)
    times = list[int]()
    for second in range(12):
        hall.pass_seconds(1, requests=400)
        times += [second] * (len(hall.asked) - before - len(times))
    assert times[1] - times[0] == 4, "as after a first failure"


def test_a_second_look_at_the_same_time_keeps_what_was_measured_and_a_clock_that_went_back_begins_anew():
    hall = Hall()
    hall.pass_seconds(5, requests=40)
    before = hall.view.need
    assert before > 0
    hall.core.lineup.scaling.look(hall.now)
    assert hall.view.need == before
    hall.core.lineup.scaling.look(hall.now - 3.0)
    assert hall.view.need < before


def test_a_caller_in_the_waiting_room_waits_exactly_as_long_as_it_may():
    hall = Hall()
    hall.pass_seconds(65)
    hall.can_load = False
    assert hall.ask() is None
    hall.now += RULES.room_s - 0.001
    hall.obey(hall.core.on_wake(hall.now))
    assert hall.refused == []
    hall.now += 0.001
    hall.obey(hall.core.on_wake(hall.now))
    assert hall.refused == [RefusalReason.BUSY]


@pytest.mark.further
def test_what_cannot_be_started_is_tried_again_later_and_said():
    hall = Hall()
    hall.can_start = False
    hall.pass_seconds(20, requests=150)
    assert (hall.running, hall.view.why) == (1, "no memory")
    assert hall.view.wanted >= 4
    assert 2 <= len(hall.asked) <= 6, "with growing pauses"
    hall.can_start = True
    hall.pass_seconds(40, requests=150)
    assert (hall.running, hall.view.why) == (hall.view.wanted, "")


def test_no_more_replicas_are_started_than_there_is_memory_for():
    card = msgspec.structs.replace(CARD, weight_bytes=100)
    hall = Hall(card=card, max_loaded_bytes=350)
    hall.pass_seconds(15, requests=150)
    assert hall.view.wanted > 3
    assert hall.running == 3


def test_a_hub_that_only_tells_starts_nothing():
    hall = Hall(obeys_scaling=False)
    hall.pass_seconds(15, requests=150)
    assert (hall.asked, hall.running) == ([], 1)
    assert hall.view.wanted >= 4
    assert hall.view.need > 3
    hall.pass_seconds(200)
    assert hall.loads == []


def test_a_retired_model_is_scaled_no_more():
    hall = Hall()
    hall.pass_seconds(3, requests=10)
    hall.answer()
    hall.obey(hall.core.lineup.retire("echo@1", hall.now))
    assert hall.running == 0, "at once, although nobody has looked yet"
    hall.pass_seconds(2)
    assert hall.core.lineup.scaling.views() == {}


@pytest.mark.further
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.booleans()), max_size=12))
def test_whatever_the_load_each_request_is_answered_or_refused_and_the_number_is_within_its_limits(parts):
    hall, let_in = Hall(), 0
    for requests, seconds, works in parts:
        hall.can_start = hall.can_load = works
        for _ in range(requests):
            let_in += hall.ask() is None
        hall.pass_seconds(seconds)
        assert all(1 <= count <= RULES.ceiling for count in hall.asked)
        assert all(view.running <= RULES.ceiling for view in hall.core.lineup.scaling.views().values())
    hall.can_load = True
    hall.pass_seconds(80)
    assert hall.core.open_count == 0
