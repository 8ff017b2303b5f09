"""Asyncio service of the transparency log: logs heads in groups, and answers with signed checkpoints and mirrors.

Also exports a device's heads as a file for `skerry ledger verify --heads`, each with its inclusion proof to one signed
checkpoint. Rule: nothing is answered before it is logged, and all proofs of an answer are of the signed tree. Heads
that the disk does not take are dropped and counted: the device sends its head again.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.exc import SQLAlchemyError

from cloud_hub.database.errors import log_fault
from cloud_hub.storage.ledger_log import LedgerLog, LoggedHead, ReceivedHead
from wire.ledger.chain import verify_head
from wire.ledger.checkpoint import build_origin, sign_checkpoint
from wire.ledger.merkle import TreeHead, hash_leaf, verify_inclusion
from wire.process.logging import JsonLog, safe_name
from wire.protocol.messages import CheckpointNote, DownNote, SpendMirror, SpendTotals

AT_ONCE = 10_000  # heads in one export


def export_heads(log: LedgerLog, hub: str, key: Ed25519PrivateKey, device: str, after: int = -1) -> dict[str, Any]:
    """Logged heads of a device above the index `after`, at most 10,000, oldest first, as JSON-able values.

    Bytes as base64, times in ms of hub time.
    """
    tree = log.tree()
    heads = [
        _head_record(each, log.prove_inclusion(each.place, tree.size)) for each in log.heads_for(device, after, AT_ONCE)
    ]
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    return {"hub": hub, "key": public, "checkpoint": sign_checkpoint(build_origin(hub), tree, key), "heads": heads}


def _head_record(logged: LoggedHead, proof: tuple[bytes, ...]) -> dict[str, Any]:
    leaf = {name: getattr(logged.leaf, name) for name in logged.leaf.__struct_fields__}
    told = {name: encode_base64(value) if isinstance(value, bytes) else value for name, value in leaf.items()}
    path = [encode_base64(each) for each in proof]
    return {"index": logged.place, **told, "epoch": f"{logged.leaf.epoch:x}", "flaw": logged.flaw, "inclusion": path}


def encode_base64(data: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(data).decode()


SHOWN_HEADS = 20


def describe_ledger(log: LedgerLog, device: str) -> dict[str, Any]:
    """What the log shows of a device, JSON-able: its newest heads, each proven or not, and its spending.

    `proven`: the device signed the head, and it is in the tree of `size` heads. `flaw`: how it contradicts earlier
    ones, "" for nothing. `spend`: the highest totals that the device ever reported.
    """
    tree = log.tree()
    heads = [
        {
            "index": each.place,
            "epoch": f"{each.leaf.epoch:x}",
            "entries": each.leaf.entries,
            "at_ms": each.leaf.at_ms,
            "received_ms": each.leaf.received_ms,
            "flaw": each.flaw,
            "proven": _is_proven(log, tree, each),
        }
        for each in log.newest_heads(device, SHOWN_HEADS)
    ]
    totals = [
        {"account": account, "period": period, "amount": amount} for account, period, amount in log.spend_mirror(device)
    ]
    return {"size": tree.size, "root": encode_base64(tree.root), "heads": heads, "spend": totals[:MIRRORED]}


def _is_proven(log: LedgerLog, tree: TreeHead, logged: LoggedHead) -> bool:
    """Whether the device's signature holds and the head's proof leads to the tree's root."""
    leaf = logged.leaf
    if not verify_head(leaf.signed_head, leaf.signature, leaf.key):
        return False
    proof = log.prove_inclusion(logged.place, tree.size)
    return verify_inclusion(tree, logged.place, hash_leaf(leaf.encode_leaf()), proof)


T = TypeVar("T")
GROUP = 256  # heads per transaction
MIRRORED = 400  # totals in one Mirror, newest periods first: it has to fit a frame


class LedgerBackend(NamedTuple):
    """What the service needs: the hub's name, its signing key, and how to send a note.

    `enrolled_ms`: hub time at which a device got its keys, 0 if unknown; `words`: the log.
    """

    hub: str
    key: Ed25519PrivateKey
    tell: Callable[[str, DownNote], None]
    enrolled_ms: Callable[[str], int]
    words: JsonLog


class _HeadAnswer(NamedTuple):
    device: str
    checkpoint: CheckpointNote
    mirror: SpendMirror
    flaw: str


class LedgerLogService:
    """Logs ledger heads from the event loop; one thread reads and writes the log."""

    def __init__(self, log: LedgerLog, desk: LedgerBackend) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._desk = desk
        self.flawed = set(log.flawed_devices())  # devices with contradicting heads, to be examined by an administrator
        self._waiting: list[ReceivedHead] = []
        self._news = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub-ledger")

    @property
    def origin(self) -> str:
        """Origin line (name of the log) of its checkpoints."""
        return build_origin(self._desk.hub)

    @property
    def public_key(self) -> bytes:
        """Raw Ed25519 key that verifies the checkpoints."""
        return self._desk.key.public_key().public_bytes_raw()

    def add_head(self, received: ReceivedHead) -> None:
        """Queue a verified head to be logged and answered."""
        self._waiting.append(received)
        self._news.set()

    async def run(self) -> None:
        """Log queued heads in groups until cancelled, then close the log."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self._waiting:
                    group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
                    await self._log_group(group)
        finally:
            self._thread.shutdown(wait=True)
            self._log.close()

    async def query_log(self, question: Callable[[LedgerLog], T]) -> T:
        """Run a query in the log's thread. Raises what the query raises (ValueError, SQLAlchemyError)."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, question, self._log)

    async def sign_checkpoint(self) -> str:
        """Signed checkpoint of the log as it is now."""
        return sign_checkpoint(self.origin, await self.query_log(LedgerLog.tree), self._desk.key)

    async def export_heads(self, device: str, after: int = -1) -> dict[str, Any]:
        """Logged heads of a device with proofs, as JSON-able values; see `export_heads`."""
        desk = self._desk
        return await self.query_log(lambda log: export_heads(log, desk.hub, desk.key, device, after))

    async def describe_ledger(self, device: str) -> dict[str, Any]:
        """What the log shows of a device, JSON-able; see `describe_ledger`."""
        return await self.query_log(lambda log: describe_ledger(log, device))

    async def _log_group(self, group: list[ReceivedHead]) -> None:
        try:
            answers = await self.query_log(lambda log: _log_and_answer(log, self._desk, group))
        except SQLAlchemyError as error:
            self.counts["ledger.unlogged"] += len(group)
            log_fault(self._desk.words, "ledger_log_failed", error)
            return
        self.counts["ledger.heads"] += len(answers)
        for each in answers:
            if each.flaw:
                self.flawed.add(each.device)
                self.counts[f"ledger.{each.flaw}"] += 1
                self._desk.words.warning("ledger_flaw", device=safe_name(each.device), flaw=safe_name(each.flaw))
            self._desk.tell(each.device, each.checkpoint)
            self._desk.tell(each.device, each.mirror)


def _log_and_answer(log: LedgerLog, desk: LedgerBackend, group: list[ReceivedHead]) -> list[_HeadAnswer]:
    """Log a group of heads and make their answers, all of the same tree. Runs in the log's thread."""
    logged = log.append(group)
    tree = log.tree()
    text = sign_checkpoint(build_origin(desk.hub), tree, desk.key)
    return [_make_answer(log, desk, said, (each, tree, text)) for said, each in zip(group, logged, strict=True)]


def _make_answer(
    log: LedgerLog, desk: LedgerBackend, said: ReceivedHead, found: tuple[LoggedHead, TreeHead, str]
) -> _HeadAnswer:
    """Answer to one head: checkpoint with proofs, and the mirror of the device's spending."""
    logged, tree, text = found
    heads, leaf = said.heads, logged.leaf
    grown = log.prove_consistency(heads.known, tree.size) if 0 < heads.known <= tree.size else ()
    proof = log.prove_inclusion(logged.place, tree.size)
    checkpoint = CheckpointNote(
        heads.epoch, heads.entries, text, index=logged.place, received_ms=leaf.received_ms, epochs=leaf.epochs,
        inclusion=proof, consistency=grown,
    )  # fmt: skip
    spend: SpendTotals = log.spend_mirror(said.device)[:MIRRORED]
    # The spending of a device enrolled before this log was created is incomplete here.
    whole = leaf.epochs > 1 or desk.enrolled_ms(said.device) >= log.begun_ms
    return _HeadAnswer(said.device, checkpoint, SpendMirror(heads.epoch, spend, whole), logged.flaw)
