"""Shards that this hub serves, and the receipts that are due to their devices. Pure.

Rule: of a shard that is not served nothing is remembered, answered or written. Where there are no leases one hub serves
all shards.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from math import inf

from cloud_hub.core.commands import Command, QuestionKey, SendNote, Stream
from wire.protocol.messages import Receipt
from wire.protocol.topics import compute_shard

RECEIPT_SEQS = 64


class ServedShards:
    """The shards that a hub serves: all of them, until `serve_by_lease` says that others serve the rest."""

    def __init__(self) -> None:
        self._served: dict[int, float] | None = None  # since when, in hub time

    def serve_by_lease(self) -> None:
        """Serve none but those that are added from now on."""
        self._served = {}

    def includes(self, device: str) -> bool:
        """Whether the devices of this one's shard are served here."""
        return self._served is None or compute_shard(device) in self._served

    def pick(self, devices: Iterable[str]) -> tuple[str, ...]:
        """Those of the devices that are served here."""
        return tuple(filter(self.includes, devices))

    def find_beginning(self, device: str) -> float:
        """Since when the devices of this one's shard are served here, in hub time; 0 = always, inf = they are not."""
        return 0.0 if self._served is None else self._served.get(compute_shard(device), inf)

    def add(self, shards: Iterable[int], now: float) -> None:
        """Serve these shards too."""
        if self._served is not None:
            self._served.update(dict.fromkeys(shards, now))

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Serve these shards no longer: another hub does."""
        if self._served is not None:
            self._served = {shard: since for shard, since in self._served.items() if shard not in shards}


class DueReceipts:
    """Receipts that are due: one note for each stream and at most `RECEIPT_SEQS` seqs."""

    def __init__(self, counts: "Counter[str]") -> None:
        self._due: dict[Stream, list[int]] = {}
        self._counts = counts

    def add(self, key: QuestionKey) -> None:
        """A receipt is due for this question."""
        self._counts["receipts"] += 1
        self._due.setdefault((key.device, key.epoch), []).append(key.seq)

    def take_notes(self, now: float) -> list[Command]:
        """Commands that send what is due, which is possible while a round is being gathered."""
        del now
        notes: list[Command] = [
            SendNote(device, Receipt(epoch, tuple(seqs[at : at + RECEIPT_SEQS])))
            for (device, epoch), seqs in self._due.items()
            for at in range(0, len(seqs), RECEIPT_SEQS)
        ]
        self._due.clear()
        return notes

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Forget what is due to devices of these shards."""
        self._due = {stream: seqs for stream, seqs in self._due.items() if compute_shard(stream[0]) not in shards}
