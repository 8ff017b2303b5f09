"""Who is told of a new version when: which devices a rollout is for, in which order, and how many in each wave.

Law: pure, and the same answer on every hub. The order is that of SHA-256(salt | id), salted with the rollout's id so
that it is not always the same devices that go first; named lab devices stand before all. The first wave never exceeds
one device or 1 % of the fleet. A device without an id is in no wave, and a wave without devices is none.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import NamedTuple

from policies.rollout.merging_plan_rollout import RulesError, Step

SMALL_FLEET = 100  # devices; below, a wave of 1 % would be none
SMALL_STEPS = (Step(devices=1), Step(percent=Fraction(25)), Step(percent=Fraction(100)))
STEPS = tuple(Step(percent=Fraction(percent)) for percent in (1, 10, 50, 100))
FIRST_PERCENT = 1  # of the fleet, at most, in the first wave
_KEYS = ("class", "region", "tenant", "device")


class Member(NamedTuple):
    """What a selector may ask of a device."""

    device: str
    device_class: str = ""
    region: str = ""
    tenant: str = ""

    def fact(self, key: str) -> str:
        return self[(1, 2, 3, 0)[_KEYS.index(key)]]


class Selector(NamedTuple):
    """Which devices a rollout is for: one allowed set for each key, all must hold; () = every device."""

    wanted: tuple[tuple[str, frozenset[str]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """`class=camera,region=eu|us`, or `all`. RulesError if it is neither: what is not understood matches nobody."""
        if text.strip() == "all":
            return cls()
        wanted = tuple(_wanted(part) for part in text.split(","))
        if len({key for key, _ in wanted}) < len(wanted):
            raise RulesError(f"to = {text!r}: name each key once, and several values as key=a|b")
        return cls(wanted)

    def matches(self, member: Member) -> bool:
        return all(member.fact(key) in values for key, values in self.wanted)

    def pick(self, members: Iterable[Member]) -> tuple[str, ...]:
        """Ids of those it is for; a device without an id is not."""
        return tuple(member.device for member in members if member.device and self.matches(member))


def _wanted(part: str) -> tuple[str, frozenset[str]]:
    key, equals, values = (piece.strip() for piece in part.partition("="))
    allowed = frozenset(value.strip() for value in values.split("|"))
    if key not in _KEYS or not equals or "" in allowed:
        raise RulesError(f"to = {part.strip()!r}: write {'=..., '.join(_KEYS)}=..., joined by commas, or all")
    return key, allowed


def default_steps(fleet: int) -> tuple[Step, ...]:
    """One device, a quarter, all, in a small fleet; 1, 10, 50, 100 % in others."""
    return SMALL_STEPS if fleet < SMALL_FLEET else STEPS


def bucket(salt: str, device: str) -> bytes:
    """The place of a device in the order: as good as random, and different for every salt."""
    return sha256(f"{salt}|{device}".encode()).digest()


def ordered(salt: str, devices: Iterable[str], lab: Iterable[str] = ()) -> tuple[str, ...]:
    """Every device once: the lab's first, each group by its buckets."""
    first = frozenset(lab)
    return tuple(sorted({device for device in devices if device}, key=lambda d: (d not in first, bucket(salt, d))))


def sizes(fleet: int, steps: Sequence[Step]) -> tuple[int, ...]:
    """How many devices each wave adds; steps that would add none are left out. RulesError for a first one too large."""
    reached = [min(fleet, step.of(fleet)) for step in steps]
    most = max(1, fleet * FIRST_PERCENT // 100)
    if reached and steps[0].percent == FIRST_PERCENT:
        reached[0] = min(fleet, most)  # rounded down, and yet one device
    if fleet and reached and reached[0] > most:
        raise RulesError(f"waves: the first would be {reached[0]} of {fleet} devices, at most {most}")
    grown = (now - before for before, now in zip([0, *reached], reached, strict=False))
    return tuple(size for size in grown if size > 0)


def waves(order: Sequence[str], steps: Sequence[Step]) -> tuple[tuple[str, ...], ...]:
    """`ordered` devices, cut at the steps. () for a fleet of nobody."""
    cut: list[tuple[str, ...]] = []
    begin = 0
    for size in sizes(len(order), steps):
        cut.append(tuple(order[begin : begin + size]))
        begin += size
    return tuple(cut)


def controls(order: Sequence[str], reached: int, size: int) -> tuple[str, ...]:
    """A cohort of at most `size` that keeps what it runs while `reached` devices of the order were told: its far end.

    Those are the last to be told, so that one cohort serves as long as possible.
    """
    return tuple(order[max(reached, len(order) - size) :])
