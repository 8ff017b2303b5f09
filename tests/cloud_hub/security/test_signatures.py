"""Ed25519 of the hub against that of devices and third machines: what one accepts and the other refuses has a name."""

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.security import signatures
from cloud_hub.security.signatures import SodiumSigningKey, SodiumVerifyingKey, check_library
from tests.cloud_hub.doubles.edwards import (
    BASE,
    NEUTRAL,
    ORDER,
    PRIME,
    Crafted,
    add,
    craft,
    craft_where,
    encode,
    find_point,
    find_small_order,
    multiply,
)
from wire.process.exit_codes import ExitCode, ExitError

SECRET, NONCE = 0x1234567890ABCDEF << 180, 0xFEDCBA0987654321 << 120
SMALL = find_small_order()
A_POINT, R_POINT = multiply(SECRET, BASE), multiply(NONCE, BASE)
A, R = encode(A_POINT), encode(R_POINT)
MIXED_A, MIXED_R = encode(add(A_POINT, SMALL)), encode(add(R_POINT, SMALL))
ONE_AGAIN = (1 + PRIME).to_bytes(32, "little")  # the neutral point by a y that is not reduced
ONE_MINUS_ZERO = (1 | 1 << 255).to_bytes(32, "little")  # the neutral point with the sign of an x that is 0
OFF_CURVE = next(y for y in range(2, 99) if find_point(y) is None).to_bytes(32, "little")
HONEST = craft(SECRET, NONCE, A, R)
S_BEYOND_ORDER = HONEST.signature[:32] + (int.from_bytes(HONEST.signature[32:], "little") + ORDER).to_bytes(
    32, "little"
)


def by_sodium(made: Crafted) -> bool:
    try:
        SodiumVerifyingKey(made.key).verify(made.signature, made.message)
    except InvalidSignature:
        return False
    return True


def by_openssl(made: Crafted) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(made.key).verify(made.signature, made.message)
    except InvalidSignature:
        return False
    return True


BOTH_ACCEPT = {
    "honest": HONEST,
    "A of mixed order, its small part gone by h": craft_where((0,), SECRET, NONCE, MIXED_A, R),
    "A and R of mixed order, their small parts cancel": craft_where((7,), SECRET, NONCE, MIXED_A, MIXED_R),
}
OPENSSL_ALONE_ACCEPTS = {
    "A of small order, R of the large one": craft_where((0,), 0, NONCE, encode(SMALL), R),
    "A and R of small order": craft_where((7,), 0, 0, encode(SMALL), encode(SMALL)),
    "A neutral: one S for every message": craft(0, NONCE, encode(NEUTRAL), R),
    "R neutral": craft(SECRET, 0, A, encode(NEUTRAL)),
    "A neutral, y not reduced": craft(0, NONCE, ONE_AGAIN, R),
    "A neutral, sign of zero": craft(0, NONCE, ONE_MINUS_ZERO, R),
}
BOTH_REFUSE = {
    "S not reduced (malleable)": Crafted(A, HONEST.message, S_BEYOND_ORDER),
    "with the cofactor alone: R of mixed order": craft(SECRET, NONCE, A, MIXED_R),
    "with the cofactor alone: R of small order": craft(SECRET, 0, A, encode(SMALL)),
    "with the cofactor alone: A of mixed order": craft_where((1, 3, 5, 7), SECRET, NONCE, MIXED_A, R),
    "with the cofactor alone: A of small order": craft_where((1, 3, 5, 7), 0, NONCE, encode(SMALL), R),
    "R neutral, y not reduced": craft(SECRET, 0, A, ONE_AGAIN),
    "R neutral, sign of zero": craft(SECRET, 0, A, ONE_MINUS_ZERO),
    "A not on the curve": craft(SECRET, NONCE, OFF_CURVE, R),
}


@pytest.mark.parametrize("made", BOTH_ACCEPT.values(), ids=BOTH_ACCEPT)
def test_hub_and_third_machine_accept(made: Crafted) -> None:
    assert (by_sodium(made), by_openssl(made)) == (True, True)


@pytest.mark.parametrize("made", OPENSSL_ALONE_ACCEPTS.values(), ids=OPENSSL_ALONE_ACCEPTS)
def test_the_hub_refuses_what_anybody_can_sign(made: Crafted) -> None:
    assert (by_sodium(made), by_openssl(made)) == (False, True)


@pytest.mark.parametrize("made", BOTH_REFUSE.values(), ids=BOTH_REFUSE)
def test_hub_and_third_machine_refuse(made: Crafted) -> None:
    assert (by_sodium(made), by_openssl(made)) == (False, False)


@given(seed=st.binary(min_size=32, max_size=32), data=st.binary(max_size=3000))
def test_nothing_that_a_device_signs_is_refused_and_both_libraries_sign_alike(seed: bytes, data: bytes) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    signature = key.sign(data)
    SodiumVerifyingKey(key.public_key().public_bytes_raw()).verify(signature, data)
    assert SodiumSigningKey(seed).sign(data) == signature


@given(at=st.integers(0, 95), flip=st.integers(1, 255))
def test_a_changed_byte_of_key_or_signature_is_refused(at: int, flip: int) -> None:
    whole = bytearray(HONEST.key + HONEST.signature)
    whole[at] ^= flip
    assert not by_sodium(Crafted(bytes(whole[:32]), HONEST.message, bytes(whole[32:])))


@given(wrapped=st.integers(0, 15), small=st.integers(0, 7), tail=st.integers(0, 7), number=st.integers(0, 2**32 - 1))
def test_the_hub_accepts_nothing_that_a_third_machine_refuses(wrapped: int, small: int, tail: int, number: int) -> None:
    key, first = encode(add(A_POINT, multiply(small, SMALL))), encode(add(R_POINT, multiply(tail, SMALL)))
    made = craft(SECRET, NONCE, key, first, number.to_bytes(4, "big"))
    scalar = (int.from_bytes(made.signature[32:], "little") + wrapped * ORDER) % 2**256
    made = Crafted(key, made.message, first + scalar.to_bytes(32, "little"))
    assert by_sodium(made) is by_openssl(made)


@pytest.mark.parametrize("size", [0, 63, 65, 128])
def test_a_signature_of_another_length_takes_no_byte_of_the_message(size: int) -> None:
    whole = HONEST.signature + HONEST.message + bytes(200)
    with pytest.raises(InvalidSignature):
        SodiumVerifyingKey(HONEST.key).verify(whole[:size], whole[size : 64 + len(HONEST.message)])


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_of_another_length_is_no_key(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SodiumVerifyingKey(bytes(size))


def test_the_installed_library_is_as_strict_as_was_tested() -> None:
    check_library()


def test_a_hub_does_not_start_with_a_library_that_verifies_with_the_cofactor(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_everything(signed: bytes, key: bytes) -> bytes:
        del key
        return signed

    monkeypatch.setattr(signatures, "crypto_sign_open", accept_everything)
    with pytest.raises(ExitError, match="PyNaCl's own wheel") as stop:
        check_library()
    assert stop.value.code == ExitCode.CONFIG
