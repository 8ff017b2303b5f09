"""Payloads of sensors: what is read, and that whatever else comes is refused by a fixed word."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.sources.sensor_payload import (
    BinaryPayload,
    JsonPayload,
    PayloadSteps,
    SensorPayloadError,
    TimeUnit,
    check_layout,
    parse_path,
    spread_times,
)

WORDS = {
    "no_json", "path_not_there", "no_numbers", "not_of_this_size", "other_channels", "times_and_steps_differ",
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["x", "y", "t", "a"]), inner, max_size=4)
    ),
    max_leaves=20,
)


def read(payload, paths, channels=None, time="", unit=TimeUnit.S):
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return JsonPayload(paths, time, unit).read(raw, channels or len(paths))


def refused(payload, *rest, **keys):
    with pytest.raises(SensorPayloadError) as found:
        read(payload, *rest, **keys)
    assert found.value.reason in WORDS
    return found.value.reason


def steps_or_word(reading, channels):
    word = None
    try:
        found = reading()
        spread_times(found, 10.0, 0.0)
    except SensorPayloadError as error:
        word = error.reason
    assert word in WORDS or (found.steps.shape[1] == channels and np.isfinite(found.steps).all())


@pytest.mark.parametrize(
    ("payload", "paths", "channels", "steps"),
    [
        (b"21.5", ["."], 1, [[21.5]]),
        ({"t": 20, "h": 0.5}, ["t", "h"], 2, [[20, 0.5]]),
        ({"a": {"b": [{"c": 1}]}}, ["a.b[0].c"], 1, [[1]]),
        ({"x": [1, 2, 3], "y": [4, 5, 6]}, ["x", "y"], 2, [[1, 4], [2, 5], [3, 6]]),
        ({"v": [1, 2, 3, 4]}, ["v"], 2, [[1, 2], [3, 4]]),
        ({"v": [[1, 2], [3, 4]]}, ["v"], 2, [[1, 2], [3, 4]]),
        ([1, 2, 3], ["."], 3, [[1, 2, 3]]),
        ([1, 2, 3], ["."], 1, [[1], [2], [3]]),
        ([[1], [2]], ["."], 1, [[1], [2]]),
    ],
)
def test_numbers_are_found_where_the_paths_lead(payload, paths, channels, steps):
    np.testing.assert_array_equal(read(payload, paths, channels).steps, np.array(steps, np.float32))


@pytest.mark.parametrize(
    ("value", "unit", "times"),
    [
        (1.5, TimeUnit.S, [1.5]),
        (1_500, TimeUnit.MS, [1.5]),
        ("1970-01-01T00:00:01.5", TimeUnit.S, [1.5]),
        ("1970-01-01T01:00:01.5+01:00", TimeUnit.S, [1.5]),
        ("1970-01-01T00:00:01.5Z", TimeUnit.S, [1.5]),
        ([1, 2], TimeUnit.S, [1.0, 2.0]),
    ],
)
def test_times_are_numbers_or_texts(value, unit, times):
    assert list(read({"v": [1, 2], "t": value}, ["v"], 1, "t", unit).times_s) == times


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"{", b"\xff", b"NaN", b"[" * 100_000, b'{"x": 1e999}', {"y": 1}, {"x": "1"}, {"x": True}, {"x": None},
        {"x": {}}, {"x": []}, {"x": [[1, 2], [3]]}, {"x": [1, "2"]}, {"x": [1, [2]]}, [1], 1, "x", {"x": 1e39},
        {"x": [1] * 70_000}, {"x": 10**400},
    ],
)  # fmt: skip
def test_what_holds_no_numbers_is_refused(payload):
    refused(payload, ["x"])


def test_channels_of_different_length_are_refused():
    assert refused({"x": [1, 2], "y": [1]}, ["x", "y"]) == "no_numbers"
    assert refused({"x": [1, 2, 3]}, ["x"], 2) == "no_numbers"


@pytest.mark.parametrize("time", [True, None, {}, "yesterday", [[1]]])
def test_a_time_that_is_none_is_refused(time):
    assert refused({"x": 1, "t": time}, ["x"], time="t") == "no_numbers"


@given(JSON, st.sampled_from([["x"], ["x", "y"], ["."], ["a.x", "a.y"], ["x[0]"]]), st.integers(1, 3))
def test_whatever_shape_of_json_comes_it_is_steps_or_a_word(content, paths, channels):
    raw = json.dumps(content).encode()
    steps_or_word(lambda: JsonPayload(paths, "t", TimeUnit.MS).read(raw, channels), channels)


@given(st.binary(max_size=200), st.sampled_from(["<hh", "<d", ">fH", "<Qe"]), st.integers(1, 3))
def test_whatever_bytes_come_they_are_steps_or_a_word(payload, layout, channels):
    steps_or_word(lambda: BinaryPayload(layout, -1, TimeUnit.S).read(payload, channels), channels)


def test_a_layout_is_read_once_or_several_times_with_its_time():
    payload = struct.pack("<Qhh", 1_000, 1, 2) + struct.pack("<Qhh", 2_000, 3, 4)
    found = BinaryPayload("<Qhh", 0, TimeUnit.MS).read(payload, 2)
    np.testing.assert_array_equal(found.steps, [[1, 2], [3, 4]])
    assert list(found.times_s) == [1.0, 2.0]
    np.testing.assert_array_equal(BinaryPayload("<6h", -1, TimeUnit.S).read(bytes(12), 3).steps, np.zeros((2, 3)))


@pytest.mark.parametrize("path", ["", "a..b", "a[", "a[x]", "[1", "a b]", "a.[1]x["])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(ValueError, match="is no path"):
        parse_path(path)


@pytest.mark.parametrize("layout", ["", "hh4s", "c", "<P", "99999d" * 9, "<", "x"])
def test_a_layout_that_is_none_is_refused(layout):
    with pytest.raises(ValueError, match="layout"):
        check_layout(layout)


def test_steps_without_times_are_spread_before_the_time_of_arrival():
    steps = np.zeros((3, 1), np.float32)
    assert list(spread_times(PayloadSteps(steps, ()), 10.0, 5.0)) == pytest.approx([4.8, 4.9, 5.0])
    assert list(spread_times(PayloadSteps(steps, [1.0]), 10.0, 5.0)) == pytest.approx([1.0, 1.1, 1.2])
    with pytest.raises(SensorPayloadError):
        spread_times(PayloadSteps(steps, [1.0, 2.0]), 10.0, 5.0)
