"""Which cut: the one with the fewest coded bytes whose head is within the time and the share of work allowed.

Law: a wish that nothing meets is answered with what is nearest and which flag to relax, never with a bundle that breaks
it. What was measured before stays in the cache and is shown.
"""

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from models.forge.data.types import ForgeError
from models.forge.partition.cost import HeadCost
from models.forge.spec import Wish

HEAD_SHARE = 0.25  # of the multiply-accumulates: a device that does more of the work than this has little to ask for


class Shipped(NamedTuple):
    """What the finished bundle costs: bytes of codes, milliseconds at the median, loss as a share, leakage 0..1."""

    payload_bytes: int
    head_ms: float
    loss: float
    leakage: float


class Broken(NamedTuple):
    """A constraint that is not met: its flag, what was asked, what is the nearest."""

    flag: str
    asked: float
    nearest: float

    def line(self) -> str:
        return f"{self.flag} {self.asked:g} is not met: the nearest is {self.nearest:.4g}"


class UnmetError(ForgeError):
    """No cut meets the wish. `rows`: what was measured of all of them before."""

    def __init__(self, line: str, rows: Sequence[HeadCost]) -> None:
        super().__init__(line)
        self.rows = tuple(rows)


def rank(rows: Sequence[HeadCost], wish: Wish) -> tuple[HeadCost, ...]:
    """Cuts worth teaching, the best first. ForgeError if the wish leaves none."""
    if not rows:
        raise ForgeError("no cut was measured; give one with --cut, or a model with at least two layers")
    quick = _quick_enough(rows, wish)
    light = [row for row in quick if row.cut.share <= HEAD_SHARE] or [min(quick, key=lambda row: row.cut.share)]
    if wish.target_ms is not None:
        light = quick  # the time that was asked for is the measure, not the share
    return tuple(sorted(light, key=lambda row: (row.coded_bytes, row.head_us, row.cut.name)))


def _quick_enough(rows: Sequence[HeadCost], wish: Wish) -> list[HeadCost]:
    if wish.target_ms is None:
        return list(rows)
    quick = [row for row in rows if row.head_us <= wish.target_ms * 1e3]
    if not quick:
        nearest = min(rows, key=lambda row: row.head_us)
        raise UnmetError(
            f"--target-ms {wish.target_ms:g}: the quickest head, up to {nearest.cut.name}, takes "
            f"{nearest.head_us / 1e3:.3g} ms; ask for that, or cut a smaller model",
            rows,
        )
    return quick


def named(name: str, cuts: Sequence[str]) -> int:
    """Place of the cut called `name`. ForgeError with the likeliest names if there is none."""
    if name in cuts:
        return list(cuts).index(name)
    near = difflib.get_close_matches(name, cuts, 3, 0.3) or list(cuts)[:3]
    raise ForgeError(f"--cut {name}: no such cut; there are {len(cuts)}, such as {', '.join(near)}")


def broken(wish: Wish, shipped: Shipped) -> tuple[Broken, ...]:
    """Which limits of the wish the finished bundle breaks."""
    limits = (
        ("--max-bytes", wish.max_bytes, float(shipped.payload_bytes)),
        ("--target-ms", wish.target_ms, shipped.head_ms),
        ("--max-loss", wish.max_loss, shipped.loss),
        ("--max-leakage", wish.max_leakage, shipped.leakage),
    )
    return tuple(Broken(flag, asked, found) for flag, asked, found in limits if asked is not None and found > asked)


def refusal(tried: Sequence[tuple[str, tuple[Broken, ...]]], rows: Sequence[HeadCost] = ()) -> UnmetError:
    """What to say if every cut that was tried breaks the wish: the nearest of them, and what to relax."""
    name, nearest = min(tried, key=lambda one: (len(one[1]), max(b.nearest / max(b.asked, 1e-9) for b in one[1])))
    lines = "; ".join(b.line() for b in nearest)
    hint = f"relax {' and '.join(b.flag for b in nearest)}"
    more = "" if len(tried) > 1 else ", or let the forge try more cuts (--effort thorough, no --cut)"
    return UnmetError(f"cut {name}: {lines}; {hint}{more}", rows)
