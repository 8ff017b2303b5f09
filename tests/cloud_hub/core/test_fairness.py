"""However ten hostile tenants flood a hub, an honest device or caller beside them gets what it gets alone."""

from collections import Counter
from enum import StrEnum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.core.web_requests import InferOptions
from simulations.nodes.plain_envelopes import PlainEnvelopes
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CARD
from tests.cloud_hub.stories.test_core_machine import PlainDevice
from wire.protocol.messages import Refusal

HOSTILE = 10
SAMPLE = np.zeros(10, np.float32)
MAX_STEPS_LATE = 1  # an answer may wait for the batch that was formed before its question came


class Attack(StrEnum):
    """What a hostile tenant floods a hub with."""

    QUESTIONS = "questions"
    WEB_REQUESTS = "web_requests"  # of 16 samples each
    REPLAYS = "replays"  # of questions that the hub looks up in its store
    BAD_SIGNATURES = "bad_signatures"
    NOTES = "notes"
    STRANGER = "stranger"  # a device that is not enrolled


ATTACKS = st.one_of(st.just(Attack.WEB_REQUESTS), st.sampled_from(Attack))  # the former alone fill the queue
STEPS = st.lists(
    st.lists(
        st.tuples(st.integers(0, HOSTILE - 1), ATTACKS, st.integers(1, 60), st.sampled_from((1, 0, 3))), max_size=3
    ),
    min_size=1,
    max_size=5,
)


class Crowd:
    """A hub with an honest device and ten hostile ones, each of a tenant of its own, in virtual time."""

    def __init__(self) -> None:
        self.honest = PlainDevice("honest--d")
        self.hostile = [PlainDevice(f"hostile-{n}--d") for n in range(HOSTILE)]
        self.bench = Bench(self.honest, *self.hostile, envelopes=PlainEnvelopes(), max_queued=1024, max_batch=32)
        self._seq = 1000
        self._web = 0

    def attack(self, number: int, attack: Attack, count: int, priority: int) -> None:
        device, bench = self.hostile[number], self.bench
        for _ in range(count):
            self._seq += 2  # none is poison to the bench's engine
            frame = device.question(self._seq, bench.now, priority=priority)
            match attack:
                case Attack.QUESTIONS:
                    bench.say(device.up, frame)
                case Attack.WEB_REQUESTS:
                    self.ask_web(f"hostile-{number}", priority, samples=16)
                case Attack.REPLAYS:
                    bench.say(device.up, device.question(self._seq - 900, bench.now - 3600.0, priority=priority))
                case Attack.BAD_SIGNATURES:
                    bench.say(device.up, frame[:-1] + b"\1")
                case Attack.NOTES:
                    bench.say(device.ask_topic, device.ask(self._seq))
                case Attack.STRANGER:
                    stranger = PlainDevice(f"hostile-{number}--x")
                    bench.say(stranger.up, stranger.question(self._seq, bench.now))

    def ask_web(self, tenant: str, priority: int, samples: int = 1) -> bool:
        """Ask over the web; whether the request was let in."""
        self._web += 1
        wish = InferOptions(tenant=tenant, priority=priority)
        return self.bench.core.queue_web_request(self._web, CARD.name, [SAMPLE] * samples, self.bench.now, wish) is None

    def pass_step(self) -> None:
        self.bench.wait(0.2)
        self.bench.flush()
        self.bench.commit()
        self.bench.infer()
        self.bench.commit()


def ask_device(steps: list[list[tuple[int, Attack, int, int]]], *, hostile: bool) -> list[int]:
    """Return how many steps each question of the honest device waited; it asks the next one once it has an answer."""
    crowd, waited, asked_at = Crowd(), list[int](), 0
    crowd.bench.ask(crowd.honest, 1)
    for number, step in enumerate(steps + [[]] * (MAX_STEPS_LATE + 2)):
        for each in step if hostile else ():
            crowd.attack(*each)
        crowd.pass_step()
        if crowd.bench.verdicts(crowd.honest):
            waited.append(number - asked_at)
            asked_at = number + 1
            crowd.bench.ask(crowd.honest, len(waited) + 1)
    return [*waited, number + 1 - asked_at]  # the last one's so far


@settings(max_examples=10, deadline=None)
@given(STEPS)
def test_an_honest_device_is_answered_beside_ten_hostile_tenants_as_alone(steps):
    assert max(ask_device(steps, hostile=True)) <= max(ask_device(steps, hostile=False)) + MAX_STEPS_LATE


@pytest.mark.parametrize("attack", Attack)
def test_no_flood_of_ten_tenants_delays_an_honest_device(attack):
    steps = [[(number, attack, 30, number % 4) for number in range(HOSTILE)]] * 2
    assert max(ask_device(steps, hostile=True)) <= max(ask_device(steps, hostile=False)) + MAX_STEPS_LATE


def test_a_tenant_that_asks_beside_ten_that_fill_the_queue_with_urgent_work_is_let_in():
    crowd = Crowd()
    for number in range(HOSTILE):
        crowd.attack(number, Attack.WEB_REQUESTS, 100, 1)
    assert [crowd.ask_web("honest", priority) for priority in (0, 1, 3)] == [True] * 3
    crowd.bench.ask(crowd.honest, 1)
    crowd.bench.commit()
    assert crowd.bench.core.counts["accepted"] == 1


@settings(max_examples=10, deadline=None)
@given(STEPS, st.integers(0, 3))
def test_an_honest_caller_is_let_in_beside_ten_hostile_tenants_as_alone(steps, priority):
    def ask(*, hostile: bool) -> list[bool]:
        crowd, let_in = Crowd(), []
        for step in steps:
            for each in step if hostile else ():
                crowd.attack(*each)
            let_in.append(crowd.ask_web("honest", priority))
            crowd.pass_step()
        return let_in

    assert ask(hostile=True) == ask(hostile=False) == [True] * len(steps)


def test_replays_of_ten_tenants_leave_an_honest_device_lookups_of_its_own():
    crowd = Crowd()
    for _ in range(4):
        for number in range(HOSTILE):
            crowd.attack(number, Attack.REPLAYS, 50, 1)
    refused = Counter(device for device, note in crowd.bench.notes if isinstance(note, Refusal))
    assert refused.keys() == {hostile.id for hostile in crowd.hostile}, "there is no more room for one of them"
    crowd.bench.ask(crowd.honest, 1)
    assert crowd.honest.id not in {device for device, _ in crowd.bench.notes}
    for _ in range(1 + MAX_STEPS_LATE):
        crowd.pass_step()
    assert crowd.bench.verdicts(crowd.honest)


@pytest.mark.parametrize("end", ["found", "failed", "shard lost"])
def test_lookups_that_ended_leave_their_room_to_others(end):
    crowd = Crowd()
    crowd.attack(0, Attack.REPLAYS, 1100, 1)
    assert crowd.bench.notes, "the room is full"
    match end:
        case "found":
            crowd.bench.commit()
        case "failed":
            crowd.bench.lose_commit()
        case "shard lost":
            crowd.bench.core.on_lost(range(256), crowd.bench.now)
    lookups = crowd.bench.core._intake._lookups
    device = crowd.hostile[0].id
    assert (len(lookups), lookups.tenants) == (0, 0)
    assert (lookups.count_for_device(device), lookups.count_for_tenant("hostile-0")) == (0, 0)
