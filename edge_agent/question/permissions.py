"""What a device may send now, per data class, and what it has spent: the policy evaluated and cached. Pure.

`PermissionCache` caches the policy's terms, `SpendTracker` tracks the spending, `disclose_report` filters rollout
reports. Rule: every input of a decision is passed in here, and each change of an input clears the cache. Rule: spending
that was recorded is never reduced, by no restart, lost ledger or older copy of one. Rule: sums over samples (quality,
signals) are fields with a label like any other: a data class whose terms do not list the field is not counted in it,
and where the base terms do not list it none of it leaves. The state of an install is always reported.
"""

from collections.abc import Iterable, Mapping

import msgspec

from edge_agent.question.commands import KEEP_DAYS, CoreSetup, QuestionLabels
from policies.decisions import budget
from policies.decisions.budget import SUBJECT_SEPARATOR, AccountCharge, BudgetSpend, MessageCost
from policies.decisions.egress import QUALITY_FIELD, SIGNALS_FIELD, decide_output, find_highest_level, may_report
from policies.decisions.leakage import LeakageCache, LeakageFinding
from policies.decisions.permit import Permit, PermitPrice, PermitScope, charge_permit, decide_scope
from policies.model.context import DecisionContext
from policies.model.policy import AccountUnit, Policy, Terms
from policies.model.reasons import DecisionReason, Denied
from policies.model.terms import resolve_terms
from wire.protocol import codec
from wire.protocol.messages import Escalation, SpendTotals
from wire.protocol.rollout import AuditQuality, DeviceSignals, InstallReport


class SpendTracker:
    """Spending of one device: charged before anything leaves, joined with the totals that the hub remembers.

    `mirrored`: the hub has reported its totals since the start. `current`: the accounts as they are now.
    """

    __slots__ = ("_opened", "current", "mirrored")

    def __init__(self) -> None:
        self.current = BudgetSpend()
        self._opened = BudgetSpend()
        self.mirrored = True

    def load_spend(self, spend: BudgetSpend, *, mirrored: bool = True) -> None:
        """Start from the stored accounts. `mirrored` False: send nothing before the hub has reported its totals."""
        self.current = self._opened = spend
        self.mirrored = mirrored

    def set_spend(self, spend: BudgetSpend) -> None:
        """Set the accounts to `spend`, which includes what was just charged."""
        self.current = spend

    def refund_charges(self, charges: Iterable[AccountCharge]) -> None:
        """Refund charges that were never recorded in the database."""
        self.current = budget.remove_charges(self.current, charges)

    def is_overspent(self, charges: Iterable[AccountCharge]) -> bool:
        """Whether a charged account exceeds its limit by now, because the hub remembered more than we did."""
        totals = self.current.totals
        return any(totals.get((each.key, each.period), 0) > each.limit for each in charges)

    def raise_to_stored(self, spend: BudgetSpend) -> None:
        """The database holds more than this tracker: take the greater of each total."""
        self.current = BudgetSpend(
            max(self.current.day, spend.day), _take_greater(self.current.totals, spend.totals), known=self.current.known
        )

    def merge_hub_totals(self, hub_totals: SpendTotals, *, complete: bool) -> SpendTotals:
        """Merge the totals that the hub remembers; returns those that were raised by it.

        What was charged here since the start comes on top. Until a `complete` report has come, the accounts of a lost
        ledger count as exhausted. Accounts of single subjects are ignored unless our own ledger is gone: the hub does
        not know whose they are.
        """
        totals, raised = dict(self.current.totals), []
        for key, period, amount in hub_totals:
            if self.mirrored and key.endswith(SUBJECT_SEPARATOR):
                continue  # only we know which subject it is, unless our ledger is gone
            held = totals.get((key, period), 0)
            since = 0 if self.mirrored else held - self._opened.totals.get((key, period), 0)
            if amount + since > held:
                totals[key, period] = amount + since
                raised.append((key, period, amount + since))
        day = max((period for key, period, _ in hub_totals if key == AccountUnit.BYTES), default=0)
        self.current = BudgetSpend(max(self.current.day, day), totals, known=self.current.known or complete)
        self.mirrored = self.mirrored or complete
        return tuple(raised)


def _take_greater(
    held: Mapping[tuple[str, int], int], other: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """The greater value of each total."""
    return {at: max(held.get(at, 0), other.get(at, 0)) for at in (*held, *other)}


_MAX_CLASSES = 64  # data classes are few; bounds the memory if a caller makes up new ones
_ALREADY_CHARGED = MessageCost(0)  # for a question that was charged when it was stored


class ClassPermissions(msgspec.Struct, frozen=True):
    """Permissions of one data class at this moment.

    `terms`: the policy's. `cleared`: fields whose measured leakage is within them. `denied`: set while a deny-all
    notice is in force.
    """

    terms: Terms
    cleared: LeakageFinding
    labels: QuestionLabels
    denied: Denied | None = None


class PermissionCache:
    """Cache of what the policy permits, per data class, in the device's present context.

    Holds the policy, the context (battery, link, time), the day, the newest deny-all notice and the spending. `setup`:
    the model's schema and the hubs. At most 64 data classes are cached.
    """

    __slots__ = (
        "_by_class",
        "_calibrated",
        "_clearance",
        "_committed",
        "_context",
        "_layers",
        "_level",
        "_padded_bytes",
        "_policy",
        "_scopes",
        "day",
        "notice",
        "setup",
        "spend",
    )

    def __init__(self, policy: Policy | None, setup: CoreSetup) -> None:
        self.spend = SpendTracker()
        self.day = 0
        self.notice = 0  # counter of the newest deny-all notice
        self._committed: PermissionCache | None = None
        self._calibrated: float | None = None
        self._policy = policy
        self._context = DecisionContext("")
        self._by_class: dict[str, ClassPermissions | Denied] = {}
        self._scopes: dict[str, tuple[ClassPermissions, PermitScope | Denied]] = {}
        self.set_model(setup)

    @property
    def policy(self) -> Policy | None:
        """The policy in force, None if there is none."""
        return self._policy

    def advance_day(self, day: int) -> None:
        """Set the day (whole days since 1970, hub time). It never goes back."""
        self.day = max(self.day, day)

    def resume_device(self, spend: BudgetSpend, day: int) -> None:
        """Take over the spending and the day of another device (see `EdgeCore.resume_from`)."""
        self.spend.load_spend(spend)
        self.day = day

    def for_committed_model(self) -> "PermissionCache":
        """Permissions for features of the committed model while a candidate runs; otherwise these themselves."""
        committed = self._committed
        if committed is None:
            return self
        committed.copy_context(self.device_context, self.notice, self._policy)
        committed.spend, committed.day = self.spend, self.day
        return committed

    def set_committed_setup(self, setup: CoreSetup | None) -> None:
        """Set the committed model's setup while a candidate answers; None = no candidate runs any more."""
        self._committed = None if setup is None else PermissionCache(self._policy, setup)

    def copy_context(self, context: DecisionContext, notice: int, policy: Policy | None) -> None:
        """Copy context, notice and policy from another cache."""
        if policy is not self._policy:
            self.set_policy(policy)
        if (context, notice) != (self._context, self.notice):
            self._context, self.notice = context, notice
            self._by_class.clear()

    @property
    def device_context(self) -> DecisionContext:
        """The context as it was last read, with no data class."""
        return self._context

    @property
    def notice_in_force(self) -> bool:
        """Whether a deny-all notice is in force, that is, one that the policy does not clear."""
        return self.notice > (self._policy.clears_notice if self._policy else 0)

    def for_class(self, data_class: str) -> ClassPermissions | Denied:
        """Permissions of a data class now, or why all is denied; the same object until an input changes."""
        found = self._by_class.get(data_class)
        if found is None:
            if len(self._by_class) >= _MAX_CLASSES:
                self._by_class.clear()
            found = self._by_class[data_class] = self._compute(data_class)
        return found

    def _compute(self, data_class: str) -> ClassPermissions | Denied:
        """Evaluate the policy for one data class in the present context."""
        context = msgspec.structs.replace(self._context, data_class=data_class, level=self._level)
        found = resolve_terms(self._policy, context)
        if isinstance(found, Denied):
            return found
        if self._calibrated is not None and self._calibrated < found.threshold:
            found = msgspec.structs.replace(found, threshold=self._calibrated)
        denied = (
            Denied(DecisionReason.DENIED_NOTICE, f"notice {self.notice}: until a policy clears it")
            if self.notice_in_force
            else None
        )
        return ClassPermissions(found, self._clearance.finding_for(found), self._make_labels(found), denied)

    def _make_labels(self, found: Terms) -> QuestionLabels:
        """The labels that questions under these terms carry."""
        keep = found.retention.keep_days if found.retention else KEEP_DAYS
        subject = bool(found.retention and found.retention.subject_field)
        return QuestionLabels("+".join(found.rules), keep, self._layers, self._padded_bytes, subject)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one question on the link: equal for all samples and rules, so that the size reveals nothing."""
        return self.setup.frame_bytes + self._padded_bytes - self.setup.padded_bytes

    @property
    def question_mj(self) -> int:
        """Energy of sending one question, in millijoules, as the device states it."""
        return self.setup.link_energy.count_mj(self.frame_bytes)

    def permit_question(self, data_class: str, *, audit: bool, subject: str = "") -> Permit | Denied:
        """A permit with charges for a new question, or why it is denied."""
        cost = MessageCost(self.frame_bytes, audit=audit, subject=subject, energy_mj=self.question_mj)
        return self._decide_permit(data_class, cost)

    def permit_resend(self, data_class: str) -> Permit | Denied:
        """A permit for a question that was charged when it was stored; it charges nothing."""
        return self._decide_permit(data_class, _ALREADY_CHARGED)

    def _decide_permit(self, data_class: str, cost: MessageCost) -> Permit | Denied:
        """Evaluate permit rules, leakage and accounts for one question of this cost."""
        class_permissions = self.for_class(data_class)
        if isinstance(class_permissions, Denied):
            return class_permissions
        if class_permissions.denied:
            return class_permissions.denied
        price = PermitPrice(self.spend.current, cost, self.day)
        return charge_permit(class_permissions.terms, self._scope_for(data_class, class_permissions), price)

    def _scope_for(self, data_class: str, class_permissions: ClassPermissions) -> PermitScope | Denied:
        """Hubs and fields for a data class; decided once for each `ClassPermissions`, which end with any input."""
        held = self._scopes.get(data_class)
        if held is not None and held[0] is class_permissions:
            return held[1]
        if len(self._scopes) >= _MAX_CLASSES:
            self._scopes.clear()
        setup = self.setup
        scope = decide_scope(class_permissions.terms, setup.schema, setup.hubs, data_class, class_permissions.cleared)
        self._scopes[data_class] = (class_permissions, scope)
        return scope

    def check_output(self, data_class: str, day: int) -> Denied | None:
        """Why an answer to a sample of this class may not be handed to another machine on `day`; None if it may."""
        class_permissions = self.for_class(data_class)
        if isinstance(class_permissions, Denied) or class_permissions.denied:
            return class_permissions if isinstance(class_permissions, Denied) else class_permissions.denied
        return decide_output(class_permissions.terms, data_class, max(day, self.day))

    def charge_message(self, topic: str, size_bytes: int) -> tuple[AccountCharge, ...] | Denied:
        """Charge a message that carries no sample data to the account of its topic.

        Most policies have no such account; then, and before the accounts are known, nothing is charged.
        """
        if self._policy is None or not self.spend.current.known:
            return ()
        charged = budget.charge_accounts(
            self._policy.base, self.spend.current, MessageCost(size_bytes, topic=topic), self.day
        )
        if isinstance(charged, Denied):
            return charged
        self.spend.set_spend(charged.spend)
        return charged.charges

    # Inputs

    def set_policy(self, policy: Policy | None) -> None:
        """Set the policy; None = none is in force."""
        self._policy = policy
        hashes = tuple(part.hash for part in policy.layers) if policy else ()
        self._layers = hashes if len(hashes) > 1 else ()
        self._padded_bytes = max(self.setup.padded_bytes, _measure_longest(self.setup.longest, policy, self._layers))
        self._by_class.clear()

    def set_model(self, setup: CoreSetup) -> None:
        """Set the model's setup: schema, hubs, measured leakage."""
        self.setup = setup
        self._level = find_highest_level(setup.schema)
        self._clearance = LeakageCache(setup.schema, setup.evidence)
        self.set_policy(self._policy)

    @property
    def may_send(self) -> bool:
        """Whether anything may be sent: the hub has reported our spending, and the time is known if rules need it.

        Waiting questions are checked when they are sent; without a clock they would be denied for good.
        """
        zones = self._policy.zones if self._policy else ()
        return self.spend.mirrored and (not zones or bool(self._context.minute_of_week))

    def set_threshold(self, threshold: float | None) -> None:
        """Escalate below this confidence if that is less often than by the policy; None = the policy's threshold."""
        self._calibrated = threshold
        self._by_class.clear()

    def set_context(self, context: DecisionContext) -> bool:
        """Set the context (battery, link cost, local time); the link state has its own method. True if it changed."""
        context = msgspec.structs.replace(context, link_up=self._context.link_up)
        if context == self._context:
            return False
        self._context = context
        self._by_class.clear()
        return True

    def set_link(self, *, up: bool) -> None:
        """Set whether any connection is up."""
        if up is not self._context.link_up:
            self._context = msgspec.structs.replace(self._context, link_up=up)
            self._by_class.clear()

    def accept_notice(self, counter: int) -> bool:
        """Accept a deny-all notice. False if its counter is not newer than the last one's."""
        if counter <= self.notice:
            return False
        self.notice = counter
        self._by_class.clear()
        return True


def _measure_longest(question: Escalation | None, policy: Policy | None, layers: tuple[str, ...]) -> int:
    """Padded bytes of the longest question possible under this policy.

    Counts the names of all its rules and the longest of its data classes; 0 without a policy.
    """
    if question is None or policy is None:
        return 0
    longest = msgspec.structs.replace(
        question, rule="+".join(rule.name for rule in policy.rules), layers=layers,
        data_class=max(policy.base.data_classes, key=len, default=""),
    )  # fmt: skip
    return len(codec.pad_plaintext(codec.encode_wire_message(longest)))


def disclose_report(report: InstallReport, permissions: PermissionCache) -> InstallReport:
    """The rollout report without the figures that the policy does not let leave.

    Removes `quality` and `signals` as a whole where the base terms do not list them, and single data classes otherwise.
    """
    return msgspec.structs.replace(
        report,
        quality=_disclose_quality(report.quality, permissions) if _is_listed(QUALITY_FIELD, permissions) else None,
        signals=_disclose_signals(report.signals, permissions) if _is_listed(SIGNALS_FIELD, permissions) else None,
    )


def _is_listed(name: str, permissions: PermissionCache) -> bool:
    """Whether the base terms list this report field and no deny-all notice is in force."""
    return (
        permissions.policy is not None and not permissions.notice_in_force and may_report(permissions.policy.base, name)
    )


def _disclose_quality(quality: AuditQuality | None, permissions: PermissionCache) -> AuditQuality | None:
    """Quality figures of the data classes that may be reported."""
    if quality is None:
        return None
    cells = tuple(each for each in quality.cells if _may_report(QUALITY_FIELD, each.data_class, permissions))
    return msgspec.structs.replace(quality, cells=cells)


def _disclose_signals(signals: DeviceSignals | None, permissions: PermissionCache) -> DeviceSignals | None:
    """Signals of the data classes that may be reported."""
    if signals is None:
        return None
    classes = tuple(each for each in signals.classes if _may_report(SIGNALS_FIELD, each.data_class, permissions))
    return msgspec.structs.replace(signals, classes=classes)


def _may_report(name: str, data_class: str, permissions: PermissionCache) -> bool:
    """Whether the terms of this data class list the report field."""
    class_permissions = permissions.for_class(data_class)
    return (
        isinstance(class_permissions, ClassPermissions)
        and class_permissions.denied is None
        and may_report(class_permissions.terms, name)
    )
