"""What waits for one model: items in their fair turns, what its batches cost, and the batch that goes next. Pure.

Rule: what nobody waits for any more is taken out before a batch forms; it is never computed and never charged.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from math import inf

import msgspec

from cloud_hub.core.commands import LOCAL, Item
from cloud_hub.engine.types import ModelCard
from policies.serving import batching
from policies.serving.batching import Cost, Learnt, Room, Waiting
from policies.serving.fair_queue import FairQueue, Place, tenant_of

SWEEP_AT = 64  # dead items in a queue before they are looked for


class Batch(msgspec.Struct, eq=False):
    """`attempt` 0 = first, 1 = the same again, 2 = alone."""

    ticket: int
    model: str
    items: tuple[Item, ...]
    attempt: int
    sent_s: float = 0.0

    @property
    def weight(self) -> float:
        return sum(item.weight for item in self.items)


class ModelState(StrEnum):
    """Of one version of a model."""

    READY = "ready"
    COLD = "cold"  # known, not loaded: what arrives for it has it loaded
    LOADING = "loading"
    CLOSING = "closing"  # finishes what it has, then it is cold


class ModelQueue:
    """The queue of one model. `alive` tells whether anybody still waits for an item."""

    def __init__(self, card: ModelCard, max_batch: int, alive: Callable[[Item], bool]) -> None:
        self.card = card
        self.state = ModelState.READY
        self.why = ""  # it could not be loaded
        self.again: deque[tuple[int, tuple[Item, ...]]] = deque()  # (attempt, items)
        self.running: dict[int, Batch] = {}
        self.suspects: list[Item] = []
        self.checking = False
        self.down = 0  # checks, or loads, failed in a row
        self.check_at = 0.0
        self.used_s = 0.0  # when it was asked for last
        self._waiting: FairQueue[Item] = FairQueue()
        self._most = min(max_batch, card.max_batch)
        self._alive = alive
        self._dead = 0
        self._learnt = Learnt()

    def __len__(self) -> int:
        """Items that wait, those to be tried again too."""
        again = sum(len(items) for _, items in self.again) if self.again else 0
        return len(self._waiting) + again

    @property
    def idle(self) -> bool:
        """A batch may be sent now: a slot is free, or it is full and can wait for one at the engine's own door.

        So an engine is never idle because this process is busy; a batch that could still grow never waits there.
        """
        works = self.state in (ModelState.READY, ModelState.CLOSING) and not self.checking and not self.down
        running, slots = len(self.running), self.card.slots
        return works and (running < slots or (running < 2 * slots and len(self._waiting) >= self._most))

    @property
    def pressed(self) -> bool:
        """More waits than a batch can take."""
        return len(self._waiting) > self._most

    @property
    def empty(self) -> bool:
        return not (len(self) or self.running or self.checking or self.suspects)

    @property
    def served_per_s(self) -> float:
        """What full batches manage; 0 while nothing is known, or nothing works."""
        rate = self._learnt.cost.rate(float(self._most)) * self.card.slots
        return 0.0 if self.down or rate == inf else rate

    def ahead(self, band: int, tenant: str) -> float:
        """Items that are served before one that comes now."""
        return self._waiting.ahead(band, tenant) + sum(len(batch.items) for batch in self.running.values())

    def put(self, item: Item) -> None:
        self.used_s = item.arrived_s
        self._waiting.put(_place(item), item.weight, item)

    def died(self) -> None:
        """One of the items has nobody any more who waits for it."""
        self._dead += 1
        if self._dead > max(SWEEP_AT, len(self._waiting) // 2):
            self._dead = 0
            self._waiting.sweep(self._alive)

    def form(self, now: float) -> tuple[int, tuple[Item, ...], list[Item]]:
        """(attempt, items of the next batch, items whose time is over). No items: nothing is left to send."""
        while self.again:
            attempt, items = self.again.popleft()
            items = tuple(item for item in items if self._alive(item))
            if items:
                return attempt, items, []
        return 0, *self._grow(now)

    def expect(self, cost: Cost) -> None:
        """As measured before there was any work."""
        self._learnt = Learnt((), cost)

    def learn(self, batch: Batch, seconds: float) -> None:
        if seconds > 0:
            self._learnt = batching.learn(self._learnt, batch.weight, seconds)

    def _grow(self, now: float) -> tuple[tuple[Item, ...], list[Item]]:
        free = max(1, self.card.slots - len(self.running))
        most = batching.size(len(self._waiting), self._most, free)
        room = Room(most, self._learnt.cost, self._starts_s(now), self.pressed)
        batch, taken, over = batching.Batch(), [], []
        while len(self._waiting):
            item = self._waiting.peek()
            waiting = Waiting(item.weight, item.deadline)
            if not self._alive(item):
                self._waiting.drop()
            elif item.hard and batching.hopeless(waiting, room):
                over.append(self._waiting.drop())
            else:
                after = batching.grown(batch, waiting, room)
                if after is None:
                    break
                batch = after
                taken.append(self._waiting.take())
        return tuple(taken), over

    def _starts_s(self, now: float) -> float:
        """When a batch that is sent now is begun: at once, or after the one that it waits for."""
        if len(self.running) < self.card.slots:
            return now
        first = min(self.running.values(), key=lambda batch: batch.sent_s)
        return max(now, first.sent_s + self._learnt.cost.seconds(first.weight))


def _place(item: Item) -> Place:
    if item.key.device == LOCAL:
        return Place(item.band, item.tenant, f"{LOCAL}/{item.flow}")
    return Place(item.band, tenant_of(item.key.device), item.key.device)
