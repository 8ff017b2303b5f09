"""Dynamic batching: batch size by free slots and deadlines, with a cost model learnt from the last batches. Pure.

A batch costs `base + weight * item` seconds. Rule: an idle engine never waits for a fuller batch; items gather only
while every slot is busy. A batch grows in the queue's order until it is full or the tightest deadline in it would be
missed.
"""

from math import inf

import msgspec

WINDOW = 64  # batches a cost is learnt from
USEFUL = 0.9  # share of the engine's rate that no deadline may cost while more than a batch waits


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Cost of a batch in seconds: `base_s` whatever is in it, `item_s` for each unit of weight."""

    base_s: float = 0.0
    item_s: float = 0.0

    def seconds(self, weight: float) -> float:
        """Seconds that a batch of this weight takes."""
        return self.base_s + self.item_s * weight

    def rate(self, weight: float) -> float:
        """Units of weight a second in batches of this weight; inf while nothing is known."""
        seconds = self.seconds(weight)
        return weight / seconds if seconds > 0 else inf


class Learnt(msgspec.Struct, frozen=True):
    """The last batches as (weight, seconds), oldest first, and the cost fitted to them."""

    seen: tuple[tuple[float, float], ...] = ()
    cost: Cost = Cost()


def learn(before: Learnt, weight: float, seconds: float) -> Learnt:
    """Add a measured batch and fit the cost again; the oldest beyond `WINDOW` is dropped.

    Raises ValueError for a weight that is not positive or a time that is negative or not finite.
    """
    if not (0 < weight < inf and 0 <= seconds < inf):
        raise ValueError(f"no batch weighs {weight} and takes {seconds} s")
    seen = (*before.seen[1 - WINDOW :], (weight, seconds))
    return Learnt(seen, _fitted(seen, before.cost))


def _fitted(seen: tuple[tuple[float, float], ...], before: Cost) -> Cost:
    """Least squares with both numbers >= 0. Batches of one weight alone say nothing of the slope: it stays."""
    count, mean_w, mean_s = len(seen), 0.0, 0.0
    for w, seconds in seen:
        mean_w += w
        mean_s += seconds
    mean_w, mean_s = mean_w / count, mean_s / count
    spread, slope = 0.0, 0.0
    for w, seconds in seen:
        off = w - mean_w
        spread += off * off
        slope += off * (seconds - mean_s)
    slope = slope / spread if spread > 1e-9 * count * mean_w * mean_w else before.item_s
    slope = min(max(slope, 0.0), mean_s / mean_w)
    return Cost(mean_s - slope * mean_w, slope)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """An item as batching sees it. `deadline` (seconds, same clock as `now`): after it the answer is of less use."""

    weight: float = 1.0
    deadline: float = inf


class Room(msgspec.Struct, frozen=True, gc=False):
    """Limits of the batch that is being filled: number of items, and what it would cost from `now` on.

    `pressed`: more waits than it can take. Then short deadlines may not slow all the others.
    """

    max_items: int
    cost: Cost
    now: float
    pressed: bool = False


class Batch(msgspec.Struct, frozen=True, gc=False):
    """A batch as it grows; `tightest`: the earliest deadline in it that can still be met."""

    items: int = 0
    weight: float = 0.0
    tightest: float = inf


def size(queued: int, max_batch: int, free_slots: int) -> int:
    """Number of items for the next batch; 0 = wait. With several free slots the queue is shared evenly among them."""
    if queued <= 0 or free_slots <= 0:
        return 0
    return min(max_batch, -(-queued // free_slots))


def grown(batch: Batch, item: Waiting, room: Room) -> Batch | None:
    """The batch with the item added, or None: then it goes as it is. An empty batch takes any item.

    A deadline that cannot be met any more does not count: its item is late, and slows nobody.
    """
    weight = batch.weight + item.weight
    alone = room.now + room.cost.seconds(item.weight)
    tightest = min(batch.tightest, item.deadline if alone <= item.deadline else inf)
    after = Batch(batch.items + 1, weight, tightest)
    if not batch.items:
        return after
    if after.items > room.max_items:
        return None
    meets = room.now + room.cost.seconds(weight) <= tightest
    return after if meets or (room.pressed and not _useful(batch, room)) else None


def hopeless(item: Waiting, room: Room) -> bool:
    """Whether the item would miss its deadline even alone and at once."""
    return room.now + room.cost.seconds(item.weight) > item.deadline


def _useful(batch: Batch, room: Room) -> bool:
    """Whether the engine, with batches as small as this, still has `USEFUL` of its rate."""
    full = batch.weight * room.max_items / batch.items
    return room.cost.rate(batch.weight) >= USEFUL * room.cost.rate(full)
