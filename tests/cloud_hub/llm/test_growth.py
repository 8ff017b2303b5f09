"""Readers of the language-model gateway take time and memory in proportion to their input, whatever its shape."""

from collections.abc import Callable

import pytest

from cloud_hub.llm.engine_metrics import parse_metrics
from cloud_hub.llm.errors import LlmError
from cloud_hub.llm.requests import LlmOperation, parse_request
from tests.growth import assert_linear
from wire.http.json_scan import scan_json

HEAD = b'{"model":"m","messages":[{"role":"user","content":'


def fill(before: bytes, unit: bytes, after: bytes = b"") -> Callable[[int], bytes]:
    """Return a maker of inputs of a size: `unit` again and again between two ends."""
    return lambda size: before + unit * ((size - len(before) - len(after)) // len(unit)) + after


def count_members(unit: bytes) -> Callable[[int], bytes]:
    """Return a maker of objects whose keys are all different."""
    return lambda size: b"{" + b",".join(b'"%06d":%b' % (n, unit) for n in range(size // (10 + len(unit)))) + b"}"


REQUESTS: dict[str, Callable[[int], bytes]] = {
    "escaped quotes without an end": fill(b'"', b'\\"'),
    "escaped quotes and a last backslash": fill(b'"', b'\\"', b"\\"),
    "backslashes": fill(b'"', b"\\\\"),
    "quotes": fill(b"", b'"'),
    "a request that was cut off": fill(HEAD + b'"', b'an ordinary sentence, with \\"quotes\\". '),
    "a long text": fill(HEAD + b'"', b"an ordinary sentence. ", b'"}]}'),
    "a picture": fill(HEAD + b'[{"type":"image_url","image_url":{"url":"data:image/png;base64,', b"A9+/", b'"}}]}]}'),
    "emoji": fill(HEAD + b'"', "\U0001f600".encode(), b'"}]}'),
    "blanks": fill(HEAD, b" ", b'"x"}]}'),
    "small messages": fill(b'{"model":"m","messages":[', b"{},", b"{}]}"),
    "small texts": fill(b'{"model":"m","prompt":[', b'"a",', b'"b"]}'),
    "token numbers": fill(b'{"model":"m","prompt":[', b"1000,", b"1]}"),
    "lists of token numbers": fill(b'{"model":"m","prompt":[', b"[1],", b"[1]]}"),
    "lists of token numbers and no end": fill(b'{"model":"m","prompt":[', b"[1],"),
    "numbers elsewhere": fill(b'{"model":"m","prompt":"x","a":[', b"1,", b"1]}"),
    "lists elsewhere": fill(b'{"model":"m","prompt":"x","a":[', b"[],", b"[]]}"),
    "brackets": fill(b"", b"["),
    "many keys": count_members(b"1"),
    "a long number": fill(b'{"model":"m","prompt":"x","max_tokens":', b"9", b"}"),
    "a long name": fill(b'{"prompt":"x","model":"', b"m", b'"}'),
}


def read(body: bytes) -> None:
    for operation in (LlmOperation.CHAT, LlmOperation.COMPLETION):
        try:
            parse_request(body, operation)
        except LlmError:
            continue


@pytest.mark.further
@pytest.mark.parametrize("shape", REQUESTS)
def test_a_request_of_any_shape_is_read_in_time_and_memory_linear_in_its_length(shape: str):
    assert_linear(read, REQUESTS[shape])


@pytest.mark.further
@pytest.mark.parametrize("shape", REQUESTS)
def test_a_scan_of_any_text_is_linear_whether_it_is_json_or_not(shape: str):
    assert_linear(lambda body: sum(1 for _ in scan_json(body)), REQUESTS[shape])


@pytest.mark.further
@pytest.mark.parametrize("unit", [b"a{", b"vllm:num_requests_waiting 1 ", b'a{x="} 1', b"\n", b"{} {} "])
def test_an_engines_metrics_are_read_in_time_linear_in_their_length(unit: bytes):
    assert_linear(lambda text: parse_metrics(text.decode()), fill(b"a", unit))
