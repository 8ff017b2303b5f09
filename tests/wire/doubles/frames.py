"""Frames and the hypothesis strategies that draw them: shared by the codec, seal and chaos tests."""

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import strategies as st

from wire.protocol import codec, sealing
from wire.protocol.messages import (
    Escalation,
    FrameHeader,
    HelloNote,
    ModelRef,
    Prediction,
    Receipt,
    Refusal,
    RefusalReason,
    StatusReply,
    StatusRequest,
    Tensor,
    TensorDType,
    Verdict,
    WelcomeNote,
)
from wire.protocol.topics import TopicChannel, compute_shard

DEVICE = "demo--dev-1"
HUB_HPKE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
DEVICE_HPKE = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
HUB_SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
DEVICE_SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35)))
OTHER_SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(range(4, 36)))
KEY_ID = sealing.compute_key_id(HUB_HPKE.public_key().public_bytes_raw())
MODEL = ModelRef("digits", 7, "block2", "pack4")


def header(seq: int = 1, device: str = DEVICE, epoch: int = 5) -> FrameHeader:
    return FrameHeader(compute_shard(device), device, epoch, seq, 1_700_000_000_000, KEY_ID)


def question(answer_id: str = "a" * 32) -> Escalation:
    features = Tensor(TensorDType.UINT8, (8, 4), bytes(range(32)))
    return Escalation(answer_id, MODEL, "b" * 32, "local", {"features": features}, 2.0, audit=False, trace="")


def verdict(label: int = 3) -> Verdict:
    return Verdict(Prediction(label, 0.9, (0.1, 0.9), "digits@7"), "hub-1", "local", 0.01, 0.002)


def sealed_question(seq: int = 1, device: str = DEVICE, epoch: int = 5) -> bytes:
    """What a device publishes on `up/q`: a real frame under real keys."""
    return sealing.seal_frame(
        header(seq, device, epoch),
        codec.pad_plaintext(codec.encode_wire_message(question())),
        to=HUB_HPKE.public_key(),
        by=DEVICE_SIGNING,
        channel=TopicChannel.QUESTION,
    )


u63 = st.integers(0, 2**63 - 1)
texts = st.text(max_size=20)
ratios = st.floats(0, 1)
seconds = st.floats(0, 1e6)
seqs = st.lists(u63, max_size=64).map(tuple)
refs = st.builds(ModelRef, texts, u63, texts, texts)
tensors = st.builds(
    Tensor, st.sampled_from(TensorDType), st.lists(st.integers(0, 512), max_size=4).map(tuple), st.binary(max_size=64)
)
predictions = st.builds(Prediction, st.integers(-1, 999), ratios, st.lists(ratios, max_size=10).map(tuple), texts)
headers = st.builds(FrameHeader, st.integers(0, 255), texts, u63, u63, u63, st.binary(min_size=8, max_size=8))
escalations = st.builds(
    Escalation,
    texts,
    refs,
    texts,
    texts,
    st.dictionaries(texts, tensors, max_size=3),
    seconds,
    st.booleans(),
    texts,
)
verdicts = st.builds(Verdict, predictions, texts, texts, seconds, seconds)
up_notes = st.one_of(
    st.builds(StatusRequest, u63, seqs), st.builds(HelloNote, u63, texts, texts, st.lists(refs, max_size=3).map(tuple))
)
down_notes = st.one_of(
    st.builds(Receipt, u63, seqs),
    st.builds(Refusal, u63, u63, st.binary(max_size=32), st.sampled_from(RefusalReason), seconds, st.booleans()),
    st.builds(StatusReply, u63, seqs, seqs),
    st.builds(WelcomeNote, u63, texts, texts),
)
messages = st.one_of(escalations, verdicts, up_notes, down_notes)

# Anything msgpack can say: well-formed bytes of the wrong shape get further into a decoder than noise does.
_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(["q", "v", "r", "n", "s", "a", "h", "w"]),
)
strangers = st.recursive(
    _leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=8), st.dictionaries(st.text(max_size=4), inner, max_size=4)),
    max_leaves=20,
).map(msgspec.msgpack.encode)


@st.composite
def mutated(draw: st.DrawFn, base: bytes) -> bytes:
    """`base` with a few bytes replaced, cut, doubled or filled in: the neighbourhood of what is valid."""
    data = bytearray(base)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.binary(max_size=4))
        data[at : at + draw(st.integers(0, 4))] = piece
    return bytes(data)
