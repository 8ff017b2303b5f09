"""Strict JSON: what another reader could understand otherwise is refused."""

import pytest

from wire.http.strict_json import parse_strict_json


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]', "1e999", "{", b"\xff"])
def test_what_two_readers_could_understand_otherwise_is_refused(text):
    with pytest.raises(ValueError):
        parse_strict_json(text)


def test_a_whole_number_with_a_fraction_of_zero_is_one_and_beyond_a_double_stays_a_float():
    assert [(value, type(value)) for value in parse_strict_json("[3.0, 2.5, 1e300]")] == [
        (3, int),
        (2.5, float),
        (1e300, float),
    ]
