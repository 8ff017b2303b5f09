"""Texts as samples: what goes in comes out; what is no text is refused, not repaired; redaction keeps UTF-8."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.manifest import TEXT_INPUT, InputSpec
from models.runtime.chain import FeatureChain, digest_chain, digest_sent_chain
from models.runtime.runner import SampleError
from models.runtime.text import decode_text, encode_text
from policies.decisions.egress import REDACTION_PATTERNS, FieldPlan, redact_text
from policies.model.policy import TransformKind, TransformSpec
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

SPEC = InputSpec(TEXT_INPUT, TensorDType.UINT8, (64,), 0.0, 255.0)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80)


@given(TEXTS)
def test_a_text_that_is_taken_comes_out_as_it_went_in(text: str) -> None:
    try:
        sample = encode_text(text, SPEC)
    except SampleError:
        assert not text.strip() or len(text.encode()) > 64
        return
    assert sample.shape == (64,)
    assert decode_text(sample) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("\x1f\u2003\x85", "empty"),
        ("a\0b", "zero"),
        ("x" * 65, "65 bytes"),
        (b"\xff\xfe", "UTF-8"),
        ("\ud800", "UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_with_a_line_that_says_why(text: str | bytes, why: str) -> None:
    with pytest.raises(SampleError, match=why):
        encode_text(text, SPEC)


def test_an_input_of_numbers_takes_no_text() -> None:
    with pytest.raises(SampleError, match="no text"):
        encode_text("a", InputSpec("sample", TensorDType.UINT8, (64,), 0.0, 255.0))


@given(st.binary(min_size=1, max_size=64))
def test_any_bytes_are_a_text_or_refused(data: bytes) -> None:
    try:
        text = decode_text(np.frombuffer(data, np.uint8))
    except SampleError:
        return
    assert text.encode() == data.rstrip(b"\0")


@given(st.lists(st.sampled_from([*"aé€😀 .,@1", "Mrs ", "Ärger", "x@y.de", "www.", "+49 172 555"]), max_size=40))
def test_what_is_redacted_is_still_a_text_of_the_same_length(pieces: list[str]) -> None:
    text = "".join(pieces).encode()
    found = redact_text(text, tuple(REDACTION_PATTERNS))
    assert len(found) == len(text)
    found.decode()


def test_a_redacted_name_that_ends_inside_a_character_takes_it_whole() -> None:
    text = ("Mrs " + "A" + "x" * 39 + "é").encode()  # the pattern ends in the middle of the last character
    assert redact_text(text, ("name",)).decode().strip("*") == ""


def test_redaction_needs_no_measurement_of_its_own_and_any_other_step_does() -> None:
    field = FieldSpec("text", TensorDType.UINT8, (64,), 0.0, 255.0, SensitivityLevel.P3, "text")
    measured = digest_chain("text", "pack8", (FeatureChain(field),))
    redacted = FieldPlan(field, (TransformSpec(TransformKind.REDACT, words=("name", "date")),))
    clipped = FieldPlan(field, (TransformSpec(TransformKind.CLIP, low=0, high=127),))
    assert digest_sent_chain("text", "pack8", (redacted,)) == measured
    assert digest_sent_chain("text", "pack8", (clipped,)) != measured
    assert digest_chain("text", "pack8", (redacted,)) != measured
