"""What is left of verdicts when they are gone: how many of each label on each day, rare ones kept back. Pure.

Rule: a count below `K` is never shown, nor one from which it could be worked out: while all that is kept back of a
model and day comes to less than `K`, the smallest that would be shown is kept back too. A day is shown when it is over,
so that nobody can watch a count pass `K`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

K = 10


class Tally(msgspec.Struct, frozen=True, order=True):
    """`day`: days since 1970, UTC; `model`: `name@version`; `label`: the verdict's class."""

    day: int
    model: str
    label: int
    count: int


def shown(counts: Mapping[int, int], k: int = K) -> dict[int, int]:
    """By label, of one model and day. Shown again it stays as it is."""
    kept = {label: count for label, count in counts.items() if count >= k}
    hidden = sum(counts.values()) - sum(kept.values())
    if kept and 0 < hidden < k:
        del kept[min(kept, key=lambda label: (kept[label], label))]
    return kept


def published(tallies: Iterable[Tally], today: int, k: int = K) -> list[Tally]:
    """Of all days before `today`, in order."""
    groups: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for each in tallies:
        if each.day < today:
            groups[each.day, each.model][each.label] = each.count
    found = [Tally(*of, *pair) for of, counts in groups.items() for pair in shown(counts, k).items()]
    return sorted(found)
