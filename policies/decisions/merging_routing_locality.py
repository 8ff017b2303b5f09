"""Which hubs may serve this. A hard filter before any ranking: a hub or region that is not listed does not exist."""

import msgspec

from policies.model.policy import Terms
from policies.model.reasons import FAULTS, Denied, Why


class HubSite(msgspec.Struct, frozen=True, gc=False):
    """`price`: of one question, in millionths of whatever the owner counts in."""

    name: str
    region: str
    price: int = 0


class Allowed(msgspec.Struct, frozen=True):
    """At least one hub, in the order the policy lists them."""

    targets: tuple[HubSite, ...]


def decide(terms: Terms, hubs: tuple[HubSite, ...]) -> Allowed | Denied:
    """The `hubs` known to this device that the terms allow."""
    try:
        if type(terms.hubs) is not tuple or type(terms.regions) is not tuple:  # `in` also finds parts of a string
            raise TypeError
        listed = [hub for hub in hubs if hub.name in terms.hubs]
        targets = [hub for hub in listed if hub.region in terms.regions]
        if targets:
            return Allowed(tuple(sorted(targets, key=lambda hub: terms.hubs.index(hub.name))))
        if listed:
            return Denied(Why.DENIED_REGION, f"region {listed[0].region!r} is not listed in locality.regions")
        return Denied(Why.DENIED_HUB, "no known hub is listed in locality.hubs")
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"locality: {type(error).__name__}")
