"""Selection of the cut: fewest coded bytes among cuts whose head is within the limits on time and share of work.

Rule: limits that nothing meets are answered with the nearest values and which flag to relax, never with a bundle that
breaks them. What was measured before stays in the cache and is shown.
"""

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from models.forge.data.types import ForgeError
from models.forge.partition.cost import CutCost
from models.forge.spec import ForgeSpec

HEAD_SHARE = 0.25  # largest share of multiply-accumulates on the device, unless --head-share or --target-ms is given
_LOSSY = 0.05  # of accuracy (a share of RMSE) lost by codes without training: the cut carries what these cannot


class BundleCost(NamedTuple):
    """Cost of the finished bundle: bytes of codes and of a sealed question, median ms, loss as a share, leakage 0..1.

    `device_share`: multiply-accumulates of the device's whole graph, as a share of the given model's.

    The loss is taken on the calibration part: limits choose, and the held-out part chooses nothing.
    """

    payload_bytes: int
    question_bytes: int
    head_ms: float
    loss: float
    leakage: float
    device_share: float = 0.0


class UnmetLimit(NamedTuple):
    """A limit that is not met: its flag, the requested value, the nearest value reached."""

    flag: str
    asked: float
    nearest: float

    def describe(self) -> str:
        """One line for an error message."""
        return f"{self.flag} {self.asked:g} is not met: the nearest is {self.nearest:.4g}"


class UnmetLimitsError(ForgeError):
    """No cut meets the limits of the specification. `rows`: what was measured of all cuts before."""

    def __init__(self, line: str, rows: Sequence[CutCost]) -> None:
        super().__init__(line)
        self.rows = tuple(rows)


def rank_cuts(rows: Sequence[CutCost], wish: ForgeSpec) -> tuple[CutCost, ...]:
    """Cuts worth training, the best first: fewest coded bytes, after them those whose codes lose too much.

    Raises ForgeError if the limits leave none.
    """
    if not rows:
        raise ForgeError("no cut was measured; give one with --cut, or a model with at least two layers")
    quick = _filter_quick(rows, wish)
    most = largest_head_share(wish)
    light = [row for row in quick if row.cut.share <= most] or [min(quick, key=lambda row: row.cut.share)]
    return tuple(sorted(light, key=lambda row: (row.lost > _LOSSY, row.coded_bytes, row.head_us, row.cut.name)))


def largest_head_share(wish: ForgeSpec) -> float:
    """Largest share of the model's multiply-accumulates on the device: with a limit on time it does not matter."""
    return 1.0 if wish.target_ms is not None else wish.head_share or HEAD_SHARE


def _filter_quick(rows: Sequence[CutCost], wish: ForgeSpec) -> list[CutCost]:
    if wish.target_ms is None:
        return list(rows)
    quick = [row for row in rows if row.head_us <= wish.target_ms * 1e3]
    if not quick:
        nearest = min(rows, key=lambda row: row.head_us)
        raise UnmetLimitsError(
            f"--target-ms {wish.target_ms:g}: the quickest head, up to {nearest.cut.name}, takes "
            f"{nearest.head_us / 1e3:.3g} ms; ask for that, or cut a smaller model",
            rows,
        )
    return quick


def find_cut_index(name: str, cuts: Sequence[str]) -> int:
    """Index of the cut called `name`. Raises ForgeError with the likeliest names if there is none."""
    if name in cuts:
        return list(cuts).index(name)
    near = difflib.get_close_matches(name, cuts, 3, 0.3) or list(cuts)[:3]
    raise ForgeError(f"--cut {name}: no such cut; there are {len(cuts)}, such as {', '.join(near)}")


def find_unmet_limits(wish: ForgeSpec, shipped: BundleCost) -> tuple[UnmetLimit, ...]:
    """The limits of the specification that the finished bundle breaks."""
    limits = (
        ("--head-share", wish.head_share, shipped.device_share),
        ("--max-bytes", wish.max_bytes, float(shipped.payload_bytes)),
        ("--question-bytes", wish.question_bytes, float(shipped.question_bytes)),
        ("--target-ms", wish.target_ms, shipped.head_ms),
        ("--max-loss", wish.max_loss, shipped.loss),
        ("--max-leakage", wish.max_leakage, shipped.leakage),
    )
    return tuple(UnmetLimit(flag, asked, found) for flag, asked, found in limits if asked is not None and found > asked)


def build_refusal(
    tried: Sequence[tuple[str, tuple[UnmetLimit, ...]]], rows: Sequence[CutCost] = ()
) -> UnmetLimitsError:
    """The error to raise if every cut that was tried breaks a limit: the nearest of them, and what to relax."""
    name, nearest = min(tried, key=lambda one: (len(one[1]), max(b.nearest / max(b.asked, 1e-9) for b in one[1])))
    lines = "; ".join(b.describe() for b in nearest)
    hint = f"relax {' and '.join(b.flag for b in nearest)}"
    more = "" if len(tried) > 1 else ", or let the forge try more cuts (--effort thorough, no --cut)"
    return UnmetLimitsError(f"cut {name}: {lines}; {hint}{more}", rows)
