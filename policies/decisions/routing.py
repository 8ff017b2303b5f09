"""Routing: which hubs may serve a question (hard filter), and in which order they are asked (ranking). Pure.

Rule: a hub or region that is not listed in the policy does not exist.

Rule: ranking orders and nothing else: what comes in comes out, no more and no less.
"""

from collections.abc import Mapping
from math import frexp

import msgspec

from policies.model.policy import Terms
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason, Denied


class HubSite(msgspec.Struct, frozen=True, gc=False):
    """A hub that a device knows. `price`: of one question, in millionths of the owner's currency."""

    name: str
    region: str
    price: int = 0


class AllowedHubs(msgspec.Struct, frozen=True):
    """Hubs that are allowed, at least one, in the order the policy lists them."""

    targets: tuple[HubSite, ...]


def filter_hubs(terms: Terms, hubs: tuple[HubSite, ...]) -> AllowedHubs | Denied:
    """Filter the `hubs` known to this device by the terms.

    Denied (hub) if none is listed, denied (region) if those listed stand in no allowed region.
    """
    try:
        if type(terms.hubs) is not tuple or type(terms.regions) is not tuple:  # `in` also finds parts of a string
            raise TypeError
        listed = [hub for hub in hubs if hub.name in terms.hubs]
        targets = [hub for hub in listed if hub.region in terms.regions]
        if targets:
            return AllowedHubs(tuple(sorted(targets, key=lambda hub: terms.hubs.index(hub.name))))
        if listed:
            return Denied(
                DecisionReason.DENIED_REGION, f"region {listed[0].region!r} is not listed in locality.regions"
            )
        return Denied(DecisionReason.DENIED_HUB, "no known hub is listed in locality.hubs")
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"locality: {type(error).__name__}")


_FINEST_S = 0.001


class HubView(msgspec.Struct, frozen=True, gc=False):
    """What a device knows of one hub. `latency_s`: from sending a question to its receipt; None = not known lately."""

    reachable: bool
    latency_s: float | None = None


UNSEEN_HUB = HubView(reachable=False)


def rank_hubs(targets: tuple[HubSite, ...], views: Mapping[str, HubView], patience_s: float) -> tuple[HubSite, ...]:
    """Rank hubs: those that can be reached come first.

    Of these, whoever answers within `patience_s`, the cheapest first; then the quickest. A hub that was not measured
    lately counts as quick enough, so that it is tried. Times within a factor of two count as equal, so that noise moves
    no fleet to and fro. Equal hubs keep their order, which is the policy's.
    """
    if len(targets) < 2:
        return targets
    return tuple(sorted(targets, key=lambda hub: _rank_key(hub, views.get(hub.name, UNSEEN_HUB), patience_s)))


def _rank_key(hub: HubSite, view: HubView, patience_s: float) -> tuple[bool, bool, int, int]:
    latency_s = view.latency_s
    late = latency_s is not None and not latency_s <= patience_s  # true for NaN
    steps = 0 if latency_s is None else _latency_steps(latency_s)
    return not view.reachable, late, 0 if late else hub.price, steps


def _latency_steps(latency_s: float) -> int:
    """Doublings of the finest latency worth distinguishing."""
    return frexp(latency_s / _FINEST_S)[1] if latency_s >= _FINEST_S else 0
