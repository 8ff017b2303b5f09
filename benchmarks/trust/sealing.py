"""Benchmark: what the cryptography of a question and its verdict costs the hub, and what other ways would.

`python -m benchmarks.trust.sealing`, four seconds. Processor time of one thread, medians of rounds in which all ways
take turns. Signed by OpenSSL and by libsodium; HPKE and a signature for each message, and both in a session, where a
question is not signed and a verdict is; one signature for each verdict and one for each flush of verdicts (a Merkle
tree, its path in each), which is measured, not built: docs/adr/0048.
"""

import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from benchmarks.harness.questions import PADDED_BYTES
from benchmarks.harness.terms import DEVICE, build_verdict_plaintext
from cloud_hub.security.hub_keys import HubKeys, generate_keys
from cloud_hub.security.sessions import SessionTable
from cloud_hub.security.signatures import SodiumSigningKey, SodiumVerifyingKey
from wire.ledger.merkle import hash_leaf, hash_node
from wire.protocol.codec import encode_clear_part, hash_plaintext, split_frame
from wire.protocol.messages import CipherSuite, FrameHeader
from wire.protocol.sealing import open_sealed_frame, seal_frame, verify_frame
from wire.protocol.session_notes import SessionAccept, SessionOffer
from wire.protocol.sessions import (
    SALT_BYTES,
    SessionKeys,
    SessionTerms,
    VerdictKey,
    agree_as_device,
    derive_verdict_key,
    open_in_session,
    seal_in_session,
    seal_session_verdict,
)
from wire.protocol.topics import TopicChannel, compute_shard

ROUNDS, CALLS = 25, 40
FLUSHES = (1, 4, 16, 64)
LIMIT, SESSION_LIMIT = 0.85, 0.3
HEADER = FrameHeader(compute_shard(DEVICE), DEVICE, 1 << 60, 7, 1_700_000_000_000, b"12345678")
CLEAR = encode_clear_part(CipherSuite.SEALED, HEADER)
QUESTION, VERDICT = bytes(PADDED_BYTES), build_verdict_plaintext(2)

_Ways = dict[str, Callable[[], object]]


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """A question verified and opened, a verdict sealed and signed: by libsodium over by OpenSSL alone."""
    del folder, bundle
    us = measure_ways({**list_ways(), **list_session_ways(), **list_flush_ways()})
    before = us["verify openssl"] + us["open"] + us["seal openssl"]
    now = us["verify sodium"] + us["open"] + us["seal sodium"]
    flushes = ", ".join(f"{us[f'flush {at}'] / at:.1f} in a flush of {at}" for at in FLUSHES)
    terms = (
        f"{before:.0f} us, now {now:.0f} us",
        f"verify {us['verify openssl']:.1f}, now {us['verify sodium']:.1f}; open {us['open']:.1f}",
        f"seal and sign {us['seal openssl']:.1f}, now {us['seal sodium']:.1f}; sign alone {us['sign sodium']:.1f}",
        f"not built: one signature a flush, for each verdict {flushes}",
    )
    in_session = us["session open"] + us["session seal"]
    beside = (
        f"{in_session:.0f} us, signed one by one {now:.0f} us",
        f"open {us['session open']:.1f}, seal and sign {us['session seal']:.1f}; begin one {us['session begin']:.0f}",
    )
    return [
        Figure("question in, verdict out: libsodium over OpenSSL", now / before, "x", LIMIT, terms=terms),
        Figure(
            "question in, verdict out: in a session over one by one", in_session / now, "x", SESSION_LIMIT, terms=beside
        ),
    ]


def measure_ways(ways: _Ways) -> dict[str, float]:
    """Microseconds of processor time for one call of each."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, call in ways.items():
            began = time.thread_time_ns()
            for _ in range(CALLS):
                call()
            taken[name].append((time.thread_time_ns() - began) / CALLS / 1000)
    return {name: median(each) for name, each in taken.items()}


def list_ways() -> _Ways:
    """What the hub does with each message now, by either library."""
    sender, hpke = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
    sodium = SodiumSigningKey(sender.private_bytes_raw())
    up, down, to = TopicChannel.QUESTION, TopicChannel.REPLY, hpke.public_key()
    frame = split_frame(seal_frame(HEADER, QUESTION, to=to, by=sender, channel=up))
    openssl_public, public = sender.public_key(), SodiumVerifyingKey(sender.public_key().public_bytes_raw())
    return {
        "verify openssl": lambda: verify_frame(frame, by=openssl_public, channel=up),
        "verify sodium": lambda: verify_frame(frame, by=public, channel=up),
        "open": lambda: open_sealed_frame(frame, key=hpke, channel=up),
        "seal openssl": lambda: seal_frame(HEADER, VERDICT, to=to, by=sender, channel=down),
        "seal sodium": lambda: seal_frame(HEADER, VERDICT, to=to, by=sodium, channel=down),
        "sign sodium": lambda: sodium.sign(CLEAR + VERDICT),
    }


def list_flush_ways() -> _Ways:
    """One signature for as many verdicts as a flush holds, each with the path from it to the signed root."""
    sodium, bodies = SodiumSigningKey(secrets.token_bytes(32)), [CLEAR + secrets.token_bytes(200) for _ in range(64)]
    return {f"flush {at}": partial(sign_flush, sodium, bodies[:at]) for at in FLUSHES}


def sign_flush(key: SodiumSigningKey, bodies: list[bytes]) -> list[bytes]:
    """What follows each body: the path, leaf first, and the signature of the root. A power of two of them."""
    layers = [[hash_leaf(body) for body in bodies]]
    while len(layers[-1]) > 1:
        below = layers[-1]
        layers.append([hash_node(below[at], below[at + 1]) for at in range(0, len(below), 2)])
    signature = key.sign(layers[-1][0])
    return [
        b"".join(layer[at >> depth ^ 1] for depth, layer in enumerate(layers[:-1])) + signature
        for at in range(len(bodies))
    ]


def list_session_ways() -> _Ways:
    """The hub's part in a session: a question opened, a verdict sealed and signed, and the session's own beginning."""
    device, hpke = Ed25519PrivateKey.generate(), generate_keys()
    signing, salt = SodiumSigningKey(secrets.token_bytes(32)), secrets.token_bytes(SALT_BYTES)
    own = X25519PrivateKey.generate()
    offer = SessionOffer(1, "hub-1", hpke.current, own.public_key().public_bytes_raw())
    enrolled = _Enrolled(DEVICE, device.public_key())
    accept = SessionTable().accept_offer(enrolled, offer, hpke, 0.0)  # type: ignore[arg-type]
    keys = _agree(accept, offer, own, device, hpke)
    frame = split_frame(seal_in_session(HEADER, QUESTION, keys=keys, salt=salt))

    def take_in() -> VerdictKey:
        opened = open_in_session(frame, keys=keys)
        return derive_verdict_key(keys, 1, 7, hash_plaintext(opened))

    key = take_in()
    return {
        "session open": take_in,
        "session seal": lambda: seal_session_verdict(
            HEADER, VERDICT, key=key, by=signing, salt=secrets.token_bytes(SALT_BYTES), binding=bytes(32)
        ),
        "session begin": lambda: SessionTable().accept_offer(enrolled, offer, hpke, 0.0),  # type: ignore[arg-type]
    }


class _Enrolled(NamedTuple):
    id: str
    signing_key: Ed25519PublicKey


def _agree(
    accept: SessionAccept | None, offer: SessionOffer, own: X25519PrivateKey, device: Ed25519PrivateKey, hub: HubKeys
) -> SessionKeys:
    if accept is None:
        raise ValueError("the offer was refused")
    terms = SessionTerms(
        DEVICE, device.public_key().public_bytes_raw(), "hub-1", hub.signing_public, hub.hpke_public, 1, offer.share,
        accept.share, accept.ends_ms,
    )  # fmt: skip
    return agree_as_device(terms, own)


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
