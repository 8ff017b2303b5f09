"""TOML of bounded cost: measured before it is parsed, and one error type."""

import pytest

from tests.random_inputs import COUNTS, random_inputs, try_parser
from wire.toml import MAX_DIGITS, MAX_LINE_POINTS, parse_toml

SOUND = [
    b'a.b."c.d" = 1\n[t]\nx = [1, 2.5, "\\u00e9"]\ny = { z = 1979-05-27T07:32:00Z }\n[[l]]\nn = 0x10\n',
    b"s = '''\nmany\nlines'''\nt = \"\"\"\\\n  x\"\"\"\nf = -1e-3\nb = true\nd = 1979-05-27\nh = 07:32:00.999\n",
]
WORDS = [
    b"a.a.a",
    b"[[l]]",
    b"[t.u]",
    b"'''",
    b'"""',
    b"inf",
    b"nan",
    b"0b1",
    b"0o7",
    b"1_0",
    b"24:00:00",
    b"2023-02-30",
]


def test_a_document_is_what_the_standard_library_reads():
    assert parse_toml("a.b = 1") == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = 1\n" + "a." * (MAX_LINE_POINTS + 1) + "a = 1", "line 2 has more than 1000 points"),
        ("x = 1\ny = 0x" + "f" * MAX_DIGITS, f"line 2 has a number of more than {MAX_DIGITS} digits"),
        ("x = [0." + "9" * (MAX_DIGITS + 1) + "]", f"line 1 has a number of more than {MAX_DIGITS} digits"),
        ("x" * 11, "11 characters, at most 10 are read"),
        ("x = " + "[" * 5000, "it is nested too deeply"),
        ("x = ", "Invalid value"),
    ],
)
def test_what_is_no_document_is_a_value_error_of_one_line(text, line):
    with pytest.raises(ValueError, match=line):
        parse_toml(text, 10 if text == "x" * 11 else 10_000)


def test_a_text_of_many_digits_is_read():
    digits = "9" * (MAX_DIGITS + 1)
    assert parse_toml(f'a = "{digits}"') == {"a": digits}


@pytest.mark.parametrize("count", COUNTS)
def test_random_documents_are_tables_or_value_errors(count):
    assert try_parser(lambda data: parse_toml(data.decode()), ValueError, random_inputs(count, SOUND, WORDS))
