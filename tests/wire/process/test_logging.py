"""JSON log under attack: payloads withheld, floods limited per event, a full disk survived."""

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
from aiohttp.http_exceptions import LineTooLong
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from wire.process.logging import BURST_LINES, MAX_FRAMES, JsonLog, LinkLog, describe_error, safe_name, safe_text

CANARY = "canary 3f9a: a secret sentence"


class Colour(StrEnum):
    RED = "red"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def logged(*, least: str = "info") -> tuple[JsonLog, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    return JsonLog(stream, clock, least), stream, clock


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def in_process(script: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, check=True)
    return run.stdout.decode().strip()


def test_a_line_is_json_with_numbers_enums_and_names():
    log, stream, _ = logged()
    log.info("sent", bytes=12, share=0.1234567, up=True, colour=Colour.RED, device=safe_name("demo--d1"))
    expected = {"bytes": 12, "share": 0.123457, "up": True, "colour": "red", "device": "demo--d1"}
    assert lines(stream) == [{"at": 0.0, "level": "info", "event": "sent", **expected}]


@pytest.mark.parametrize("value", [CANARY, CANARY.encode(), [CANARY], {"a": CANARY}, object(), None, "a\nb"])
def test_what_is_no_name_is_withheld_even_if_types_were_ignored(value):
    log, stream, _ = logged()
    log.error("oops", value=value)
    assert "withheld" in stream.getvalue()
    assert "canary" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


@given(st.text(max_size=200))
def test_a_name_is_short_printable_and_breaks_no_line(text):
    made = safe_name(text)
    assert made == text or made == f"withheld:{len(text)}"
    assert len(made) <= 120
    assert made.isascii()
    assert made.isprintable()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_has_not_is_null(value):
    log, stream, _ = logged()
    log.info("odd", value=value)
    assert lines(stream)[0]["value"] is None


def test_an_error_is_told_by_type_and_place_never_by_text():
    with pytest.raises(ValueError, match="canary") as caught:
        int(CANARY)
    told = describe_error(caught.value)
    assert told.startswith("ValueError@test_logging.py:")
    assert describe_error(KeyError(CANARY)) == "KeyError"


def fail_deep(secret: str, depth: int) -> None:
    if depth:
        fail_deep(secret, depth - 1)
    json.loads(secret)


def test_a_defect_is_logged_with_the_calls_that_led_to_it_and_no_value():
    log, stream, _ = logged()
    try:
        fail_deep(CANARY, 1)
    except ValueError as error:
        log.defect("hub_defect", error, device=safe_name("demo--d1"))
    (line,) = lines(stream)
    assert (line["level"], line["event"], line["device"]) == ("error", "hub_defect", "demo--d1")
    assert line["error"].startswith("JSONDecodeError@decoder.py:")
    assert [frame.rpartition(":")[2] for frame in line["frames"]] == [
        "test_a_defect_is_logged_with_the_calls_that_led_to_it_and_no_value",
        *("fail_deep", "fail_deep", "loads", "JSONDecoder.decode", "JSONDecoder.raw_decode"),
    ]
    assert line["frames"][0].startswith("tests/wire/process/test_logging.py:")
    assert line["frames"][-1].startswith("json/decoder.py:")
    assert "canary" not in stream.getvalue()


def test_of_many_calls_the_innermost_are_logged_and_of_a_group_those_of_its_first_error():
    log, stream, _ = logged()
    errors: list[Exception] = []
    for call in (lambda: fail_deep(CANARY, 50), lambda: int(CANARY)):
        try:
            call()
        except ValueError as error:
            errors.append(error)
    log.defect("task_failed", ExceptionGroup(CANARY, errors))
    (line,) = lines(stream)
    assert len(line["frames"]) == MAX_FRAMES
    assert line["frames"][-1].endswith(":JSONDecoder.raw_decode")
    assert line["error"].startswith("JSONDecodeError@decoder.py:")
    assert "canary" not in stream.getvalue()


def test_a_frame_holds_no_folder_of_the_machine_and_nothing_that_breaks_a_line():
    log, stream, _ = logged()
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("(lambda: 1 / 0)()", "/home/ann/my secret\nfolder/x.py", "exec"), {"__name__": "x"})
    log.defect("hub_defect", caught.value)
    (line,) = lines(stream)
    assert line["frames"][-1] == "x.py:1:[lambda]"
    assert "ann" not in stream.getvalue()


def test_what_libraries_log_comes_without_its_text():
    log, stream, _ = logged()
    before = logging.root.handlers[:], logging.root.level
    try:
        log.capture_logging()
        logging.getLogger("some.library").warning("lost %s", CANARY)
        logging.getLogger("some.library").error(CANARY, exc_info=ValueError(CANARY))
        logging.getLogger("some.library").info("chatter")
    finally:
        logging.root.handlers[:], logging.root.level = before
    first, second = lines(stream)
    assert (first["event"], first["logger"], first["level"]) == ("library", "some.library", "warning")
    assert second["error"].startswith("ValueError")
    assert "canary" not in stream.getvalue()


def test_a_flood_of_one_event_is_cut_and_counted_and_hides_no_other():
    log, stream, clock = logged()
    for _ in range(1000):
        log.warning("flood")
    log.warning("other")
    assert [line["event"] for line in lines(stream)] == ["flood"] * BURST_LINES + ["other"]
    clock.now = 1.0
    log.warning("flood")
    assert lines(stream)[-1] == {"at": 1.0, "level": "warning", "event": "flood", "suppressed": 1000 - BURST_LINES}
    clock.now = 0.0  # the clock went back: no burst out of it
    log.warning("flood")
    assert len(lines(stream)) == BURST_LINES + 2


def test_a_level_below_the_least_is_silent():
    log, stream, _ = logged(least="warning")
    log.info("quiet")
    log.warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_a_log_that_cannot_be_written_stops_nothing():
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    JsonLog(Full()).error("lost")
    stream = io.StringIO()
    stream.close()
    JsonLog(stream).error("lost")
    assert (
        in_process(
            "import sys, wire.process.logging; sys.stderr = None; wire.process.logging.JsonLog().error('x'); print(1)"
        )
        == "1"
    )


def test_a_link_writes_one_line_for_each_change_and_none_for_each_attempt():
    log, stream, _ = logged()
    link = LinkLog(log, safe_name("broker"))
    for _ in range(50):
        link.on_failed("[Errno 111] Connection refused")
    link.on_up()
    for _ in range(50):
        link.on_failed("")
    link.on_up()
    assert [(line["event"], line.get("error"), line.get("failed")) for line in lines(stream)] == [
        ("link_unreachable", "[Errno 111] Connection refused", None),
        ("link_up", None, 50),
        ("link_lost", "none", None),
        ("link_up", None, 50),
    ]


def test_a_link_that_flaps_fills_no_disk():
    log, stream, _ = logged()
    link = LinkLog(log, safe_name("broker"))
    for _ in range(1000):
        link.on_up()
        link.on_failed("lost")
    assert len(lines(stream)) == 2 * BURST_LINES


def test_a_text_of_a_program_becomes_one_token():
    assert safe_text("Error: TLS, (bad \n thing\x1b)") == "Error: TLS, (bad thing )"
    assert len(safe_text("x" * 500)) == 120


def test_bytes_that_are_no_http_are_no_error_of_ours(own_logging):
    log, stream, _ = logged()
    log.capture_logging()
    logger = logging.getLogger("aiohttp.server")
    for error in (LineTooLong("header", "100"), ZeroDivisionError()):
        logger.error("Error handling request", exc_info=error)
    said = [(line["level"], line["event"], line["error"].partition("@")[0]) for line in lines(stream)]
    assert said == [("info", "bad_request", "LineTooLong"), ("error", "library", "ZeroDivisionError")]


@pytest.fixture
def own_logging() -> Iterator[None]:
    """`capture_logging` takes over the whole process's logging; here the process is the test run."""
    before = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = before
