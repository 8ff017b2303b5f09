"""What the core knows of the other hubs: how many share its tenants' rates, what they changed, if it hears of it. Pure.

Rule: a hub that does not hear of them takes nothing new. What it has accepted it still owes.
"""

from collections.abc import Iterable

from cloud_hub.core.admission import AdmissionControl
from cloud_hub.core.commands import Command, Tombstone
from cloud_hub.core.context import CoreContext


class RegionNews:
    """Events of the other hubs. A hub that is its region's only one has none, and is always open."""

    def __init__(self, context: CoreContext, admission: AdmissionControl) -> None:
        self._context = context
        self._admission = admission

    def is_closed(self, now: float) -> bool:
        """Whether new work is refused because changes may have gone unheard."""
        return now > self._admission.open_until_s

    def on_caught_up(self, open_until_s: float, now: float) -> list[Command]:
        """Everything that others changed was taken in: new work is taken until then, unless this is called again."""
        del now
        self._admission.open_until_s = open_until_s
        return []

    def on_hubs(self, hubs: int, now: float) -> list[Command]:
        """So many hubs of the region are alive, this one among them: each has its share of every tenant's rate."""
        self._admission.divide_rates(hubs, now)
        return []

    def on_erased_elsewhere(self, stones: Iterable[Tombstone], now: float) -> list[Command]:
        """Another hub erased subjects: what is remembered of their devices is read from the store again."""
        del now
        for stone in stones:
            self._context.rules.remember_erasure(stone)
            self._context.memory.forget_device_rows(stone.device)
        return []
