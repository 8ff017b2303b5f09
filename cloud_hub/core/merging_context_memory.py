"""What `HubCore` remembers between events: open questions, lately ended ones, and how far each stream has come.

Rule: all of it can be lost. The store is the truth; what is not remembered is looked up.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator

import msgspec

from cloud_hub.core.commands import Item, Key, Row, Stream
from policies.serving.fair_queue import tenant_of

RECENT_ROWS = 8192  # about 8 MB of verdicts: a repeat within seconds costs no read
STREAMS = 65_536
BIGGEST_MS = 2**62


class Open(msgspec.Struct, eq=False):
    """A question on its way. `stored`: the hub owes an ending. `ending`: it is decided, and being written."""

    key: Key
    digest: bytes
    fingerprint: bytes
    binding: bytes
    created_ms: int
    item: Item
    stored: bool = False
    ending: bool = False
    keep_until_ms: int = BIGGEST_MS  # whatever has not ended by then, ends


class Memory:
    def __init__(self) -> None:
        self._open: dict[Key, Open] = {}
        self._per_device: Counter[str] = Counter()
        self._per_tenant: Counter[str] = Counter()
        self._recent: OrderedDict[Key, Row] = OrderedDict()
        self._highest: OrderedDict[Stream, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Open]:
        return iter(self._open.values())

    def open(self, key: Key) -> Open | None:
        return self._open.get(key)

    def waits(self, item: Item) -> bool:
        """Whether the question this item belongs to still needs its result."""
        question = self._open.get(item.key)
        return question is not None and question.item is item and not question.ending

    def device_open(self, device: str) -> int:
        return self._per_device[device]

    def tenant_open(self, tenant: str) -> int:
        return self._per_tenant[tenant]

    @property
    def tenants(self) -> int:
        """Tenants with open questions."""
        return len(self._per_tenant)

    def add(self, question: Open) -> None:
        self._open[question.key] = question
        self._per_device[question.key.device] += 1
        self._per_tenant[tenant_of(question.key.device)] += 1
        self.reached(_stream(question.key), question.key.seq, known=False)

    def remove(self, key: Key) -> Open | None:
        question = self._open.pop(key, None)
        if question is not None:
            _less(self._per_device, key.device)
            _less(self._per_tenant, tenant_of(key.device))
        return question

    def recent(self, key: Key) -> Row | None:
        return self._recent.get(key)

    def remember(self, row: Row) -> None:
        self._recent[row.key] = row
        if len(self._recent) > RECENT_ROWS:
            self._recent.popitem(last=False)

    def forget(self, key: Key) -> None:
        self._recent.pop(key, None)

    def certainly_new(self, key: Key) -> bool:
        """Above everything the stream ever stored. False also means: not known."""
        highest = self._highest.get(_stream(key))
        return highest is not None and key.seq > highest

    def reached(self, stream: Stream, seq: int, *, known: bool = True) -> None:
        """`known`: `seq` covers the whole store. Else it only raises a mark that does."""
        if known or stream in self._highest:
            self._highest[stream] = max(seq, self._highest.get(stream, -1))
            self._highest.move_to_end(stream)
            if len(self._highest) > STREAMS:
                self._highest.popitem(last=False)


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _stream(key: Key) -> Stream:
    return key.device, key.epoch
