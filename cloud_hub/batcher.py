"""Which questions go to which engine next, and what is done when an engine fails.

Rule 1: an idle engine never waits. Rule 2: devices take turns. Rule 3: a batch that fails is tried once more, then item
by item; an item that fails alone is refused only if the engine's own sample still works, else the engine is down and
everything waits.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

from cloud_hub.commands import Check, Infer, Item, Key
from cloud_hub.work import ModelCard
from policies.backoff import delay
from policies.batching import size

RECHECK_BASE_S = 1.0
RECHECK_CAP_S = 30.0


class Batch(msgspec.Struct, eq=False):
    """`attempt` 0 = first, 1 = the same again, 2 = alone."""

    ticket: int
    model: str
    items: tuple[Item, ...]
    attempt: int
    sent_s: float = 0.0


class _Lane:
    """The queue of one engine."""

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.turns: OrderedDict[str, deque[Item]] = OrderedDict()  # by device, whose turn it is first
        self.queued = 0
        self.again: deque[tuple[int, tuple[Item, ...]]] = deque()  # (attempt, items)
        self.running: Batch | None = None
        self.suspects: list[Item] = []
        self.checking = False
        self.down = 0  # checks failed in a row
        self.check_at = 0.0

    def pop(self, count: int) -> tuple[Item, ...]:
        taken: list[Item] = []
        while len(taken) < count and self.turns:
            device, queue = next(iter(self.turns.items()))
            taken.append(queue.popleft())
            if queue:
                self.turns.move_to_end(device)
            else:
                del self.turns[device]
        self.queued -= len(taken)
        return tuple(taken)

    @property
    def idle(self) -> bool:
        return self.running is None and not self.checking and not self.down


class Batcher:
    def __init__(self, cards: Iterable[ModelCard], max_batch: int) -> None:
        self._lanes = {card.name: _Lane(card) for card in cards}
        self._max_batch = max_batch
        self._running: dict[int, Batch] = {}
        self._tickets = 0
        self._local: dict[Key, Item] = {}

    def queued(self) -> dict[str, int]:
        return {name: lane.queued for name, lane in self._lanes.items()}

    def down(self) -> tuple[str, ...]:
        """Engines that do not even manage their own sample."""
        return tuple(name for name, lane in self._lanes.items() if lane.down)

    def add(self, model: str, item: Item) -> None:
        lane = self._lanes[model]
        lane.turns.setdefault(item.key.device, deque()).append(item)
        lane.queued += 1

    @property
    def local(self) -> int:
        """Samples of web requests under way."""
        return len(self._local)

    def add_local(self, model: str, item: Item) -> None:
        self._local[item.key] = item
        self.add(model, item)

    def take_local(self, key: Key) -> bool:
        """True once for each sample that somebody still waits for."""
        return self._local.pop(key, None) is not None

    def drop_local(self, request: int) -> None:
        for key in [key for key in self._local if key.epoch == request]:
            del self._local[key]

    def next(self, now: float) -> list[Infer]:
        """One batch for every idle engine that has work."""
        return [self._start(lane, now) for lane in self._lanes.values() if lane.idle and (lane.again or lane.queued)]

    def done(self, ticket: int) -> Batch:
        batch = self._running.pop(ticket)
        self._lanes[batch.model].running = None
        return batch

    def failed(self, ticket: int) -> list[Check]:
        batch = self.done(ticket)
        lane = self._lanes[batch.model]
        if batch.attempt == 0:
            lane.again.append((1, batch.items))
        elif len(batch.items) > 1:
            lane.again.extend((2, (item,)) for item in batch.items)
        else:
            lane.suspects.extend(batch.items)
            return [self._check(lane)]
        return []

    def checked(self, model: str, works: bool, now: float) -> tuple[Item, ...]:
        """Items to refuse for good: they failed alone on an engine that works. A broken engine keeps them for later."""
        lane = self._lanes[model]
        lane.checking = False
        suspects, lane.suspects = tuple(lane.suspects), []
        if works:
            lane.down = 0
            return suspects
        lane.again.extendleft((2, (item,)) for item in reversed(suspects))
        lane.down += 1
        lane.check_at = now + delay(lane.down, 1.0, RECHECK_BASE_S, RECHECK_CAP_S)
        return ()

    def wake(self, now: float) -> list[Check]:
        """Engines that are down are tried again, ever more seldom."""
        due = [lane for lane in self._lanes.values() if lane.down and not lane.checking and lane.check_at <= now]
        return [self._check(lane) for lane in due]

    def _check(self, lane: _Lane) -> Check:
        lane.checking = True
        return Check(lane.card.name)

    def _start(self, lane: _Lane, now: float) -> Infer:
        if lane.again:
            attempt, items = lane.again.popleft()
        else:
            attempt = 0
            items = lane.pop(size(lane.queued, min(self._max_batch, lane.card.max_batch), 1))
        self._tickets += 1
        batch = Batch(self._tickets, lane.card.name, items, attempt, now)
        lane.running = self._running[batch.ticket] = batch
        return Infer(batch.ticket, batch.model, items)
