"""Senders that are batched by themselves, since their samples made an engine fail. Pure.

Rule: a device, or key, whose sample failed alone on an engine that works shares no batch with others for a while; where
that happens to several of one tenant, the tenant shares none. If it fails in a batch of others again, the time doubles.
So one that always sends such samples costs others few batches, and one that did so once is soon batched with them.
"""

from collections import Counter, OrderedDict
from typing import NamedTuple

import msgspec

FIRST_S = 60.0  # the first time that a sender fails
LONGEST_S = 3600.0
MEMORY_S = 2 * LONGEST_S  # after its last failure a sender is forgotten
MANY_DEVICES = 3  # of one tenant, after which all of it is batched by itself
MAX_SENDERS = 4096  # that are remembered; those that failed least lately are forgotten first


class Sender(NamedTuple):
    """Whose samples are batched by themselves. `device`: "" = all of the tenant's."""

    tenant: str
    device: str


class _Record(msgspec.Struct):
    """Failures of a sender: when the last one was, and for how long it is isolated from then on. Seconds."""

    failed_s: float
    period_s: float

    def is_isolated(self, now: float) -> bool:
        return now < self.failed_s + self.period_s


class BatchIsolation:
    """The senders that failed lately. `now`: seconds, of one clock. False while there are none."""

    def __init__(self) -> None:
        self._records: OrderedDict[Sender, _Record] = OrderedDict()  # the one that failed last at the end
        self._devices: Counter[str] = Counter()  # remembered, by tenant

    def __len__(self) -> int:
        return len(self._records)

    def record_failure(self, tenant: str, device: str, now: float) -> None:
        """Note that a sample failed alone on an engine that works."""
        self._forget(now)
        sender = self.find_sender(tenant, device, now) or Sender(tenant, device)
        self._isolate(sender, now)
        if sender.device and self._devices[tenant] >= MANY_DEVICES:
            self._isolate(Sender(tenant, ""), now)

    def find_sender(self, tenant: str, device: str, now: float) -> Sender | None:
        """Return by whose samples those of a device are batched: its tenant's, its own, or None: with all others."""
        for sender in (Sender(tenant, ""), Sender(tenant, device)):
            record = self._records.get(sender)
            if record is not None and record.is_isolated(now):
                return sender
        return None

    def _isolate(self, sender: Sender, now: float) -> None:
        record = self._records.get(sender)
        if record is None:
            record = self._records[sender] = _Record(now, FIRST_S)
            self._devices[sender.tenant] += bool(sender.device)
        elif not record.is_isolated(now):
            record.period_s = min(LONGEST_S, 2 * record.period_s)
        record.failed_s = now
        self._records.move_to_end(sender)
        if len(self._records) > MAX_SENDERS:
            self._forget_first()

    def _forget(self, now: float) -> None:
        while self._records and now >= next(iter(self._records.values())).failed_s + MEMORY_S:
            self._forget_first()

    def _forget_first(self) -> None:
        sender, _ = self._records.popitem(last=False)
        self._devices[sender.tenant] -= bool(sender.device)
        if not self._devices[sender.tenant]:
            del self._devices[sender.tenant]
