"""The one pass over a JSON text finds what a decoder that skips values does not, and agrees with one that builds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.http.json_scan import MAX_DEPTH, MAX_OPEN_KEYS, MAX_PARTS, JsonRefusedError, is_utf8, scan_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def list_texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in list_texts(each)]


@given(VALUES, st.booleans())
def test_every_string_value_of_a_json_text_is_found_in_its_order(value: object, ascii_only: bool):
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = [json.loads(b'"' + text[each.start : each.end] + b'"') for each in scan_json(text)]
    assert found == list_texts(value)


@given(st.binary(max_size=200))
def test_whatever_is_scanned_is_read_or_refused(text: bytes):
    try:
        assert all(0 < each.start <= each.end <= len(text) for each in scan_json(text))
    except JsonRefusedError:
        return


def refuse(text: bytes) -> str:
    with pytest.raises(JsonRefusedError) as refused:
        list(scan_json(text))
    return str(refused.value)


def test_a_key_twice_in_one_object_is_found_however_it_is_written_and_however_deep():
    assert "twice" in refuse(b'{"a":1,"a":2}')
    assert "twice" in refuse(b'[{"x":{"a" :1, "\\u0061":2}}]')
    assert list(scan_json(b'[{"a":1},{"a":2},{"b":{"a":1},"a":3}]')) == []


def test_a_text_with_too_much_of_anything_is_refused():
    assert "nested" in refuse(b"[" * (MAX_DEPTH + 1))
    assert "more than" in refuse(b"[" + b'"a",' * MAX_PARTS)
    keys = b",".join(b'"%d":1' % number for number in range(MAX_OPEN_KEYS + 1))
    assert "keys" in refuse(b"{" + keys + b"}")


def test_a_string_says_under_which_keys_it_stands():
    found = list(scan_json(b'{"m":[{"c":{"url":"x"}}],"n":"y"}'))
    assert [(each.key, each.outermost) for each in found] == [(b"url", b"m"), (b"n", b"n")]


@given(st.binary(max_size=40))
def test_bytes_are_utf8_where_python_decodes_them(data: bytes):
    try:
        data.decode()
    except UnicodeDecodeError:
        assert not is_utf8(data)
    else:
        assert is_utf8(data)


def test_a_character_that_is_cut_at_the_end_or_between_two_parts_is_seen():
    assert is_utf8(b"a" * 65_535 + "é".encode())
    assert not is_utf8("é".encode()[:1])
    assert not is_utf8(b"a" * 70_000 + b"\xff")
