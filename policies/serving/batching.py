"""Dynamic batching: batch size by free slots and deadlines, with a cost model learnt from the last batches. Pure.

A batch costs `base + weight * item` seconds. Rule: an idle engine never waits for a fuller batch; items gather only
while every slot is busy. A batch grows in the queue's order until it is full or the tightest deadline in it would be
missed.
"""

from math import inf

import msgspec

COST_WINDOW = 64  # batches a cost is learnt from
BACKGROUND_SHARE = 0.05  # by which items that nobody waits for may lengthen a batch of others
USEFUL_RATE = 0.9  # share of the engine's rate that no deadline may cost while more than a batch waits


class BatchCost(msgspec.Struct, frozen=True, gc=False):
    """Cost of a batch in seconds: `base_s` whatever is in it, `item_s` for each unit of weight."""

    base_s: float = 0.0
    item_s: float = 0.0

    def predict_seconds(self, weight: float) -> float:
        """Seconds that a batch of this weight takes."""
        return self.base_s + self.item_s * weight

    def predict_rate(self, weight: float) -> float:
        """Units of weight a second in batches of this weight; inf while nothing is known."""
        seconds = self.predict_seconds(weight)
        return weight / seconds if seconds > 0 else inf


class CostModel(msgspec.Struct, frozen=True):
    """The last batches as (weight, seconds), oldest first, and the cost fitted to them."""

    seen: tuple[tuple[float, float], ...] = ()
    cost: BatchCost = BatchCost()


def learn_cost(before: CostModel, weight: float, seconds: float) -> CostModel:
    """Add a measured batch and fit the cost again; the oldest beyond `COST_WINDOW` is dropped.

    Raises ValueError for a weight that is not positive or a time that is negative or not finite.
    """
    if not (0 < weight < inf and 0 <= seconds < inf):
        raise ValueError(f"no batch weighs {weight} and takes {seconds} s")
    seen = (*before.seen[1 - COST_WINDOW :], (weight, seconds))
    return CostModel(seen, _fit_cost(seen, before.cost))


def _fit_cost(seen: tuple[tuple[float, float], ...], before: BatchCost) -> BatchCost:
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
    return BatchCost(mean_s - slope * mean_w, slope)


class WaitingItem(msgspec.Struct, frozen=True, gc=False):
    """An item as batching sees it. `deadline` (seconds, same clock as `now`): after it the answer is of less use."""

    weight: float = 1.0
    deadline: float = inf


class BatchLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of the batch that is being filled: number of items, and what it would cost from `now` on.

    `pressed`: more waits than it can take. Then short deadlines may not slow all the others.
    """

    max_items: int
    cost: BatchCost
    now: float
    pressed: bool = False


class GrowingBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch as it grows; `tightest`: the earliest deadline in it that can still be met."""

    items: int = 0
    weight: float = 0.0
    tightest: float = inf


def choose_batch_size(queued: int, max_batch: int, free_slots: int) -> int:
    """Number of items for the next batch; 0 = wait. With several free slots the queue is shared evenly among them."""
    if queued <= 0 or free_slots <= 0:
        return 0
    return min(max_batch, -(-queued // free_slots))


def grow_batch(batch: GrowingBatch, item: WaitingItem, room: BatchLimits) -> GrowingBatch | None:
    """The batch with the item added, or None: then it goes as it is. An empty batch takes any item.

    A deadline that cannot be met any more does not count: its item is late, and slows nobody.
    """
    weight = batch.weight + item.weight
    alone = room.now + room.cost.predict_seconds(item.weight)
    tightest = min(batch.tightest, item.deadline if alone <= item.deadline else inf)
    after = GrowingBatch(batch.items + 1, weight, tightest)
    if not batch.items:
        return after
    if after.items > room.max_items:
        return None
    meets = room.now + room.cost.predict_seconds(weight) <= tightest
    return after if meets or (room.pressed and not _keeps_useful_rate(batch, room)) else None


def limit_background(weight: float, usual: float, cost: BatchCost) -> float:
    """Weight up to which items that nobody waits for may fill a batch, so that it takes hardly longer.

    `weight`: of the others in it; `usual`: where there are none, that of a usual batch of others, who may come while it
    is computed; 0 = none come.
    """
    others = weight or usual
    if others <= 0 or cost.item_s <= 0:
        return inf
    return others + BACKGROUND_SHARE * cost.predict_seconds(others) / cost.item_s


def compute_overhead(weight: float, full: float, cost: BatchCost) -> float:
    """Weight that full batches would have computed in the time that a small batch takes beyond its own weight's share.

    `full`: weight of a full batch. 0 while the cost is not known.
    """
    seconds = cost.predict_seconds(weight)
    return max(0.0, seconds * cost.predict_rate(full) - weight) if seconds > 0 else 0.0


def is_hopeless(item: WaitingItem, room: BatchLimits) -> bool:
    """Whether the item would miss its deadline even alone and at once."""
    return room.now + room.cost.predict_seconds(item.weight) > item.deadline


def _keeps_useful_rate(batch: GrowingBatch, room: BatchLimits) -> bool:
    """Whether the engine, with batches as small as this, still has `USEFUL_RATE` of its rate."""
    full = batch.weight * room.max_items / batch.items
    return room.cost.predict_rate(batch.weight) >= USEFUL_RATE * room.cost.predict_rate(full)
