"""Benchmark: what the cryptography of a question and its verdict costs the hub, and what other ways would.

`python -m benchmarks.trust.sealing`, four seconds. Processor time of one thread, medians of rounds in which all ways
take turns. Signed by OpenSSL and by libsodium; one signature for each verdict and one for each flush of verdicts (a
Merkle tree, its path in each), which is measured, not built: docs/adr/0048.
"""

import secrets
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from benchmarks.harness.questions import PADDED_BYTES
from benchmarks.harness.terms import DEVICE, build_verdict_plaintext
from cloud_hub.security.signatures import SodiumSigningKey, SodiumVerifyingKey
from wire.ledger.merkle import hash_leaf, hash_node
from wire.protocol.codec import encode_clear_part, split_frame
from wire.protocol.messages import CipherSuite, FrameHeader
from wire.protocol.sealing import open_sealed_frame, seal_frame, verify_frame
from wire.protocol.topics import TopicChannel, compute_shard

ROUNDS, CALLS = 25, 40
FLUSHES = (1, 4, 16, 64)
LIMIT = 0.85
HEADER = FrameHeader(compute_shard(DEVICE), DEVICE, 1 << 60, 7, 1_700_000_000_000, b"12345678")
CLEAR = encode_clear_part(CipherSuite.SEALED, HEADER)
QUESTION, VERDICT = bytes(PADDED_BYTES), build_verdict_plaintext(2)

_Ways = dict[str, Callable[[], object]]


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    """A question verified and opened, a verdict sealed and signed: by libsodium over by OpenSSL alone."""
    del folder, bundle
    us = measure_ways({**list_ways(), **list_flush_ways()})
    before = us["verify openssl"] + us["open"] + us["seal openssl"]
    now = us["verify sodium"] + us["open"] + us["seal sodium"]
    flushes = ", ".join(f"{us[f'flush {at}'] / at:.1f} in a flush of {at}" for at in FLUSHES)
    terms = (
        f"{before:.0f} us, now {now:.0f} us",
        f"verify {us['verify openssl']:.1f}, now {us['verify sodium']:.1f}; open {us['open']:.1f}",
        f"seal and sign {us['seal openssl']:.1f}, now {us['seal sodium']:.1f}; sign alone {us['sign sodium']:.1f}",
        f"not built: one signature a flush, for each verdict {flushes}",
    )
    return [Figure("question in, verdict out: libsodium over OpenSSL", now / before, "x", LIMIT, terms=terms)]


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


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
