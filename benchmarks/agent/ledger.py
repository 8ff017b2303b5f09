"""Benchmark: the egress ledger, durable entries per second, and the time to verify a million.

`python -m benchmarks.agent.ledger`. Entries go through the agent's own writer (synchronous=FULL, group commit), each a
unit of its own as a question's is; the verified file has 1,000,000 entries and a signed head every 10,000.
"""

import asyncio
import sys
import time
from functools import partial
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.harness.benchmark import run_alone
from benchmarks.harness.figures import Figure
from edge_agent.ledger_audit.verify import LedgerOwner, verify_ledger
from edge_agent.storage import ledger, ledger_heads
from edge_agent.storage.database import Database
from edge_agent.storage.ledger import LedgerItem
from edge_agent.storage.ledger_heads import HeadRequest
from edge_agent.storage.schema import open_connection
from wire.ledger.chain import EntryForm, EntryKind, LedgerHead, encode_head_text

ENTRIES = 40_000
AT_ONCE = 64  # units in the writer's hands: a window of questions on their way
MILLION = 1_000_000
SIGNED_EVERY = 10_000
DEVICE = "bench--a"
FORM = EntryForm(
    {"features": "P2"}, {"features": [{"kind": "clip", "low": 0.0, "high": 15.0}]}, "r", "0" * 32, "h", "eu"
)


async def run_benchmark(folder: Path, bundle: Path) -> list[Figure]:
    del bundle
    rate, commits = await _time_durable(folder / "agent.db")
    took_s, size = _time_verify(folder / "million.db")
    group = f"{ENTRIES} entries in {commits} commits, {AT_ONCE} waiting at a time"
    return [
        Figure("ledger entries, synchronous=FULL", rate, "/s", 2000.0, more_is_better=True, terms=(group,)),
        Figure("verify 1,000,000 entries", took_s, "s", 20.0, terms=(f"{size / MILLION:.0f} bytes an entry on disk",)),
    ]


async def _time_durable(path: Path) -> tuple[float, int]:
    database = Database(path)
    await database.open()
    window, done = asyncio.Semaphore(AT_ONCE), asyncio.Event()
    left = ENTRIES

    def written(trouble: object) -> None:
        nonlocal left
        assert trouble is None
        left -= 1
        window.release()
        if not left:
            done.set()

    began = time.perf_counter()
    for number in range(ENTRIES):
        await window.acquire()
        database.write((partial(ledger.append_item, item=_make_item(number)),), written)
    await done.wait()
    rate, commits = ENTRIES / (time.perf_counter() - began), database.commits
    await database.close()
    return rate, commits


def _make_item(number: int) -> LedgerItem:
    digest = sha256(b"%d" % number).digest()
    return LedgerItem(
        EntryKind.QUESTION, FORM, 1_790_000_000_000 + number, 408, digest, number + 1, f"{number:032x}", 408
    )


def _time_verify(path: Path) -> tuple[float, int]:
    key = Ed25519PrivateKey.generate()

    def sign(epoch: int, entries: int, at_ms: int, hash: bytes) -> bytes:  # noqa: A002 - the chain's word
        return key.sign(encode_head_text(LedgerHead(DEVICE, epoch, entries, at_ms, hash)))

    db = open_connection(path).db
    for start in range(0, MILLION, SIGNED_EVERY):
        db.execute("begin")
        for number in range(start, start + SIGNED_EVERY):
            ledger.append_item(db, _make_item(number))
        ledger_heads.sign_due_head(db, HeadRequest(0, 0.0, 0.0, True), sign)
        db.execute("commit")
    began = time.perf_counter()
    findings = verify_ledger(db, LedgerOwner(DEVICE, key.public_key().public_bytes_raw(), {}))
    took_s = time.perf_counter() - began
    assert all(finding.good for finding in findings), findings
    db.close()
    return took_s, path.stat().st_size


if __name__ == "__main__":
    sys.exit(run_alone(run_benchmark))
