"""Queue of one model: waiting items in fair order, cost estimate of its batches, and forming of the next batch. Pure.

Rule: an item that nobody waits for any more is removed before a batch forms; it is neither computed nor charged.
Rule: background items (jobs) fill what others leave of a batch, as long as it takes hardly longer; they are alone in
one while no others wait. One a second is computed whatever the others ask.
Rule: samples of a sender that made the engine fail lately are in batches of their own, and it pays in turns for the
time that these, and their repeats one by one, take. Its background items have none while others wait.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from math import inf

import msgspec

from cloud_hub.core.commands import LOCAL, BatchItem
from cloud_hub.engine.types import ModelCard
from policies.serving import batching
from policies.serving.batching import BatchCost, BatchLimits, CostModel, GrowingBatch, WaitingItem
from policies.serving.fair_queue import FairQueue, FlowKey, extract_tenant
from policies.serving.isolation import BatchIsolation, Sender

QUIET_S = 5.0  # without others for so long, background items have full batches
BACKGROUND_WAIT_S = 1.0  # after which one of them has a place in the next batch
_USUAL = 0.1  # weight of the newest batch in what is usual
SWEEP_AT = 64  # abandoned items in a queue before it is searched for them


class Batch(msgspec.Struct, eq=False):
    """A batch that was sent to an engine. `attempt` 0 = first, 1 = the whole batch again, 2 = a single item.

    `weight`: sum of the weights of its items, the unit of the cost estimate; it is set here.
    """

    ticket: int
    model: str
    items: tuple[BatchItem, ...]
    attempt: int
    sent_s: float = 0.0
    weight: float = 0.0

    def __post_init__(self) -> None:
        self.weight = sum(item.weight for item in self.items)  # once: each of its results asks for it


class ModelState(StrEnum):
    """Loading state of one version of a model."""

    READY = "ready"
    COLD = "cold"  # known, not loaded: the next item for it triggers loading
    LOADING = "loading"
    CLOSING = "closing"  # finishes what waited when it was closed, then it is cold


class ModelQueue:
    """Queue, running batches and failure state of one model.

    `alive` says whether anybody still waits for an item.
    """

    def __init__(self, card: ModelCard, max_batch: int, alive: Callable[[BatchItem], bool]) -> None:
        self.card = card
        self.state = ModelState.READY
        self.why = ""  # error of the last load, "" = none
        self.again: deque[tuple[int, tuple[BatchItem, ...]]] = deque()  # (attempt, items)
        self.running: dict[int, Batch] = {}
        self.suspects: list[BatchItem] = []
        self.checking = False
        self.down = 0  # checks, or loads, failed in a row
        self.check_at = 0.0
        self.used_s = 0.0  # arrival of its last item, hub seconds
        self.arrived = 0  # items since this process began, refused ones too
        self._waiting: FairQueue[BatchItem] = FairQueue()
        self._background: FairQueue[BatchItem] = FairQueue()
        self._usual = 0.0  # weight of a batch of others than background items
        self._foreground_s = 0.0  # arrival of the last of them
        self._background_s = 0.0  # when one of these was last sent, or came and found none
        self._most = min(max_batch, card.max_batch)
        self._alive = alive
        self._dead = 0
        self._closing_items = 0  # items that are still computed before it is unloaded
        self._learnt = CostModel()
        self._isolation = BatchIsolation()
        self._single: set[BatchItem] = set()  # waiting items that have a batch each, since their last one failed

    def __len__(self) -> int:
        """Number of waiting items, retries included."""
        again = sum(len(items) for _, items in self.again) if self.again else 0
        return len(self._waiting) + len(self._background) + again

    @property
    def background(self) -> int:
        """Number of waiting items that nobody waits for."""
        return len(self._background)

    @property
    def idle(self) -> bool:
        """Whether a batch may be sent now: a slot is free, or a full batch can be queued at the engine.

        One full batch per slot is queued ahead, so that an engine never idles because this process is busy; a batch
        that could still grow is never queued there.
        """
        works = self.state is ModelState.READY or (self.state is ModelState.CLOSING and not self._has_finished)
        works = works and not self.checking and not self.down
        running, slots = len(self.running), self.card.slots
        gathered = len(self._waiting) or (0 if self._usual else len(self._background))
        return works and (running < slots or (running < 2 * slots and gathered >= self._most))

    @property
    def cost(self) -> BatchCost:
        """Cost of a batch, as learnt."""
        return self._learnt.cost

    @property
    def max_batch(self) -> int:
        """Items in one batch at most."""
        return self._most

    @property
    def replica_bytes(self) -> int:
        """Bytes of weights of one replica; 0 = unknown."""
        return self.card.weight_bytes // max(1, self.card.slots)

    def set_replicas(self, count: int) -> None:
        """So many replicas compute from now on, a batch each."""
        if count != self.card.slots:
            self.card = msgspec.structs.replace(self.card, slots=count, weight_bytes=self.replica_bytes * count)

    @property
    def pressed(self) -> bool:
        """Whether more items wait than one batch takes."""
        return len(self._waiting) > self._most

    @property
    def closed(self) -> bool:
        """Whether a closing model may be unloaded: nothing runs, is checked or is left of what it was to compute."""
        busy = self.running or self.checking or self.suspects
        return self.state is ModelState.CLOSING and not busy and self._has_finished

    @property
    def _has_finished(self) -> bool:
        return not self.again and (self._closing_items <= 0 or not len(self))

    def close(self) -> None:
        """Begin to close: as many items as wait now are still computed, what comes later waits for the next load."""
        self.state = ModelState.CLOSING
        self._closing_items = len(self._waiting) + len(self._background)

    @property
    def served_per_s(self) -> float:
        """Throughput of full batches in items per second; 0 while it is unknown or the engine is down."""
        rate = self._learnt.cost.predict_rate(float(self._most)) * self.card.slots
        return 0.0 if self.down or rate == inf else rate

    def count_ahead(self, band: int, tenant: str) -> float:
        """Number of items that would be served before one that arrives now."""
        return self._waiting.estimate_ahead(band, tenant) + sum(len(batch.items) for batch in self.running.values())

    def is_apart(self, batch: Batch) -> bool:
        """Whether all of a batch is of one sender that is batched by itself."""
        senders = {self._find_sender(item, batch.sent_s) for item in batch.items}
        return len(senders) == 1 and None not in senders

    def repeat_singly(self, items: Sequence[BatchItem]) -> None:
        """Put the items of a failed batch of one sender back, to be computed one by one in its turns."""
        for item in reversed(items):
            self._single.add(item)
            queue = self._background if item.background else self._waiting
            queue.put_back(_place_in_queue(item), item.weight, item)
        self._closing_items += len(items)

    def isolate_sender(self, item: BatchItem, now: float) -> None:
        """Note that an item failed alone on an engine that works: its sender pays for the check of the engine, too."""
        place = _place_in_queue(item)
        self._isolation.record_failure(place.tenant, place.device, now)
        self._charge_time(item, item.weight)

    def _charge_time(self, item: BatchItem, weight: float, paid: float = 0.0) -> None:
        """Charge an item's sender for the time of a batch of this weight, of which it has paid so much."""
        overhead = batching.compute_overhead(weight, float(self._most), self._learnt.cost)
        queue = self._background if item.background else self._waiting
        queue.charge(_place_in_queue(item), weight + overhead - paid)

    def _find_sender(self, item: BatchItem, now: float) -> Sender | None:
        """Return whose items alone an item shares a batch with; None: all others'."""
        place = _place_in_queue(item)
        if item in self._single:
            return Sender(place.tenant, place.device)
        return self._isolation.find_sender(place.tenant, place.device, now)

    def put_item(self, item: BatchItem) -> None:
        """Add an item in its fair turn."""
        self.used_s = item.arrived_s
        if item.background:
            self._background_s = self._background_s if len(self._background) else item.arrived_s
            self._background.put(_place_in_queue(item), item.weight, item)
            return
        self.arrived += 1
        self._foreground_s = item.arrived_s
        self._waiting.put(_place_in_queue(item), item.weight, item)

    def on_abandoned(self) -> None:
        """Note that nobody waits for one of the items any more; the queue is searched when many are so."""
        self._dead += 1
        if self._dead > max(SWEEP_AT, len(self) // 2):
            self.remove_dead()

    def remove_dead(self) -> None:
        """Remove the items that nobody waits for any more."""
        self._dead = 0
        self._single.difference_update(self._waiting.remove_unless(self._alive))
        self._single.difference_update(self._background.remove_unless(self._alive))

    def form_batch(self, now: float) -> tuple[int, tuple[BatchItem, ...], list[BatchItem]]:
        """Form the next batch: (attempt, its items, items past their deadline). No items: nothing is left to send."""
        while self.again:
            attempt, items = self.again.popleft()
            items = tuple(item for item in items if self._alive(item))
            if items:
                return attempt, items, []
        taken, over = self._fill_batch(now)
        self._closing_items -= len(taken) + len(over)
        if taken and taken[0] in self._single:
            self._single.discard(taken[0])
            return 2, taken, over
        return 0, taken, over

    def expect_cost(self, cost: BatchCost) -> None:
        """Set the cost estimate measured at warm-up, before there is any work."""
        self._learnt = CostModel((), cost)

    def learn_cost(self, batch: Batch, seconds: float) -> None:
        """Update the cost estimate with a batch that took `seconds`."""
        if seconds > 0:
            self._learnt = batching.learn_cost(self._learnt, batch.weight, seconds)

    def _fill_batch(self, now: float) -> tuple[tuple[BatchItem, ...], list[BatchItem]]:
        """Fill a new batch from the queue while it can still meet the deadlines of its items."""
        if now - self._foreground_s > QUIET_S:
            self._usual = 0.0
        free = max(1, self.card.slots - len(self.running))
        kept = now - self._background_s >= BACKGROUND_WAIT_S and self._has_shared_background(now)
        most = batching.choose_batch_size(len(self._waiting), max(1, self._most - kept), free)
        room = BatchLimits(most, self._learnt.cost, self._start_time_s(now), self.pressed)
        batch, taken, over = self._take_items(self._waiting, room, now)
        if batch.items:
            self._usual += _USUAL * (batch.weight - self._usual) if self._usual else batch.weight
            if self._isolation and self._find_sender(taken[0], now):
                return tuple(taken), over
        limit = batching.limit_background(batch.weight, self._usual, self._learnt.cost)
        filled = self._fill_background(batch, max(limit, batch.weight + kept), room, over, now)
        return (*taken, *filled), over

    def _take_items(
        self, waiting: FairQueue[BatchItem], room: BatchLimits, now: float
    ) -> tuple[GrowingBatch, list[BatchItem], list[BatchItem]]:
        """Take items in their turn while the batch can grow: the batch, its items, those past their deadline."""
        batch, taken, over = GrowingBatch(), list[BatchItem](), list[BatchItem]()
        apart = False
        while waiting.has_next:
            item = waiting.peek()
            wanted = WaitingItem(item.weight, item.deadline)
            if not self._alive(item):
                self._drop(waiting)
            elif item.hard and batching.is_hopeless(wanted, room):
                over.append(self._drop(waiting))
            elif not apart and self._isolation and self._set_apart(waiting, item, now, alone=not taken):
                apart = not taken
            else:
                after = batching.grow_batch(batch, wanted, room)
                single = bool(self._single) and item in self._single
                if after is None or (single and taken):
                    break
                batch = after
                taken.append(waiting.take_next())
                if single:
                    break
        if self._isolation:
            waiting.recall()
        if apart and taken:
            self._charge_time(taken[0], batch.weight, paid=batch.weight)
        return batch, taken, over

    def _set_apart(self, waiting: FairQueue[BatchItem], item: BatchItem, now: float, *, alone: bool) -> bool:
        """Whether the next item shares no batch with others'. Its sender has this batch alone, or is passed over."""
        sender = self._find_sender(item, now)
        if sender is None:
            return False
        if alone:
            waiting.narrow(device_only=bool(sender.device))
        else:
            waiting.pass_over(device_only=bool(sender.device))
        return True

    def _has_shared_background(self, now: float) -> bool:
        """Whether a background item waits that may share a batch with others."""
        waiting = self._background
        if self._isolation:
            while waiting.has_next and self._set_apart(waiting, waiting.peek(), now, alone=False):
                pass
        found = waiting.has_next
        waiting.recall()
        return found

    def _fill_background(
        self, batch: GrowingBatch, limit: float, room: BatchLimits, over: list[BatchItem], now: float
    ) -> list[BatchItem]:
        """Take background items up to a weight, and one at least where the batch has no others."""
        taken, weight = list[BatchItem](), batch.weight
        free = 1 if batch.items else max(1, self.card.slots - len(self.running))
        most = batching.choose_batch_size(batch.items + len(self._background), self._most, free)
        apart = False
        while self._background.has_next and batch.items + len(taken) < most:
            item = self._background.peek()
            alone = not batch.items and not taken
            if not self._alive(item):
                self._drop(self._background)
            elif item.hard and batching.is_hopeless(WaitingItem(item.weight, item.deadline), room):
                over.append(self._drop(self._background))
            elif not apart and self._isolation and self._set_apart(self._background, item, now, alone=alone):
                apart = alone
            elif not alone and (weight + item.weight > limit or item in self._single):
                break
            else:
                weight += item.weight
                taken.append(self._background.take_next())
                if item in self._single:
                    break
        if self._isolation:
            self._background.recall()
        if apart and taken:
            self._charge_time(taken[0], weight, paid=weight)
        if taken:
            self._background_s = room.now
        return taken

    def _drop(self, waiting: FairQueue[BatchItem]) -> BatchItem:
        """Remove the next item without charging anybody for it."""
        item = waiting.drop_next()
        self._single.discard(item)
        return item

    def _start_time_s(self, now: float) -> float:
        """When a batch sent now would start: at once, or after the running batch it waits for."""
        if len(self.running) < self.card.slots:
            return now
        first = min(self.running.values(), key=lambda batch: batch.sent_s)
        return max(now, first.sent_s + self._learnt.cost.predict_seconds(first.weight))


def _place_in_queue(item: BatchItem) -> FlowKey:
    if item.key.device == LOCAL:
        return FlowKey(item.band, item.tenant, f"{LOCAL}/{item.flow}")
    return FlowKey(item.band, extract_tenant(item.key.device), item.key.device)
