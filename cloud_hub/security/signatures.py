"""Ed25519 (RFC 8032) by libsodium, for what a hub verifies of devices and signs to them: frames and proofs.

Half the processor time of OpenSSL's, which `cryptography` uses; for the objects of either, sealing has one interface.
Rule: what is accepted here is accepted by `cryptography` too, so that a third machine comes to the same verdict of a
device's signature. Beyond it refused here, and made by no honest signer: keys and points R of small order, for which
anybody can sign. `check_library` tries both on the library that is installed, which need not be the one that was
tested: builds of other systems link their own.
"""

from cryptography.exceptions import InvalidSignature
from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

from wire.process.exit_codes import ExitCode, ExitError

KEY_BYTES = 32
SIGNATURE_BYTES = 64


class SodiumVerifyingKey:
    """Public key of raw 32 bytes; ValueError for another length."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:  # libsodium reads 32 bytes, whatever is there
            raise ValueError(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(raw)}")
        self._raw = raw

    def verify(self, signature: bytes, data: bytes, /) -> None:
        """InvalidSignature unless the holder of the key signed exactly this."""
        if len(signature) != SIGNATURE_BYTES:  # joined with the data, a shorter one would take its first bytes
            raise InvalidSignature
        try:
            crypto_sign_open(signature + data, self._raw)
        except BadSignatureError:
            raise InvalidSignature from None


class SodiumSigningKey:
    """Private key of raw 32 bytes (the seed of RFC 8032); ValueError for another length."""

    __slots__ = ("_pair",)

    def __init__(self, raw: bytes) -> None:
        self._pair = crypto_sign_seed_keypair(raw)[1]

    def sign(self, data: bytes, /) -> bytes:
        """The signature: 64 bytes, the same ones as by any other library."""
        return crypto_sign(data, self._pair)[:SIGNATURE_BYTES]


def check_library() -> None:
    """Verify three signatures whose outcome is known. ExitError(CONFIG) unless libsodium is as strict as was tested."""
    found = [_accepts(*each) for each in (_GENUINE, _WITH_COFACTOR, _SMALL_ORDER)]
    if found != [True, False, False]:
        raise ExitError(
            ExitCode.CONFIG,
            "the libsodium that PyNaCl uses here does not verify Ed25519 as this hub needs it: install PyNaCl's own "
            "wheel (pip install --force-reinstall --only-binary pynacl 'pynacl>=1.6.2,<2')",
        )


def _accepts(key: str, message: str, signature: str) -> bool:
    try:
        SodiumVerifyingKey(bytes.fromhex(key)).verify(bytes.fromhex(signature), bytes.fromhex(message))
    except InvalidSignature:
        return False
    return True


# Public key, message and signature, in hex. RFC 8032, section 7.1, TEST 2.
_GENUINE = (
    "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "72",
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
)
# R has a part of order 8: the equation holds times the cofactor 8 alone, for which verifiers differ.
_WITH_COFACTOR = (
    "5e8a8919d568860ab969bd69f7fc681780f960e2e93223fccd4771122b014923",
    "78",
    "c1f2de01ac93b7cb81ba5b8d31e36a984a8ebe2d24688684c72dac9949ce27e9e5956b9d2330c02e00da9b4ba771a573da134fbfe02616d85050aa060955330b",
)
# The key is a point of order 8: one signature in eight that nobody has to make a secret for.
_SMALL_ORDER = (
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "00000005",
    "673e3324f0e55b189ac385a668e4d73458ad37351a03192793724ae3fcc3b0cc2143658709badcfe2143658709badcfe2143658709badcfe0000000000000000",
)
