"""What a device has spent, as its core knows it: charged before anything leaves, joined with what the hub remembers.

Law: nothing that was on record is ever taken off, by no restart, no lost ledger and no older copy of one. Pure.
"""

from collections.abc import Iterable, Mapping

from policies.decisions import budget
from policies.decisions.budget import SUBJECT, Charge, Spend
from policies.model.policy import Coin
from wire.protocol.messages import Totals


class Purse:
    """`mirrored`: the hub has told what it remembers of us since we started."""

    __slots__ = ("_opened", "mirrored", "spend")

    def __init__(self) -> None:
        self.spend = Spend()
        self._opened = Spend()
        self.mirrored = True

    def open(self, spend: Spend, *, mirrored: bool = True) -> None:
        """As the database has it. `mirrored` False: nothing that it holds may be sent before the hub has spoken."""
        self.spend = self._opened = spend
        self.mirrored = mirrored

    def take(self, spend: Spend) -> None:
        """So much is spent with what was just charged."""
        self.spend = spend

    def undo(self, charges: Iterable[Charge]) -> None:
        """They were never put on record."""
        self.spend = budget.without(self.spend, charges)

    def overspent(self, charges: Iterable[Charge]) -> bool:
        """Whether an account that was charged holds more than its limit by now: the hub remembered more than we did."""
        totals = self.spend.totals
        return any(totals.get((each.key, each.period), 0) > each.limit for each in charges)

    def overdrawn(self, spend: Spend) -> None:
        """The database holds more than we knew."""
        self.spend = Spend(
            max(self.spend.day, spend.day), _greater(self.spend.totals, spend.totals), known=self.spend.known
        )

    def mirror(self, told: Totals, *, complete: bool) -> Totals:
        """Join what the hub remembers; the totals that are higher by it. What we charged since the start comes on top.

        Until a mirror was complete a lost ledger stays exhausted.
        """
        totals, raised = dict(self.spend.totals), []
        for key, period, amount in told:
            if self.mirrored and key.endswith(SUBJECT):
                continue  # which subject's it was is ours to know, unless our ledger is gone
            held = totals.get((key, period), 0)
            since = 0 if self.mirrored else held - self._opened.totals.get((key, period), 0)
            if amount + since > held:
                totals[key, period] = amount + since
                raised.append((key, period, amount + since))
        day = max((period for key, period, _ in told if key == Coin.BYTES), default=0)
        self.spend = Spend(max(self.spend.day, day), totals, known=self.spend.known or complete)
        self.mirrored = self.mirrored or complete
        return tuple(raised)


def _greater(held: Mapping[tuple[str, int], int], told: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    return {at: max(held.get(at, 0), told.get(at, 0)) for at in (*held, *told)}
