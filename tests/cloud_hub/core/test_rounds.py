"""The round that is being gathered: who is expected in it, and when it ends."""

import pytest

from cloud_hub.core.rounds import QuestionRound
from policies.serving.rounds import RoundLimits

LIMITS = RoundLimits(max_wait_s=0.01)
NOW = 1_000.0


class Bench:
    def __init__(self) -> None:
        self.open = 0
        self.round = QuestionRound(LIMITS, lambda: self.open)

    def ask(self, device: str, now: float, deadline: float = NOW + 100.0) -> float:
        """Seconds that the round waits after this question."""
        self.open += 1
        self.round.add(device, deadline, now)
        return self.round.find_end(busy=1.0) - now

    def answer_all(self) -> None:
        self.round.close()
        self.open = 0


def test_one_device_after_its_own_answer_waits_for_nobody():
    bench = Bench()
    for number in range(50):
        assert bench.ask("demo--a", NOW + number * 0.002) <= 0.0
        bench.answer_all()


def test_two_devices_that_ask_in_turns_wait_for_each_other():
    bench = Bench()
    waits = []
    for number in range(20):
        waits.append(bench.ask(f"demo--{number % 2}", NOW + number * 0.004))
        if waits[-1] <= 0.0:
            bench.answer_all()
    assert waits[0] <= 0.0  # nobody else was heard of
    assert waits[1::2] == [pytest.approx(0.01)] * 10  # the other one is expected
    assert all(wait <= 0.0 for wait in waits[::2])  # and there it is


def test_who_has_not_asked_for_a_while_is_not_expected():
    bench = Bench()
    for number in range(8):
        bench.ask(f"demo--{number}", NOW)
    bench.answer_all()
    assert bench.ask("demo--a", NOW + 1.0) <= 0.0


def test_a_clock_that_went_back_makes_nobody_wait():
    bench = Bench()
    for number in range(8):
        bench.ask(f"demo--{number}", NOW)
    bench.answer_all()
    assert bench.ask("demo--a", NOW - 100.0) <= 0.0


def test_a_tight_deadline_ends_the_round_earlier():
    bench = Bench()
    bench.ask("demo--a", NOW)
    bench.ask("demo--b", NOW + 0.001)
    bench.round.close()
    assert bench.ask("demo--a", NOW + 0.002) == pytest.approx(0.01)
    assert bench.ask("demo--c", NOW + 0.002, deadline=NOW + 0.102) == pytest.approx(0.002)


def test_what_was_flushed_by_another_event_begins_no_round_of_its_own():
    bench = Bench()
    bench.ask("demo--a", NOW)
    bench.ask("demo--b", NOW)
    bench.round.close()
    assert bench.round.find_end(busy=1.0) <= NOW
