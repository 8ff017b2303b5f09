"""Leakage decision: whether the measured leakage of the codes that would leave is within the policy's limits. Pure.

Rule: unmeasured is denied, and a field that is the sample itself counts as all of it until it is measured. A
measurement counts for exactly one chain of cut, codec and transforms, so a policy that changes a transform needs its
own. Assessed once per set of terms and model (`assess_leakage`); per question,
`decide_leakage` only compares keys.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from policies.decisions import egress
from policies.decisions.egress import OPTIONAL_FIELDS, FieldPlan
from policies.model.policy import PRIVATE_FROM_LEVEL, LeakageLimits, Terms
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason, Denied
from wire.protocol.messages import RAW_SAMPLE_FIELD, WHOLE_SAMPLE_CATEGORIES, FieldSpec


class MeasurementKind(StrEnum):
    """Kind of attack that a measurement is about."""

    RECONSTRUCTION = "reconstruction"
    ATTRIBUTE = "attribute"


_ALL_OF_IT = 1.0  # leakage of the sample itself, in each of the unit metrics
UNIT_METRICS = frozenset({"ssim", "explained_variance", "token_f1"})  # 0 = nothing, 1 = the sample itself


class LeakageMeasurement(Protocol):
    """Interface of one measurement in a bundle's manifest.

    `chain`: digest of cut, codec and transforms. `upper95`: upper end of the 95 % interval of the attack's success.
    """

    @property
    def chain(self) -> str:
        """Digest of the chain that was measured."""
        ...

    @property
    def kind(self) -> str:
        """Kind of attack, a value of `MeasurementKind`."""
        ...

    @property
    def metric(self) -> str:
        """Metric of the attack's success, e.g. "ssim"."""
        ...

    @property
    def subject(self) -> str:
        """Sensitive column that an attribute attack is about, or ""."""
        ...

    @property
    def upper95(self) -> float:
        """Upper end of the 95 % interval of the attack's success."""
        ...


class LeakageEvidence(msgspec.Struct, frozen=True):
    """Measurements of one bundle. `name`: the digest of the chain that these plans make of its features."""

    rows: tuple[LeakageMeasurement, ...]
    name: Callable[[tuple[FieldPlan, ...]], str]


class LeakageFinding(msgspec.Struct, frozen=True):
    """Result for one policy's terms (by their key) and one model; `denied` None = the codes may leave."""

    key: str
    denied: Denied | None


def assess_leakage(
    terms: Terms | None, schema: tuple[FieldSpec, ...], evidence: LeakageEvidence | None
) -> LeakageFinding:
    """Assess all questions of a model under these terms.

    `evidence` None = nothing was measured, which denies fields of P2 and above, and every field where a limit is set:
    a sample that is labelled lower leaves by its label alone, not past a limit. Any failure denies.
    """
    if terms is None:
        return NOT_ASSESSED
    try:
        return LeakageFinding(terms.key, _assess_terms(terms, schema, evidence))
    except EVALUATION_ERRORS as error:
        return LeakageFinding("", Denied(DecisionReason.DENIED_POLICY_ERROR, f"leakage: {type(error).__name__}"))


def decide_leakage(terms: Terms, cleared: LeakageFinding) -> Denied | None:
    """Decide for one question by a result of `clear`. A result for other terms denies."""
    if cleared.key != terms.key:
        return cleared.denied or _NOT_CLEARED_FOR_IT
    return cleared.denied


def check_limits(privacy: LeakageLimits, rows: tuple[LeakageMeasurement, ...]) -> Denied | None:
    """Check the measurements of one chain against the limits; None = within.

    There must be one of reconstruction, and one for each limit that is set; NaN exceeds every limit.
    """
    about = [row for row in rows if row.kind == MeasurementKind.RECONSTRUCTION]
    counted = _list_counted(privacy, rows)
    if not counted:
        of = f" by {privacy.metric}" if privacy.metric and about else ""
        return Denied(
            DecisionReason.DENIED_UNMEASURED,
            f"the bundle has no measurement{of} of what its codes so changed give away",
        )
    attributes = [row for row in rows if row.kind == MeasurementKind.ATTRIBUTE]
    if privacy.max_attribute_advantage is not None and not attributes:
        return Denied(
            DecisionReason.DENIED_UNMEASURED,
            "the bundle has no measurement of what its codes tell of a sensitive column",
        )
    return _exceeds_limit(counted, privacy.max_leakage, "max_leakage") or _exceeds_limit(
        attributes, privacy.max_attribute_advantage, "max_attribute_advantage"
    )


def _list_counted(privacy: LeakageLimits, rows: tuple[LeakageMeasurement, ...]) -> list[LeakageMeasurement]:
    """Measurements of reconstruction that `max_leakage` is compared with."""
    return [
        row
        for row in rows
        if row.kind == MeasurementKind.RECONSTRUCTION
        and (row.metric == privacy.metric or (not privacy.metric and row.metric in UNIT_METRICS))
    ]


def _deny_whole_sample(
    limits: tuple[LeakageLimits, ...], fields: tuple[FieldSpec, ...], rows: tuple[LeakageMeasurement, ...]
) -> Denied | None:
    """Denial of an unmeasured field that is the sample itself: it gives all of it away, 1 of 1."""
    whole = next((each for each in fields if is_whole_sample(each)), None)
    for each in limits:
        limit = each.max_leakage
        if whole is None or limit is None or limit >= _ALL_OF_IT or _list_counted(each, rows):
            continue
        return Denied(
            DecisionReason.DENIED_LEAKAGE,
            f"field {whole.name!r} is the sample itself and was not measured, which counts as {_ALL_OF_IT:g},"
            f" max_leakage is {limit:g}",
        )
    return None


def is_whole_sample(field: FieldSpec) -> bool:
    """Whether a field is the sample itself, coded, and not features of it."""
    return field.category in WHOLE_SAMPLE_CATEGORIES or field.name == RAW_SAMPLE_FIELD


def _exceeds_limit(rows: list[LeakageMeasurement], limit: float | None, key: str) -> Denied | None:
    """Denial by the first measurement above the limit; None without a limit."""
    if limit is None:
        return None
    for row in rows:
        if not row.upper95 <= limit:  # also true for NaN
            what = f" of {row.subject!r}" if row.subject else ""
            return Denied(
                DecisionReason.DENIED_LEAKAGE, f"{row.metric}{what} up to {row.upper95:.3g}, {key} is {limit:g}"
            )
    return None


def _assess_terms(terms: Terms, schema: tuple[FieldSpec, ...], evidence: LeakageEvidence | None) -> Denied | None:
    """Denial for these terms, or None."""
    out = egress.plan_egress(terms, schema)
    if isinstance(out, Denied):
        return out
    plans = tuple(each for each in out.fields if each.spec.name not in OPTIONAL_FIELDS)
    if not needs_measurement(terms, tuple(each.spec for each in plans)):
        return None
    rows = _list_measured(plans, evidence)
    if total := _deny_whole_sample(terms.privacy, tuple(each.spec for each in plans), rows):
        return total
    if evidence is None:
        return _UNMEASURED
    found = (check_limits(limits, rows) for limits in terms.privacy or (LeakageLimits(),))
    return next((denied for denied in found if denied), None)


def _list_measured(plans: tuple[FieldPlan, ...], evidence: LeakageEvidence | None) -> tuple[LeakageMeasurement, ...]:
    """Measurements of exactly the chain that these plans make."""
    if evidence is None:
        return ()
    chain = evidence.name(plans)
    return tuple(row for row in evidence.rows if row.chain == chain)


def needs_measurement(terms: Terms, fields: tuple[FieldSpec, ...]) -> bool:
    """Whether these fields may leave only if they were measured: a limit is set, or one is of P2 or above."""
    if type(terms.privacy) is not tuple:
        raise TypeError
    limited = any(each.max_leakage is not None or each.max_attribute_advantage is not None for each in terms.privacy)
    return limited or any(each.level >= PRIVATE_FROM_LEVEL for each in fields if each.name not in OPTIONAL_FIELDS)


_UNMEASURED = Denied(DecisionReason.DENIED_UNMEASURED, "the bundle says nothing of what its codes give away")
_NOT_CLEARED_FOR_IT = Denied(
    DecisionReason.DENIED_UNMEASURED, "what the codes give away was not judged under these terms"
)
NOT_ASSESSED = LeakageFinding("", _NOT_CLEARED_FOR_IT)


class LeakageCache:
    """Cache of leakage results for one model: each set of terms is assessed once."""

    __slots__ = ("_evidence", "_found", "_schema")

    def __init__(self, schema: tuple[FieldSpec, ...], evidence: LeakageEvidence | None) -> None:
        self._schema, self._evidence = schema, evidence
        self._found: dict[str, LeakageFinding] = {}

    def finding_for(self, terms: Terms) -> LeakageFinding:
        """Result for these terms."""
        found = self._found.get(terms.key)
        if found is None:
            if len(self._found) >= _MAX_FINDINGS:
                self._found.clear()
            found = self._found[terms.key] = assess_leakage(terms, self._schema, self._evidence)
        return found


_MAX_FINDINGS = 1024
