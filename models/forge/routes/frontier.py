"""Frontier of code paths: bytes of a question against what of the hub's knowledge it keeps, and the path that ships.

Rule: every figure is taken on calibration samples, with one edge and one ranking of the samples for all paths; the
held-out part chooses nothing. A path of the sample itself ships only where its sensitivity label was stated.
"""

import math
from collections.abc import Callable, Sequence

import msgspec

from models.forge.data.types import ForgeError
from models.forge.spec import ForgeSpec
from models.forge.training.code_path import Route

_ALIKE = 0.01  # share of the gain that is within the noise of the calibration part


class RoutePoint(msgspec.Struct, frozen=True):
    """One code path on the frontier.

    - `payload_bytes`: of codes; `sealed_bytes`: of a whole question as it travels.
    - `quality`: of the pair at the asked share (accuracy, or RMSE), beside `edge` alone and `lossless` features;
      `recovered`: share of the gain of lossless features, NaN where they gain nothing; `recovered_low`: less one
      standard error, NaN where there is none.
    - `lost_asked`: what codes lose against lossless features on asked samples, `lost`: on all of them; shares of
      accuracy, or of an RMSE. `leakage`: upper bound of a quick reconstruction attack, 0..1, None if not attacked.
    - `label`: sensitivity label of the codes. `chosen`: it ships; else `reason` says why not.
    """

    name: str
    route: Route
    label: str
    payload_bytes: int
    sealed_bytes: int
    quality: float
    edge: float
    lossless: float
    recovered: float
    lost_asked: float
    lost: float
    device_share: float
    samples: int
    leakage: float | None = None
    chosen: bool = False
    reason: str = ""
    recovered_low: float = math.nan


class UnmetPathError(ForgeError):
    """No code path meets the limits of the specification. `points`: all that were tried."""

    def __init__(self, line: str, points: Sequence[RoutePoint]) -> None:
        super().__init__(line)
        self.points = tuple(points)


def find_obstacle(point: RoutePoint, wish: ForgeSpec) -> str:
    """Why a path may not ship under these limits: the first limit that it breaks; "" if it may."""
    return next((line for _, line, broken in _list_limits(point, wish) if broken), "")


def _list_limits(point: RoutePoint, wish: ForgeSpec) -> tuple[tuple[str, str, bool], ...]:
    """Flag, what is wrong, and whether it is."""
    return (
        ("--sample-level", "the sample itself: --sample-level must state its label", _lacks_label(point, wish)),
        (
            "--head-share",
            f"{point.device_share:.0%} of the model's work",
            _exceeds(point.device_share, wish.head_share),
        ),
        ("--max-bytes", f"{point.payload_bytes} B of codes", _exceeds(point.payload_bytes, wish.max_bytes)),
        ("--question-bytes", f"{point.sealed_bytes} B sealed", _exceeds(point.sealed_bytes, wish.question_bytes)),
        ("--max-loss", f"loses {point.lost:.4g}", _exceeds(point.lost, wish.max_loss)),
        ("--max-leakage", f"leaks {point.leakage or 0:.2f}", _exceeds(point.leakage, wish.max_leakage)),
        ("--leakage-aware", "not taught to leak less", wish.leakage_aware > 0 and not _is_taught(point)),
    )


def _lacks_label(point: RoutePoint, wish: ForgeSpec) -> bool:
    return point.route is Route.SAMPLE and not wish.sample_level


def _is_taught(point: RoutePoint) -> bool:
    """Whether the codes themselves were taught, with the edge or after it, and not fitted alone."""
    return point.route is Route.LEARNED and point.name.startswith(("learned-", "taught-"))


def _exceeds(found: float | None, limit: float | None) -> bool:
    return found is not None and limit is not None and found > limit


def is_enough(point: RoutePoint, keep: float) -> bool:
    """Whether a path is shown to keep this share of what lossless features gain; also where these gain nothing.

    Shown: less one standard error. Of many paths the one that just seems to keep enough is the one that chance favours.
    """
    shown = point.recovered if math.isnan(point.recovered_low) else point.recovered_low
    return math.isnan(shown) or shown >= keep


def choose_point(points: Sequence[RoutePoint], wish: ForgeSpec) -> RoutePoint:
    """The path that ships: within all limits, the fewest bytes that keep the wished share of the gain.

    A path that the wish names is taken if it is within the limits. With `max_loss` the fewest bytes that meet it. If
    none keeps so much, the one that keeps most; among equals the one
    of fewer bytes. Raises UnmetPathError with the nearest path if the limits leave none.
    """
    named = [point for point in points if wish.path in ("", point.name)]
    if not named:
        names = ", ".join(point.name for point in points)
        raise UnmetPathError(f"--path {wish.path}: no such code path; there are {names}", points)
    allowed = [point for point in named if not find_obstacle(point, wish)]
    if not allowed:
        raise UnmetPathError(_describe_refusal(named, wish), points)
    if wish.max_loss is not None:
        return min(allowed, key=_cost)
    enough = [point for point in allowed if is_enough(point, wish.keep)]
    if enough:
        return min(enough, key=_cost)
    most = max(point.recovered for point in allowed)
    return min((point for point in allowed if point.recovered >= most - _ALIKE), key=_cost)


def _cost(point: RoutePoint) -> tuple[int, float, int, str]:
    """Order of paths of like quality: bytes as they travel, then the least leakage, then bytes of codes."""
    leaked = 1.0 if point.leakage is None else point.leakage  # what was not attacked may leak all
    return point.sealed_bytes, leaked, point.payload_bytes, point.name


def _describe_refusal(points: Sequence[RoutePoint], wish: ForgeSpec) -> str:
    broken = {p.name: [flag for flag, _, bad in _list_limits(p, wish) if bad] for p in points}
    nearest = min(points, key=lambda p: (len(broken[p.name]), _worst_excess(p, wish), p.sealed_bytes))
    lines = "; ".join(f"{flag} {_wished(flag, wish)}: {line}" for flag, line, bad in _list_limits(nearest, wish) if bad)
    return f"no code path of {len(points)} meets the limits; nearest is {nearest.name}: {lines}; relax " + " and ".join(
        broken[nearest.name]
    )


def _worst_excess(point: RoutePoint, wish: ForgeSpec) -> float:
    """The largest of a path's figures as a multiple of their limits."""
    pairs = (
        (point.device_share, wish.head_share),
        (point.payload_bytes, wish.max_bytes),
        (point.sealed_bytes, wish.question_bytes),
        (point.lost, wish.max_loss),
        (point.leakage, wish.max_leakage),
    )
    return max(
        (found / max(limit, 1e-9) for found, limit in pairs if found is not None and limit is not None), default=0
    )


def _wished(flag: str, wish: ForgeSpec) -> str:
    value = getattr(wish, flag.removeprefix("--").replace("-", "_"))
    return "is not given" if value in (None, "") else f"{value:g}"


def mark_chosen(points: Sequence[RoutePoint], chosen: str, wish: ForgeSpec) -> tuple[RoutePoint, ...]:
    """The points with the chosen one marked, and the reason of every other."""
    found = []
    best = next(point for point in points if point.name == chosen)
    for point in points:
        why = "" if point.name == chosen else find_obstacle(point, wish) or _compare_points(point, best, wish.keep)
        found.append(msgspec.structs.replace(point, chosen=point.name == chosen, reason=why))
    return tuple(found)


def _compare_points(point: RoutePoint, best: RoutePoint, keep: float) -> str:
    if not is_enough(point, keep) and not point.recovered > best.recovered:
        return f"keeps {point.recovered:.0%} of the gain"
    return f"takes {point.sealed_bytes} B, sealed" if point.sealed_bytes > best.sealed_bytes else "no better"


def best_trades(points: Sequence[RoutePoint]) -> tuple[tuple[str, RoutePoint], ...]:
    """At most three paths worth a look, each with what is best about it: fewest bytes, most kept, least leakage."""
    rules: tuple[tuple[str, Callable[[RoutePoint], tuple[float, ...]]], ...] = (
        ("fewest bytes", lambda p: (p.sealed_bytes, -kept_share(p))),
        ("keeps most", lambda p: (-kept_share(p), p.sealed_bytes)),
        ("leaks least", lambda p: (2.0 if p.leakage is None else p.leakage, p.sealed_bytes)),
    )
    found: dict[str, tuple[str, RoutePoint]] = {}
    for name, rule in rules:
        best = min(points, key=rule)
        found[best.name] = (f"{found[best.name][0]}, {name}" if best.name in found else name, best)
    return tuple(found.values())


def kept_share(point: RoutePoint) -> float:
    """Share that a path keeps of what lossless features gain; 0 where they gain nothing."""
    return 0.0 if math.isnan(point.recovered) else point.recovered
