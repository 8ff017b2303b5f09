"""Routing among the replicas of a language model: which one gets a request, and which get none for now. Pure.

The score is the load as vLLM's own balancer counts it (`v1/engine/core_client.py`): requests under way, plus a penalty
for those that wait while the KV cache is nearly full; less a credit for the cache blocks of the prompt's prefix that a
replica holds (NVIDIA Dynamo's KV router). Under imbalance the credit is ignored (SGLang, `cache_aware`). Beyond 8
replicas two are drawn (M. Mitzenmacher, "The power of two choices", IEEE TPDS 2001).
Rule: residency filters before anything is ranked.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import inf

import msgspec

KV_PENALTY = 6.0
KV_FREE = 0.5  # share of the KV cache up to which nothing is penalised
IMBALANCE_RATIO = 1.5
IMBALANCE_GAP = 8.0
ALL_COMPARED = 8  # replicas that are all compared; of more, two are drawn

BREAKER_FAULTS = 5  # in a row, of several callers
LAST_RESORT_S = 30.0

MAX_PREFIX_BLOCKS = 1024  # of one prompt
MAX_TABLE_BLOCKS = 65_536


class ReplicaLoad(msgspec.Struct, frozen=True):
    """Load of one replica. `in_flight`: requests that this hub has there; `waiting`, `running`: as the engine reported.

    `kv_usage`: share of its KV cache in use, 0 to 1; `prefix_blocks`: whole cache blocks of this prompt that it holds.
    """

    name: str
    in_flight: int = 0
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    prefix_blocks: int = 0
    region: str = ""

    @property
    def requests(self) -> float:
        """Requests under way: the hub's own count, or what the engine reported where other callers use it too."""
        return float(max(self.in_flight, self.waiting + self.running))


def score_replica(load: ReplicaLoad, *, with_prefix: bool = True) -> float:
    """Return the score of a replica; the lowest gets the request."""
    pressure = KV_PENALTY * load.waiting * max(0.0, load.kv_usage - KV_FREE)
    return load.requests + pressure - (load.prefix_blocks if with_prefix else 0)


def is_imbalanced(loads: Collection[ReplicaLoad]) -> bool:
    """Whether one replica has so much more to do than another that load decides alone."""
    most, least = max(each.requests for each in loads), min(each.requests for each in loads)
    return most > IMBALANCE_RATIO * least and most - least > IMBALANCE_GAP


def filter_regions(loads: Sequence[ReplicaLoad], allowed: frozenset[str] | None) -> list[ReplicaLoad]:
    """Return the replicas where a caller's requests may be computed. None = anywhere; an empty set = nowhere."""
    return list(loads) if allowed is None else [each for each in loads if each.region in allowed]


def rank_replicas(loads: Sequence[ReplicaLoad], dice: tuple[float, float]) -> list[str]:
    """Return the names of the replicas, the one that gets the request first, then those to try after it.

    `dice`: two random numbers in [0, 1). They choose the two that are compared among many; the one that holds most of
    the prefix is compared with them.
    """
    if not loads:
        return []
    with_prefix = not is_imbalanced(loads)
    turned = _rotate(loads, dice[0])  # so that equal ones take turns
    ranked = sorted(turned, key=lambda each: score_replica(each, with_prefix=with_prefix))
    if len(loads) <= ALL_COMPARED:
        return [each.name for each in ranked]
    drawn = _draw_names(loads, dice, with_prefix=with_prefix)
    return [each.name for each in sorted(ranked, key=lambda each: each.name not in drawn)]


def _rotate(loads: Sequence[ReplicaLoad], draw: float) -> list[ReplicaLoad]:
    first = int(draw * len(loads))
    return [*loads[first:], *loads[:first]]


def _draw_names(loads: Sequence[ReplicaLoad], dice: tuple[float, float], *, with_prefix: bool) -> set[str]:
    first = int(dice[0] * len(loads))
    second = (first + 1 + int(dice[1] * (len(loads) - 1))) % len(loads)
    drawn = {loads[first].name, loads[second].name}
    holder = max(loads, key=lambda each: each.prefix_blocks)
    return drawn | {holder.name} if with_prefix and holder.prefix_blocks else drawn


class CircuitBreaker(msgspec.Struct, frozen=True):
    """Circuit breaker of one replica: open while the check of the replica fails, whatever requests met.

    A request that fails opens nothing, since it may be at fault itself: it makes the replica `suspected` until the
    next check. `faults` in a row of several callers make it a last resort until `last_until_s`, in seconds. So no
    caller, and no number of them, takes a replica from others that passes its check.
    """

    tripped: bool = False
    suspected: bool = False
    faults: int = 0
    caller: str | None = None  # of the first fault in the row
    several: bool = False  # whether others met faults in the same row
    last_until_s: float = -inf

    @property
    def admits(self) -> bool:
        """Whether the replica gets requests."""
        return not self.tripped

    def is_last_resort(self, now: float) -> bool:
        """Whether requests are given to others first, where another has room."""
        return self.suspected or now < self.last_until_s

    def on_success(self) -> "CircuitBreaker":
        """Return the breaker after a request that was answered in full."""
        return CircuitBreaker(tripped=self.tripped)

    def on_fault(self, caller: str, now: float) -> "CircuitBreaker":
        """Return the breaker after a request of a caller that failed, by whoever's fault. `now` in seconds."""
        faults = self.faults + 1
        several = self.several or (self.caller is not None and caller != self.caller)
        last_until_s = now + LAST_RESORT_S if several and faults >= BREAKER_FAULTS else self.last_until_s
        first = caller if self.caller is None else self.caller
        return CircuitBreaker(self.tripped, True, faults, first, several, last_until_s)

    def on_check(self, *, passed: bool) -> "CircuitBreaker":
        """Return the breaker after a check of the replica, which alone opens and closes it."""
        if not passed:
            return CircuitBreaker(tripped=True)
        return msgspec.structs.replace(self, tripped=False, suspected=False)


def hash_prefix(prompt: bytes, block_bytes: int) -> list[bytes]:
    """Return one hash for each whole block of a prompt, each over everything up to the block's end.

    A block that is not full cannot be in an engine's cache. At most `MAX_PREFIX_BLOCKS`.
    """
    blocks = min(len(prompt) // block_bytes, MAX_PREFIX_BLOCKS)
    running, found = blake2b(digest_size=8), []
    for block in range(blocks):
        running.update(prompt[block * block_bytes : (block + 1) * block_bytes])
        found.append(running.digest())
    return found


class PrefixTable:
    """Table of which replica was sent which prefix blocks; the least lately used are forgotten beyond `max_blocks`."""

    def __init__(self, max_blocks: int = MAX_TABLE_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._held: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def count_blocks(self, replica: str, blocks: Sequence[bytes]) -> int:
        """Return how many of the prompt's blocks, from its beginning on, the replica holds."""
        return next((n for n, block in enumerate(blocks) if (replica, block) not in self._held), len(blocks))

    def add(self, replica: str, blocks: Sequence[bytes]) -> None:
        """Record that the replica computes these blocks now. The first blocks are forgotten last."""
        for block in reversed(blocks):
            self._held[replica, block] = None
            self._held.move_to_end((replica, block))
        while len(self._held) > self._max_blocks:
            self._held.popitem(last=False)

    def forget(self, replica: str) -> None:
        """Forget a replica that was started anew: its cache is empty."""
        self._held = OrderedDict((key, None) for key in self._held if key[0] != replica)
