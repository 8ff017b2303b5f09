"""Session keys: both sides agree, nobody else does, and a frame opens as exactly what was sealed."""

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.doubles import frames
from wire.errors import Fault, LocalError, RemoteError
from wire.protocol import codec, sessions
from wire.protocol.messages import CipherSuite, FrameHeader
from wire.protocol.sealing import verify_frame
from wire.protocol.sessions import SessionKeys, SessionTerms, VerdictKey
from wire.protocol.topics import TopicChannel

DEVICE_SHARE = X25519PrivateKey.from_private_bytes(bytes(range(5, 37)))
HUB_SHARE = X25519PrivateKey.from_private_bytes(bytes(range(6, 38)))
TERMS = SessionTerms(
    frames.DEVICE, frames.DEVICE_SIGNING.public_key().public_bytes_raw(), "hub-1",
    frames.HUB_SIGNING.public_key().public_bytes_raw(), frames.HUB_HPKE.public_key().public_bytes_raw(), 5,
    DEVICE_SHARE.public_key().public_bytes_raw(), HUB_SHARE.public_key().public_bytes_raw(), 1_700_003_600_000,
)  # fmt: skip
KEYS = sessions.agree_as_device(TERMS, DEVICE_SHARE)
SALT, PADDED, BINDING = bytes(range(16)), codec.pad_plaintext(b"a question"), bytes(range(32))
salts = st.binary(min_size=16, max_size=16)


def header(seq: int = 1) -> FrameHeader:
    return msgspec.structs.replace(frames.header(seq), key_id=KEYS.id)


def seal(seq: int = 1, salt: bytes = SALT, keys: SessionKeys = KEYS, padded: bytes = PADDED) -> bytes:
    return sessions.seal_in_session(header(seq), padded, keys=keys, salt=salt)


def seal_verdict(key: VerdictKey, salt: bytes = SALT, binding: bytes = BINDING) -> bytes:
    return sessions.seal_session_verdict(header(), PADDED, key=key, by=frames.HUB_SIGNING, salt=salt, binding=binding)


def fault_of(call) -> Fault:
    with pytest.raises(RemoteError) as refused:
        call()
    return refused.value.fault


def test_both_sides_derive_the_same_keys() -> None:
    assert sessions.agree_as_hub(TERMS, HUB_SHARE, frames.HUB_HPKE) == KEYS
    assert len({*KEYS}) == 3


def test_the_keys_and_frames_of_version_2_are_these_bytes_for_good() -> None:
    """Another release derives the same ones, or it speaks another version."""
    key = sessions.derive_verdict_key(KEYS, 5, 1, bytes(32))
    found = {
        "id": KEYS.id.hex(), "questions": KEYS.questions.hex(), "verdicts": KEYS.verdicts.hex(), "key": key.key.hex(),
        "question": codec.hash_plaintext(seal()).hex(), "verdict": codec.hash_plaintext(seal_verdict(key)).hex(),
    }  # fmt: skip
    assert found == VECTORS


@pytest.mark.parametrize("name", SessionTerms._fields)
def test_any_other_term_is_another_session(name: str) -> None:
    old: Any = getattr(TERMS, name)
    new: Any
    if name in ("hpke_key", "share"):
        new = X25519PrivateKey.generate().public_key().public_bytes_raw()
    else:
        new = old + 1 if isinstance(old, int) else old[:-1] + (b"\x01" if isinstance(old, bytes) else "x")
    other = sessions.agree_as_device(SessionTerms(**{**TERMS._asdict(), name: new}), DEVICE_SHARE)
    assert not {*other} & {*KEYS}


def test_a_thief_of_all_long_lived_keys_opens_nothing_that_was_recorded() -> None:
    """He has both notes and the HPKE key: half of what the keys are derived from. The keys of one use are gone."""
    recorded = codec.split_frame(seal())
    for guess in (frames.HUB_HPKE, frames.DEVICE_HPKE, X25519PrivateKey.generate()):
        keys = sessions.agree_as_hub(TERMS, guess, frames.HUB_HPKE)
        assert fault_of(lambda keys=keys: sessions.open_in_session(recorded, keys=keys)) is Fault.SEAL


def test_whoever_signs_as_the_hub_needs_its_hpke_key_too() -> None:
    """A forged welcome, with a key of one use of the forger's: what the device seals then does not open for him."""
    forger = X25519PrivateKey.generate()
    forged = TERMS._replace(share=forger.public_key().public_bytes_raw())
    sealed = codec.split_frame(seal(keys=sessions.agree_as_device(forged, DEVICE_SHARE)))
    keys = sessions.agree_as_hub(forged, forger, X25519PrivateKey.generate())
    assert fault_of(lambda: sessions.open_in_session(sealed, keys=keys)) is Fault.SEAL


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_a_share_of_low_order_agrees_on_nothing(point: bytes) -> None:
    assert fault_of(lambda: sessions.agree_as_device(TERMS._replace(share=point), DEVICE_SHARE)) is Fault.SEAL
    assert fault_of(lambda: sessions.agree_as_hub(TERMS._replace(offered=point), HUB_SHARE, frames.HUB_HPKE)) is (
        Fault.SEAL
    )


@given(st.binary(max_size=600), salts, st.integers(0, 2**40))
def test_a_question_opens_as_it_was_sealed(data: bytes, salt: bytes, seq: int) -> None:
    padded = codec.pad_plaintext(data)
    frame = codec.split_frame(seal(seq, salt, padded=padded))
    assert sessions.open_in_session(frame, keys=KEYS) == padded
    assert frame.header == header(seq)


@settings(max_examples=300)
@given(st.data())
def test_a_question_with_one_changed_byte_is_refused(data: st.DataObject) -> None:
    sealed = bytearray(seal())
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RemoteError):
        sessions.open_in_session(codec.split_frame(bytes(sealed)), keys=KEYS)


@given(st.binary(max_size=400))
def test_what_is_cut_or_made_up_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    clear = codec.encode_clear_part(CipherSuite.SESSION, header())
    assert fault_of(lambda: sessions.open_in_session(codec.split_frame(clear + data), keys=KEYS)) is Fault.SEAL


@settings(max_examples=300)
@given(st.data())
def test_a_verdict_with_one_changed_byte_is_refused_by_signature_and_by_key(data: st.DataObject) -> None:
    key = sessions.derive_verdict_key(KEYS, 5, 1, bytes(32))
    sealed = bytearray(seal_verdict(key))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))

    def verify() -> None:
        frame = codec.split_frame(bytes(sealed))
        verify_frame(frame, by=frames.HUB_SIGNING.public_key(), channel=TopicChannel.REPLY)

    with pytest.raises(RemoteError):
        verify()
    if sealed[-64:] == seal_verdict(key)[-64:]:
        with pytest.raises(RemoteError):
            sessions.open_session_verdict(codec.split_frame(bytes(sealed)), key=key, binding=BINDING)


def test_a_verdict_opens_for_its_question_alone() -> None:
    key = sessions.derive_verdict_key(KEYS, 5, 1, bytes(32))
    frame = codec.split_frame(seal_verdict(key))
    assert sessions.open_session_verdict(frame, key=key, binding=BINDING) == PADDED
    others = [
        sessions.derive_verdict_key(KEYS, 6, 1, bytes(32)),
        sessions.derive_verdict_key(KEYS, 5, 2, bytes(32)),
        sessions.derive_verdict_key(KEYS, 5, 1, bytes(31) + b"\x01"),
    ]
    for other in others:
        opened = lambda other=other: sessions.open_session_verdict(frame, key=other, binding=BINDING)  # noqa: E731
        assert fault_of(opened) is Fault.SEAL
    assert fault_of(lambda: sessions.open_session_verdict(frame, key=key, binding=bytes(32))) is Fault.SEAL


def test_a_question_is_no_verdict_and_a_verdict_is_no_question() -> None:
    key = sessions.derive_verdict_key(KEYS, 5, 1, bytes(32))
    question, verdict = codec.split_frame(seal()), codec.split_frame(seal_verdict(key))
    assert fault_of(lambda: sessions.open_session_verdict(question, key=key, binding=b"")) is Fault.SUITE
    assert fault_of(lambda: sessions.open_in_session(verdict, keys=KEYS)) is Fault.SUITE
    for secret in ((KEYS.questions, KEYS.questions), (KEYS.verdicts, KEYS.verdicts)):  # not even with swapped keys
        swapped = SessionKeys(KEYS.id, *secret)
        as_verdict = sessions.seal_session_verdict(
            header(), PADDED, key=VerdictKey(KEYS.id, swapped.questions), by=frames.HUB_SIGNING, salt=SALT, binding=b""
        )
        moved = codec.encode_clear_part(CipherSuite.SESSION, header()) + codec.split_frame(as_verdict).body
        opened = lambda m=moved, s=swapped: sessions.open_in_session(codec.split_frame(m), keys=s)  # noqa: E731
        assert fault_of(opened) is Fault.SEAL


def test_the_same_question_sealed_again_shares_no_key_with_itself() -> None:
    """Two bodies under one key and nonce would have the same key stream: their XOR were that of the plaintexts."""
    one, other = codec.split_frame(seal()), codec.split_frame(seal(salt=bytes(16)))
    assert one.body[16:] != other.body[16:]
    assert codec.split_frame(seal()).body == one.body


def test_a_frame_over_the_limit_is_not_made() -> None:
    with pytest.raises(LocalError):
        seal(padded=bytes(codec.MAX_FRAME_BYTES))


VECTORS = {
    "id": "f309a8f93a5dbd7b",
    "questions": "2f3c0873dbdcf49d6485d95466f606c829644e76bd887ec3867a1859889abea4",
    "verdicts": "d27355379a88a700956233aa268bc109579951056c6297d1b6fe1d5f4a3a6cfd",
    "key": "9064097feb420c3e0a4087be7852838bbc8cfe6a0984abc50e9ce70e56488b97",
    "question": "965b621d1d261fbd134c2e26092c2c484a68614fa7e097740052ab2b50fe162a",
    "verdict": "85947922be35d0b8300ae3fe7114843c19a0d8639b1b1cb5ab27619009e49fbb",
}
