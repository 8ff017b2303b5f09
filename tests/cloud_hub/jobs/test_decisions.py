"""What follows from a result: whatever is reported, a job makes an allowed move, and does not run for ever."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.jobs.decisions import JobAnswer, JobRefusal, JobSettings, WaitInQueue, decide_move
from cloud_hub.jobs.states import ENDED, MOVES, OPEN, JobMove, JobState
from tests.cloud_hub.jobs.making import NOW_MS, job
from wire.protocol.messages import RefusalReason

SETTINGS = JobSettings(tries=3)
RUNNING = job(state=JobState.RUNNING, claims=1)
OUTCOMES = st.one_of(
    st.just(JobAnswer(b"sealed")),
    st.builds(JobRefusal, st.sampled_from(RefusalReason), st.floats(0, 1e6), st.sampled_from(["", "because"])),
)


def refuse(reason: RefusalReason, **changes):
    return decide_move(
        msgspec.structs.replace(RUNNING, **changes), JobRefusal(reason, 2.0), SETTINGS, NOW_MS, (0.5, True)
    )


@given(OUTCOMES, st.floats(0, 1), st.booleans(), st.integers(0, 3), st.integers(-10_000, 10_000))
def test_every_result_is_an_allowed_move_or_a_wait_that_ends(outcome, jitter, may_retry, tries, left_ms):
    running = job(state=JobState.RUNNING, claims=1, tries=tries, timer_ms=NOW_MS + left_ms)
    found = decide_move(running, outcome, SETTINGS, NOW_MS, (jitter, may_retry))
    if isinstance(found, WaitInQueue):
        assert 0 < found.delay_s <= 30
        assert left_ms > 0, "nobody waits beyond his own time"
        return
    assert found.state in MOVES[JobState.RUNNING]
    assert found.ends == (found.state in ENDED)
    assert found.state is JobState.ANSWERED or found.why or found.state is JobState.QUEUED
    assert found.not_before_ms - NOW_MS <= 300_000
    assert (found.answer is not None) == isinstance(outcome, JobAnswer)


@given(st.integers(0, 1 << 32))
def test_a_model_that_never_comes_back_leaves_a_dead_job_with_a_reason_as_soon_as_its_tries_are_used(seed):
    dice = Random(seed)
    chances = [(dice.random(), dice.random() < 0.5) for _ in range(400)]
    running, counted = RUNNING, 0
    for chance in chances:
        found = decide_move(running, JobRefusal(RefusalReason.MODEL_GONE), SETTINGS, NOW_MS, chance)
        assert isinstance(found, JobMove)
        counted += chance[1] or running.tries == 0
        assert found.tries == counted <= SETTINGS.tries
        if found.ends:
            assert (found.state, found.why) == (JobState.DEAD, "tried 3 times: no hub here serves its model")
            assert counted == SETTINGS.tries
            return
        running = msgspec.structs.replace(running, tries=found.tries)
    assert counted < SETTINGS.tries


@pytest.mark.parametrize("reason", [RefusalReason.BUSY, RefusalReason.RATE])
def test_a_busy_hub_costs_no_try_and_no_write(reason):
    assert isinstance(refuse(reason), WaitInQueue)


def test_a_hub_that_stops_gives_a_job_back_as_it_was():
    found = refuse(RefusalReason.DRAINING, tries=2)
    assert (found.state, found.tries, found.not_before_ms) == (JobState.QUEUED, 2, NOW_MS)


def test_a_poisoned_input_is_dead_at_once_and_says_so():
    found = refuse(RefusalReason.ENGINE)
    assert found.state is JobState.DEAD
    assert "the input is at fault" in found.why
    assert found.timer_ms == NOW_MS + 7 * 86_400_000


def test_the_table_of_moves_has_no_way_out_of_an_ending_but_for_the_dead():
    assert {state for state in MOVES if state in ENDED} == {JobState.DEAD}
    assert frozenset(JobState) == OPEN | ENDED
    assert JobState.ANSWERED not in MOVES
    assert JobState.ANSWERED not in MOVES[JobState.QUEUED]
