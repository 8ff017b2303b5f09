"""Exchanges without a network: what is sent again, how a stream goes on where it broke, what bytes are decoded to."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import skerry_client
from skerry_client.errors import make_status_error
from skerry_client.exchange.commands import (
    MAX_TRIES,
    Item,
    Open,
    Pause,
    Read,
    Reply,
    Request,
    advance,
    build_path,
    encode_json,
    fetch_object,
    post_json,
    send,
)
from skerry_client.exchange.events import MAX_EVENT_CHARS, EventDecoder, ServerEvent, follow_events

GET = Request("GET", "/v1/status", safe=True)
POST = Request("POST", "/v2/models/m/infer", b"{}")
STREAM = {"content-type": "text/event-stream"}
ARRIVED = skerry_client.APITimeoutError("too slow", sent=True, elapsed_s=1.0)
REFUSED = skerry_client.APIConnectionError("connection refused", elapsed_s=1.0)


def reply(status: int = 200, body: Any = None, **headers: str) -> Reply:
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(body).encode())


def play(steps: Any, *outcomes: Any) -> tuple[list[Any], Any]:
    """(commands, result) of an operation whose requests come to these outcomes; pauses are obeyed at once."""
    given, commands = iter(outcomes), []
    command = next(steps)
    try:
        while True:
            commands.append(command)
            command = advance(steps, None if isinstance(command, Pause) else next(given))
    except StopIteration as ended:
        return commands, ended.value


def test_a_request_that_surely_did_not_arrive_is_sent_again_after_a_random_pause():
    commands, found = play(send(POST), REFUSED, REFUSED, reply())
    assert [type(each) for each in commands] == [Request, Pause, Request, Pause, Request]
    assert (commands[1].least_s, commands[1].most_s * 2) == (0.0, commands[3].most_s)
    assert found.ok


def test_what_may_have_arrived_is_sent_again_only_if_that_is_harmless():
    with pytest.raises(skerry_client.APITimeoutError):
        play(send(POST), ARRIVED)
    assert play(send(GET), ARRIVED, reply())[1].ok
    assert play(send(post_json("/v1/jobs", {}, key="order-17")), ARRIVED, reply(202))[1].ok


def test_a_busy_server_is_asked_again_when_it_says_so_and_not_without_a_time():
    commands, _ = play(send(POST), reply(503, retry_after="7"), reply())
    assert (commands[1].least_s, commands[1].most_s) == (7.0, 8.75)
    with pytest.raises(skerry_client.ServiceUnavailableError, match="no_model"):
        play(send(POST), reply(503, {"error": "no_model"}))
    with pytest.raises(skerry_client.RateLimitError) as refused:
        play(send(POST), *[reply(429, {"error": "busy"}, retry_after="1")] * MAX_TRIES)
    assert refused.value.retry_after_s == 1.0
    with pytest.raises(skerry_client.RateLimitError):
        play(send(POST), reply(429, retry_after="86400"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, skerry_client.BadRequestError),
        (401, skerry_client.AuthenticationError),
        (403, skerry_client.PermissionDeniedError),
        (404, skerry_client.NotFoundError),
        (409, skerry_client.ConflictError),
        (418, skerry_client.APIStatusError),
        (422, skerry_client.UnprocessableEntityError),
        (429, skerry_client.RateLimitError),
        (500, skerry_client.InternalServerError),
        (504, skerry_client.InternalServerError),
    ],
)
def test_each_refusal_is_an_error_of_its_own_with_the_servers_line(status, kind):
    with pytest.raises(skerry_client.APIStatusError) as refused:
        play(send(GET), reply(status, {"error": "why\x1b[31m so"}))
    assert type(refused.value) is kind
    assert str(refused.value) == f"GET /v1/status: {status}: why?[31m so"
    assert refused.value.status_code == status


def test_refusals_in_openais_form_or_in_none_at_all_are_errors_too():
    with pytest.raises(skerry_client.NotFoundError, match="no such model"):
        play(send(GET), reply(404, {"error": {"message": "no such model"}}))
    for body in (b"<html>", b"[]", b'{"error": 7}', b"\xff", b"[" * 100_000):
        with pytest.raises(skerry_client.InternalServerError, match="502: bad gateway"):
            play(send(GET), Reply(502, {}, body))
    assert make_status_error(599, "", "").status_code == 599


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b"[1]", b"null", b"\xff", b"[" * 100_000])
def test_a_reply_that_is_no_json_object_is_said_to_be_none(body):
    with pytest.raises(skerry_client.APIResponseValidationError, match="is this a Skerry server"):
        play(fetch_object(GET), Reply(200, {}, body))


def test_paths_are_quoted_and_bodies_hold_no_nan():
    path = build_path("v1", "a/b?c", state=["dead", "queued"], after=None, limit=5)
    assert path == "/v1/a%2Fb%3Fc?state=dead&state=queued&limit=5"
    with pytest.raises(ValueError, match="JSON"):
        encode_json({"x": float("nan")})


def event(number: int, name: str = "correction", data: str = "{}") -> bytes:
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n".encode()


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_a_stream_cut_anywhere_is_decoded_alike(cuts, line_end):
    stream = (b"retry: 2000\nid: 3\n\n: beat\n\n" + event(4, data="a\ndata:b") + event(5, data="\u00e4")).replace(
        b"\n", line_end
    )
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = EventDecoder()
    found = [each for at, end in pairwise(bounds) for each in decoder.feed(stream[at:end])]
    assert found == [ServerEvent("4", "correction", "a\nb"), ServerEvent("5", "correction", "\u00e4")]
    assert decoder.last_id == "5"


def test_an_event_beyond_all_measure_ends_the_stream():
    decoder = EventDecoder()
    assert decoder.feed(b"data: " + b"x" * (MAX_EVENT_CHARS // 2) + b"\n") == []
    with pytest.raises(skerry_client.APIResponseValidationError, match="an event of more than"):
        decoder.feed(b"data: " + b"x" * MAX_EVENT_CHARS + b"\n")


def follow(after: int | None = 0, patience_s: float = 60.0) -> Any:
    return follow_events("/v1/events", after, patience_s, lambda each: each.id if each.name == "correction" else None)


def watch(steps: Any, *outcomes: Any) -> tuple[list[str], list[Any]]:
    """(items, requests) of a stream whose commands come to these outcomes, until they are used up."""
    given, items, requests = iter(outcomes), [], []
    command = next(steps)
    while True:
        if isinstance(command, Item):
            items.append(command.value)
            command = next(steps)
            continue
        if isinstance(command, Open):
            requests.append(command.request.headers.get("Last-Event-ID"))
        outcome = None if isinstance(command, Pause) else next(given, STOP)
        if outcome is STOP:
            return items, requests
        command = advance(steps, outcome)


STOP = object()
OPENED = Reply(200, STREAM, b"")


def test_a_stream_goes_on_behind_its_last_event_and_gives_none_twice():
    items, requests = watch(
        follow(7), OPENED, event(8), ARRIVED, OPENED, event(8) + event(9, "answer") + event(10), b"", OPENED
    )
    assert items == ["8", "10"]
    assert requests == ["7", "8", "10"]


def test_a_stream_that_broke_before_its_first_event_goes_on_where_it_began():
    items, requests = watch(follow(None), OPENED, b"retry: 2000\nid: 41\n\n", REFUSED, OPENED, event(42), b"", OPENED)
    assert (items, requests) == (["42"], [None, "41", "42"])


def test_a_stream_waits_for_a_device_that_restarts_and_gives_up_after_its_patience():
    items, _ = watch(follow(), *[REFUSED] * 5, Reply(503, {}, b"{}"), OPENED, event(1))
    assert items == ["1"]
    with pytest.raises(skerry_client.APIConnectionError, match="connection refused"):
        watch(follow(patience_s=10.0), *[REFUSED] * 50)


@pytest.mark.parametrize(
    ("outcomes", "kind"),
    [
        ([Reply(401, {}, b'{"error":"no token"}')], skerry_client.AuthenticationError),
        ([Reply(404, {}, b"{}")], skerry_client.NotFoundError),
        ([Reply(200, {"content-type": "text/html"}, b"")], skerry_client.APIResponseValidationError),
        ([OPENED, b"id: seven\ndata: {}\n\n"], skerry_client.APIResponseValidationError),
        ([OPENED, b"data: {}\n\n"], skerry_client.APIResponseValidationError),
    ],
)
def test_a_stream_that_is_refused_or_none_of_ours_ends_with_an_error(outcomes, kind):
    with pytest.raises(kind):
        watch(follow(None), *outcomes)


def test_reads_only_what_was_opened():
    steps = follow()
    assert isinstance(next(steps), Open)
    assert isinstance(steps.send(OPENED), Read)
