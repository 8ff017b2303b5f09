"""Idempotency-Key of web inference: one computation per key and payload, within bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.serving.web_inference import (
    LIFE_S,
    MAX_KEYS,
    MAX_ROWS,
    Idempotency,
    KeyConflict,
    NewRequest,
    RequestRunning,
    StoredAnswer,
)
from wire.protocol.messages import Prediction

ANSWER = (Prediction(1, 0.9, (0.1, 0.9), "digits@7"),)
KEY = ("acme", "k1")


def test_a_second_request_waits_then_gets_the_first_ones_answer():
    keys = Idempotency()
    assert keys.begin(KEY, b"a", 0.0) == NewRequest()
    assert keys.begin(KEY, b"a", 1.0) == RequestRunning()
    keys.finish(KEY, ANSWER, 2.0)
    assert keys.begin(KEY, b"a", 3.0) == StoredAnswer(ANSWER)


def test_another_payload_under_the_same_key_is_refused_while_it_runs_and_afterwards():
    keys = Idempotency()
    keys.begin(KEY, b"a", 0.0)
    assert keys.begin(KEY, b"b", 0.0) == KeyConflict()
    keys.finish(KEY, ANSWER, 0.0)
    assert keys.begin(KEY, b"b", 0.0) == KeyConflict()


def test_another_tenants_key_is_another_key():
    keys = Idempotency()
    keys.begin(KEY, b"a", 0.0)
    assert keys.begin(("umbrella", "k1"), b"b", 0.0) == NewRequest()


def test_what_failed_may_be_tried_again_with_anything():
    keys = Idempotency()
    keys.begin(KEY, b"a", 0.0)
    keys.abandon(KEY)
    assert keys.begin(KEY, b"b", 0.0) == NewRequest()


def test_an_answer_lives_a_day_and_a_running_request_as_long_as_it_runs():
    keys = Idempotency()
    keys.begin(KEY, b"a", 0.0)
    assert keys.begin(KEY, b"a", 2 * LIFE_S) == RequestRunning()
    keys.finish(KEY, ANSWER, 0.0)
    assert keys.begin(KEY, b"a", LIFE_S - 1) == StoredAnswer(ANSWER)
    assert keys.begin(KEY, b"b", LIFE_S) == NewRequest()


def test_the_oldest_answers_go_first_and_what_runs_stays():
    keys = Idempotency()
    keys.begin(("acme", "runs"), b"a", 0.0)
    for number in range(MAX_KEYS + 10):
        name = ("acme", str(number))
        keys.begin(name, b"a", 0.0)
        keys.finish(name, ANSWER, 0.0)
    assert len(keys) <= MAX_KEYS
    assert keys.begin(("acme", "runs"), b"a", 0.0) == RequestRunning()
    assert keys.begin(("acme", "0"), b"a", 0.0) == NewRequest()
    big = ANSWER * (MAX_ROWS // 2)
    for number in range(4):
        keys.begin(("big", str(number)), b"a", 0.0)
        keys.finish(("big", str(number)), big, 0.0)
    assert keys._rows <= MAX_ROWS


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["begin", "finish", "abandon"]), st.booleans())))
def test_the_rows_that_are_counted_are_the_rows_that_are_kept(steps):
    keys, now = Idempotency(), 0.0
    for name, step, late in steps:
        now += LIFE_S if late else 1.0
        if step == "begin":
            keys.begin(("t", name), b"a", now)
        elif step == "finish" and (known := keys._known.get(("t", name))) and known.answer is None:
            keys.finish(("t", name), ANSWER, now)
        elif step == "abandon":
            keys.abandon(("t", name))
    assert keys._rows == sum(len(known.answer or ()) for known in keys._known.values())
