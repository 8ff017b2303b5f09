"""What a device may do right now with a sample of one data class, and at what charge.

Law: whatever a decision depends on is told here, and a change forgets all that was worked out before. Pure.

What a device has spent, as its core knows it: charged before anything leaves, joined with what the hub remembers.

Law: nothing that was on record is ever taken off, by no restart, no lost ledger and no older copy of one. Pure.

What of a report may leave under the policy of now: sums over samples are fields with a label, like any other. Pure.

Law: a class of samples whose terms do not list the field is not counted in it; where the base does not list it, nothing
of it leaves. The state of an install is no sample's and is always said.
"""

from collections.abc import Iterable, Mapping

import msgspec

from edge_agent.core.commands import KEEP_DAYS, Labels, Setup
from policies.decisions import budget
from policies.decisions.budget import SUBJECT, Charge, Cost, Spend
from policies.decisions.egress import QUALITY, SIGNALS, level_of, reports
from policies.decisions.leakage import Clearance, Cleared
from policies.decisions.permit import Permit, Price, judge
from policies.model.context import Context
from policies.model.policy import Coin, Policy, Terms
from policies.model.reasons import Denied, Why
from policies.model.terms import terms
from wire.protocol import codec
from wire.protocol.messages import Escalation, Totals
from wire.protocol.rollout import InstallReport, Quality, Signals


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


_MOST = 64  # data classes are few; a caller that invents them may not fill our memory
_PAID = Cost(0)  # of what was charged when it was stored


class Ruled(msgspec.Struct, frozen=True):
    """`terms` of this moment; `cleared`: the leakage found under them; `denied`: nothing leaves, whatever they say."""

    terms: Terms
    cleared: Cleared
    labels: Labels
    denied: Denied | None = None


class Ruling:
    """Of one device: its policy in its surroundings, and what it has spent."""

    __slots__ = (
        "_around", "_beside", "_calibrated", "_clearance", "_found", "_layers", "_level", "_padded_bytes", "_policy",
        "day", "notice", "purse", "setup",
    )  # fmt: skip

    def __init__(self, policy: Policy | None, setup: Setup) -> None:
        self.purse = Purse()
        self.day = 0
        self.notice = 0  # counter of the newest deny-all notice
        self._beside: Ruling | None = None
        self._calibrated: float | None = None
        self._policy = policy
        self._around = Context("")
        self._found: dict[str, Ruled | Denied] = {}
        self.model(setup)

    @property
    def policy(self) -> Policy | None:
        return self._policy

    def advance_day(self, day: int) -> None:
        """Hub time's day. It never goes back."""
        self.day = max(self.day, day)

    def resume(self, spend: Spend, day: int) -> None:
        """Be the device that has spent this, on that day."""
        self.purse.open(spend)
        self.day = day

    def committed(self) -> "Ruling":
        """What may be done with features of the committed model while another is on trial; else of the only one."""
        beside = self._beside
        if beside is None:
            return self
        beside.join(self.around, self.notice, self._policy)
        beside.purse, beside.day = self.purse, self.day
        return beside

    def on_trial(self, setup: Setup | None) -> None:
        """Another model than the one this speaks of is the committed one; None: no more."""
        self._beside = None if setup is None else Ruling(self._policy, setup)

    def join(self, around: Context, notice: int, policy: Policy | None) -> None:
        """The moment of another."""
        if policy is not self._policy:
            self.use(policy)
        if (around, notice) != (self._around, self.notice):
            self._around, self.notice = around, notice
            self._found.clear()

    @property
    def around(self) -> Context:
        """As last seen; of no data class."""
        return self._around

    @property
    def noticed(self) -> bool:
        """Whether a deny-all notice is in force: one that the policy does not clear."""
        return self.notice > (self._policy.clears_notice if self._policy else 0)

    def of(self, data_class: str) -> Ruled | Denied:
        """What holds now; the same until something changes."""
        found = self._found.get(data_class)
        if found is None:
            if len(self._found) >= _MOST:
                self._found.clear()
            found = self._found[data_class] = self._worked_out(data_class)
        return found

    def _worked_out(self, data_class: str) -> Ruled | Denied:
        context = msgspec.structs.replace(self._around, data_class=data_class, level=self._level)
        found = terms(self._policy, context)
        if isinstance(found, Denied):
            return found
        if self._calibrated is not None and self._calibrated < found.threshold:
            found = msgspec.structs.replace(found, threshold=self._calibrated)
        denied = Denied(Why.DENIED_NOTICE, f"notice {self.notice}: until a policy clears it") if self.noticed else None
        return Ruled(found, self._clearance.of(found), self._labels(found), denied)

    def _labels(self, found: Terms) -> Labels:
        keep = found.retention.keep_days if found.retention else KEEP_DAYS
        subject = bool(found.retention and found.retention.subject_field)
        return Labels("+".join(found.rules), keep, self._layers, self._padded_bytes, subject)

    @property
    def frame_bytes(self) -> int:
        """Of one question on the link: the same for every sample and every rule, so that its size tells nothing."""
        return self.setup.frame_bytes + self._padded_bytes - self.setup.padded_bytes

    def permit(self, data_class: str, *, audit: bool, subject: str = "") -> Permit | Denied:
        """Of a new question."""
        return self._judged(data_class, Cost(self.frame_bytes, audit=audit, subject=subject))

    def permit_again(self, data_class: str) -> Permit | Denied:
        """Of one that was charged when it was stored."""
        return self._judged(data_class, _PAID)

    def _judged(self, data_class: str, cost: Cost) -> Permit | Denied:
        ruled, setup = self.of(data_class), self.setup
        if isinstance(ruled, Denied) or ruled.denied:
            return ruled if isinstance(ruled, Denied) else ruled.denied or _NEVER
        price = Price(self.purse.spend, cost, self.day)
        return judge(
            terms=ruled.terms, schema=setup.schema, hubs=setup.hubs, data_class=data_class, price=price,
            cleared=ruled.cleared,
        )  # fmt: skip

    def note(self, topic: str, size_bytes: int) -> tuple[Charge, ...] | Denied:
        """Charges a message that carries nothing of a sample; most policies have no account for these."""
        if self._policy is None or not self.purse.spend.known:
            return ()
        charged = budget.charge(self._policy.base, self.purse.spend, Cost(size_bytes, topic=topic), self.day)
        if isinstance(charged, Denied):
            return charged
        self.purse.take(charged.spend)
        return charged.charges

    # What it depends on

    def use(self, policy: Policy | None) -> None:
        self._policy = policy
        hashes = tuple(part.hash for part in policy.layers) if policy else ()
        self._layers = hashes if len(hashes) > 1 else ()
        self._padded_bytes = max(self.setup.padded_bytes, _longest(self.setup.longest, policy, self._layers))
        self._found.clear()

    def model(self, setup: Setup) -> None:
        self.setup = setup
        self._level = level_of(setup.schema)
        self._clearance = Clearance(setup.schema, setup.evidence)
        self.use(self._policy)

    @property
    def ready(self) -> bool:
        """Whether anything may be sent: the hub has told what it remembers, and the time if rules ask for it.

        What waits is judged when it is sent; for want of a clock it shall not be stopped for good.
        """
        zones = self._policy.zones if self._policy else ()
        return self.purse.mirrored and (not zones or bool(self._around.minute_of_week))

    def calibrate(self, threshold: float | None) -> None:
        """Ask below this confidence, where the policy would ask sooner; None: as the policy says."""
        self._calibrated = threshold
        self._found.clear()

    def surround(self, around: Context) -> bool:
        """Battery, link cost, time, the device itself; whether the link is up is told by `link`. True if it is news."""
        around = msgspec.structs.replace(around, link_up=self._around.link_up)
        if around == self._around:
            return False
        self._around = around
        self._found.clear()
        return True

    def link(self, *, up: bool) -> None:
        if up is not self._around.link_up:
            self._around = msgspec.structs.replace(self._around, link_up=up)
            self._found.clear()

    def notify(self, counter: int) -> bool:
        """A deny-all notice. False if it is not newer than the one we know: it only ever narrows."""
        if counter <= self.notice:
            return False
        self.notice = counter
        self._found.clear()
        return True


def _longest(question: Escalation | None, policy: Policy | None, layers: tuple[str, ...]) -> int:
    """Padded bytes of the longest question under this policy: all its rules, the longest of its data classes."""
    if question is None or policy is None:
        return 0
    longest = msgspec.structs.replace(
        question, rule="+".join(rule.name for rule in policy.rules), layers=layers,
        data_class=max(policy.base.data_classes, key=len, default=""),
    )  # fmt: skip
    return len(codec.pad(codec.encode(longest)))


_NEVER = Denied(Why.DENIED_POLICY_ERROR)


def disclosed(report: InstallReport, ruling: Ruling) -> InstallReport:
    """The report without what has to stay."""
    return msgspec.structs.replace(
        report,
        quality=_quality(report.quality, ruling) if _listed(QUALITY, ruling) else None,
        signals=_signals(report.signals, ruling) if _listed(SIGNALS, ruling) else None,
    )


def _listed(name: str, ruling: Ruling) -> bool:
    return ruling.policy is not None and not ruling.noticed and reports(ruling.policy.base, name)


def _quality(quality: Quality | None, ruling: Ruling) -> Quality | None:
    if quality is None:
        return None
    cells = tuple(each for each in quality.cells if _may(QUALITY, each.data_class, ruling))
    return msgspec.structs.replace(quality, cells=cells)


def _signals(signals: Signals | None, ruling: Ruling) -> Signals | None:
    if signals is None:
        return None
    classes = tuple(each for each in signals.classes if _may(SIGNALS, each.data_class, ruling))
    return msgspec.structs.replace(signals, classes=classes)


def _may(name: str, data_class: str, ruling: Ruling) -> bool:
    ruled = ruling.of(data_class)
    return isinstance(ruled, Ruled) and ruled.denied is None and reports(ruled.terms, name)
