"""What the device takes from hubs: frames that the second implementation makes, each wrong in one respect."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.identity.identity import HubKeys, Identity
from edge_agent.question.seal import Envelopes, VerdictBinding
from tests.second_implementation import frames, vectors
from tests.second_implementation.records import Record, encode_record
from tests.second_implementation.vectors import (
    DEVICE,
    DEVICE_HPKE,
    DEVICE_SIGNING,
    EPOCH,
    HUB_HPKE,
    HUB_SIGNING,
    NOW_MS,
)
from tests.wire.doubles.translation import to_record
from wire.errors import Fault, RemoteError
from wire.protocol.messages import HelloNote, StatusRequest
from wire.protocol.topics import TopicChannel

FROZEN = vectors.load("frames.json")
DOWN = [vector for vector in FROZEN["signed"] + FROZEN["sealed"] if vector["channel"].startswith("down/")]
HUB = HubKeys("hub-1", "local", frames.hpke_public(HUB_HPKE), frames.signing_public(HUB_SIGNING))
HUB_KEY_ID = frames.key_id(frames.signing_public(HUB_SIGNING))
NOTE = Record("Receipt", {"epoch": EPOCH, "seqs": [1]})


def envelopes() -> Envelopes:
    signing = Ed25519PrivateKey.from_private_bytes(DEVICE_SIGNING)
    hpke = X25519PrivateKey.from_private_bytes(DEVICE_HPKE)
    return Envelopes(Identity(DEVICE, "localhost", 1, (HUB,), NOW_MS, signing, hpke, bytes(32)))


def refused(payload: bytes, channel: TopicChannel = TopicChannel.REPLY) -> Fault:
    device = envelopes()
    with pytest.raises(RemoteError) as error:
        device.open_note(device.verify_frame(payload, channel))
    return error.value.fault


def sign(
    header: dict[str, Any] | None = None, channel: str = "down/r", by: bytes = HUB_SIGNING, binding: bytes = b""
) -> bytes:
    about = frames.header(DEVICE, EPOCH, 0, NOW_MS, HUB_KEY_ID)
    changed = Record(about.kind, {**about.fields, **(header or {})})
    return frames.sign(changed, encode_record(NOTE), by, channel, binding)


@pytest.mark.parametrize("vector", DOWN, ids=[vector["name"] for vector in DOWN])
def test_the_device_takes_every_frozen_frame_of_a_hub(vector: dict[str, Any]) -> None:
    device = envelopes()
    frame = device.verify_frame(vector["frame"], TopicChannel(vector["channel"]))
    if "padded" not in vector:
        assert to_record(device.open_note(frame))["epoch"] == vector["message"]["epoch"]
        return
    question = next(each for each in FROZEN["sealed"] if each["name"] == "question")
    policy = question["message"]["policy"]
    binding = VerdictBinding(frames.fingerprint(question["padded"]), "digits@7", policy)
    assert to_record(device.open_verdict(frame, binding))["hub"] == vector["message"]["hub"]
    for other in ({"model": "digits@8"}, {"policy": policy[:-1] + "x"}, {"fingerprint": bytes(32)}):
        with pytest.raises(RemoteError):
            device.open_verdict(frame, binding._replace(**other))


def test_a_genuine_note_is_taken() -> None:
    device = envelopes()
    assert to_record(device.open_note(device.verify_frame(sign()))) == NOTE


def test_a_message_for_another_device_is_refused_though_a_hub_of_ours_signed_it() -> None:
    other = "demo--cam-2"
    assert refused(sign({"device": other, "shard": frames.shard(other)})) is Fault.TOPIC
    assert refused(sign({"device": other})) is Fault.TOPIC
    assert refused(sign({"shard": frames.shard(DEVICE) ^ 1})) is Fault.TOPIC


def test_a_note_that_names_another_epoch_than_its_header_is_refused() -> None:
    assert refused(sign({"epoch": EPOCH + 1})) is Fault.MALFORMED


def test_a_note_by_a_key_that_is_no_hubs_or_that_names_another_signer_is_refused() -> None:
    assert refused(sign(by=DEVICE_SIGNING)) is Fault.SIGNATURE
    assert refused(sign({"key_id": bytes(8)})) is Fault.SIGNATURE


def test_a_reply_is_no_order_and_an_order_is_no_reply() -> None:
    assert refused(sign(channel="down/desired")) is Fault.SIGNATURE
    assert refused(sign(), TopicChannel.DESIRED) is Fault.SIGNATURE


def test_an_order_for_an_earlier_enrolment_is_refused() -> None:
    device = envelopes()
    now, before = (frames.order_binding(frames.signing_public(key)) for key in (DEVICE_SIGNING, HUB_HPKE))
    device.verify_frame(sign(channel="down/desired", binding=now), TopicChannel.DESIRED)
    assert refused(sign(channel="down/desired", binding=before), TopicChannel.DESIRED) is Fault.SIGNATURE
    assert refused(sign(channel="down/desired"), TopicChannel.DESIRED) is Fault.SIGNATURE


def test_a_stranger_reads_what_the_device_signs_and_seals() -> None:
    device, key = envelopes(), frames.signing_public(DEVICE_SIGNING)
    for note in (HelloNote(EPOCH, "b", "a", ()), StatusRequest(EPOCH, (1, 2))):
        frame = frames.split(device.sign_note(note, NOW_MS))
        assert frames.is_signed_by(frame, key, "up/ask")
        assert frame.header == frames.header(DEVICE, EPOCH, 0, NOW_MS, frames.key_id(key))
        assert frame.body == encode_record(to_record(note))
    padded = frames.pad(b"question")
    sealed = device.seal_question(EPOCH, 3, NOW_MS, "hub-1", padded)
    frame = frames.split(sealed.frame)
    assert frames.is_signed_by(frame, key, "up/q")
    assert frame.header == frames.header(DEVICE, EPOCH, 3, NOW_MS, frames.key_id(HUB.hpke_key))
    assert frames.open_sealed(frame, HUB_HPKE, "up/q") == padded
    assert (sealed.fingerprint, sealed.digest) == (frames.fingerprint(padded), frames.digest(sealed.frame))
