"""Verdicts with a text: what they carry, how they are padded, and that devices of before never meet one."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import RemoteError
from wire.protocol import codec
from wire.protocol.messages import Prediction, TextUsage, Verdict

COUNT = st.integers(0, 2**31)
USAGES = st.builds(
    lambda model, cached, more, out, cut, estimated: TextUsage(model, cached + more, out, cached, cut, estimated),
    *(st.text(max_size=20), COUNT, COUNT, COUNT, st.booleans(), st.booleans()),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)


class OldPrediction(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A prediction as devices without texts read it."""

    label: int
    confidence: float
    scores: tuple[float, ...]
    model: str
    in_domain: bool | None = None


class OldVerdict(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="v"):
    prediction: OldPrediction
    hub: str
    region: str
    queue_s: float
    compute_s: float


def verdict(text: str | None, usage: TextUsage | None) -> Verdict:
    return Verdict(Prediction(-1, 1.0, (), "triage@1", None, text, usage), "hub-1", "eu", 0.5, 0.25)


@given(TEXTS, USAGES)
def test_a_text_and_its_usage_come_out_as_they_went_in(text: str, usage: TextUsage) -> None:
    said = verdict(text, usage)
    assert codec.decode_verdict(codec.encode_wire_message(said)) == said


@given(st.integers(-1, 5), st.sampled_from([None, True, False]))
def test_a_verdict_without_a_text_is_what_devices_of_before_read(label: int, in_domain: bool | None) -> None:
    said = Verdict(Prediction(label, 0.5, (0.25, 0.5), "digits@7", in_domain), "hub-1", "eu", 0.5, 0.25)
    old = msgspec.msgpack.decode(codec.encode_wire_message(said), type=OldVerdict)
    assert (old.prediction.label, old.prediction.in_domain, old.hub) == (label, in_domain, "hub-1")


@pytest.mark.parametrize(
    "said",
    [
        verdict("a text", None),
        verdict("a text", TextUsage("chat", 1, 1, 2)),
        verdict("a text", TextUsage("chat", -1, 1, -1)),
        verdict("a text", TextUsage("chat", 1, -1)),
    ],
)
def test_a_text_without_a_usage_that_can_be_is_refused(said: Verdict) -> None:
    with pytest.raises(RemoteError):
        codec.decode_verdict(codec.encode_wire_message(said))


def test_a_usage_without_a_text_is_refused() -> None:
    fields = [-1, 1.0, [], "triage@1", None, None, ["chat", 1, 1, 0, False, False]]
    with pytest.raises(RemoteError):
        codec.decode_verdict(msgspec.msgpack.encode(["v", fields, "hub-1", "eu", 0.5, 0.25]))


@given(st.integers(1, 60_000))
def test_a_size_class_of_texts_holds_the_message_and_is_a_power_of_two(size: int) -> None:
    found = codec.choose_text_class(size)
    assert found >= size + 4
    assert found & (found - 1) == 0
    assert found == codec.TEXT_CLASS_BYTES or found < 2 * (size + 4)
