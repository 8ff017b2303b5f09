"""Best trades of a frontier of code paths, each with the flags of `skerry models forge` that would take it.

Rule: flags are tried on the frontier before they are named: with them the forge would choose that path among those that
it measured.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from models.forge.routes.frontier import RoutePoint, UnmetPathError, best_trades, choose_point, find_obstacle
from models.forge.spec import ForgeSpec
from models.forge.training.code_path import Route

_ANY_LEVEL = "P2"  # stands for the label that only the owner of the samples can state
_PLACES = 4


class RouteTrade(NamedTuple):
    """One path worth a look. `best`: what is best about it; `flags`: what would take it, "" if it is the one taken."""

    best: str
    point: RoutePoint
    flags: str


def list_trades(points: Sequence[RoutePoint], wish: ForgeSpec) -> tuple[RouteTrade, ...]:
    """At most three trades within the limits: the fewest bytes, the most kept of the gain, the least leakage.

    The sample itself takes part whether or not its label was stated.
    """
    labelled = replace(wish, sample_level=wish.sample_level or _ANY_LEVEL)
    allowed = [point for point in points if not find_obstacle(point, labelled)]
    if not allowed:
        return ()
    return tuple(RouteTrade(best, point, find_flags(point, points, wish)) for best, point in best_trades(allowed))


def describe_trade(trade: RouteTrade) -> dict[str, Any]:
    """A trade as plain values, for the report's JSON: what is best about it, the path's name, the flags."""
    return {"best": trade.best, "name": trade.point.name, "flags": trade.flags}


def find_flags(point: RoutePoint, points: Sequence[RoutePoint], wish: ForgeSpec) -> str:
    """Flags that make the forge take this path of these, "" if it is taken already.

    One limit where that singles the path out, else its name.
    """
    if point.chosen:
        return ""
    changes: dict[str, Any] = {}
    for changes in _list_changes(point, wish):
        try:
            found = choose_point(points, replace(wish, **{"path": "", **changes}))
        except UnmetPathError:
            continue
        if found.name == point.name:
            break
    return " ".join(f"--{name.replace('_', '-')} {_format_limit(name, value)}" for name, value in changes.items())


def _list_changes(point: RoutePoint, wish: ForgeSpec) -> Iterator[dict[str, Any]]:
    """Changes of a specification that may single a path out, the simplest first."""
    label = {} if point.route is not Route.SAMPLE or wish.sample_level else {"sample_level": _ANY_LEVEL}
    limits: dict[str, Any] = {
        "question_bytes": point.sealed_bytes,
        "max_bytes": point.payload_bytes,
        "max_loss": min(1.0, max(0.0, _round_up(point.lost))),
    }
    if point.leakage is not None:
        limits["max_leakage"] = min(1.0, _round_up(point.leakage))
    if label:
        yield label
    yield label | {"keep": 1.0}
    for name, value in limits.items():
        yield label | {name: value}
    yield label | {"path": point.name}


def _round_up(value: float) -> float:
    """The next value of four places, so that a limit written with them is met by what it was taken from."""
    return float(math.ceil(value * 10**_PLACES - 1e-9) / 10**_PLACES)


def _format_limit(name: str, value: float | str) -> str:
    return "LEVEL" if name == "sample_level" else value if isinstance(value, str) else f"{value:g}"
