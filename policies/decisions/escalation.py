"""Escalation decision: keep the local answer, or ask the hub. Pure.

Rule: total. Every float and every damaged policy has an answer, and in doubt the sample stays on the device.
"""

from enum import StrEnum

import msgspec

from policies.model.policy import ASKING_MODES, EscalationMode, NoveltyAction, Terms
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason


class EscalationAction(StrEnum):
    """What to do with one local prediction."""

    KEEP = "keep"  # answer locally; nothing leaves
    ASK = "ask"  # ask; whether the caller waits is the mode's business
    QUEUE = "queue"  # answer locally at once with this reason; the question waits in the outbox until the link is back
    AUDIT = "audit"  # answer locally at once; ask too, to measure quality


class LinkState(msgspec.Struct, frozen=True, gc=False):
    """State of the link to the hubs.

    `quiet_until`: the hub asked this device to send nothing until then (seconds, same clock as `now`).
    """

    up: bool
    quiet_until: float = 0.0


class EscalationDecision(msgspec.Struct, frozen=True, gc=False):
    """Result of the escalation decision, with its reason.

    `audit` is True for every question drawn at random, the unsure ones too: only so is the sample unbiased.
    """

    action: EscalationAction
    why: DecisionReason
    audit: bool = False


_INVALID = EscalationDecision(EscalationAction.KEEP, DecisionReason.INVALID_CONFIDENCE)
_ERROR = EscalationDecision(EscalationAction.KEEP, DecisionReason.DENIED_POLICY_ERROR)
_NOT_DRAWN = EscalationDecision(EscalationAction.KEEP, DecisionReason.NOT_DRAWN)
_CONFIDENT = EscalationDecision(EscalationAction.KEEP, DecisionReason.CONFIDENT)
_QUIET = EscalationDecision(EscalationAction.KEEP, DecisionReason.HUB_QUIET)
_REJECTED = EscalationDecision(EscalationAction.KEEP, DecisionReason.OUT_OF_DOMAIN)
_AUDIT = EscalationDecision(EscalationAction.AUDIT, DecisionReason.AUDIT, audit=True)
_NOT_ASKING = {
    EscalationMode.LOCAL_ONLY: EscalationDecision(EscalationAction.KEEP, DecisionReason.LOCAL_ONLY),
    EscalationMode.DISABLED: EscalationDecision(EscalationAction.KEEP, DecisionReason.DISABLED),
}
_ASK = {
    (why, audit): EscalationDecision(EscalationAction.ASK, why, audit)
    for why in (DecisionReason.UNSURE, DecisionReason.HUB_FIRST, DecisionReason.AUDIT, DecisionReason.NOVEL)
    for audit in (False, True)
}
_QUEUE = {audit: EscalationDecision(EscalationAction.QUEUE, DecisionReason.LINK_DOWN, audit) for audit in (False, True)}


def decide_escalation(
    confidence: float, link: LinkState, terms: Terms, audit_dice: float, now: float, *, in_domain: bool | None = None
) -> EscalationDecision:
    """Decide what to do with a prediction of this `confidence` (0..1).

    `audit_dice` is drawn uniformly from [0, 1). `now`: seconds, same clock as `LinkState.quiet_until`. `in_domain`:
    whether the sample is like what the model knows; None if it cannot tell. A confidence out of range, NaN included, is
    kept; so is any prediction under a damaged policy. Asking while the link is down queues the question. With
    `dp.random_ask` the draw alone decides what is asked.
    """
    try:
        decision = _decide_by_confidence(confidence, link, terms, audit_dice, now)
        return decision if in_domain is not False else _decide_novel(decision, link, terms, audit_dice, now)
    except EVALUATION_ERRORS:
        return _ERROR


_OF_RULES = (DecisionReason.INVALID_CONFIDENCE, DecisionReason.DISABLED, DecisionReason.DENIED_POLICY_ERROR)


def _decide_novel(
    decision: EscalationDecision, link: LinkState, terms: Terms, audit_dice: float, now: float
) -> EscalationDecision:
    """Change the decision about a sample unlike what the model knows, as the policy's `novel` says."""
    action = NoveltyAction(terms.novel)
    drawn = terms.dp is not None and terms.dp.random_ask is not None
    if action is NoveltyAction.REJECT:
        # under `random_ask` what is asked may not depend on the sample: only what stays anyway is called rejected
        stays = decision.action is EscalationAction.KEEP
        return _REJECTED if decision.why not in _OF_RULES and (stays or not drawn) else decision
    if action is NoveltyAction.ASK and not drawn and decision.why in {DecisionReason.CONFIDENT, DecisionReason.AUDIT}:
        return _ask_hub(DecisionReason.NOVEL, link, now, audit=audit_dice < terms.audit_share)
    return decision


def _decide_by_confidence(  # noqa: PLR0911 - a reason a line
    confidence: float, link: LinkState, terms: Terms, audit_dice: float, now: float
) -> EscalationDecision:
    """The decision whatever the novelty; raises one of EVALUATION_ERRORS on damaged terms."""
    if not 0.0 <= confidence <= 1.0:  # false for NaN too
        return _INVALID
    mode = terms.mode
    if mode not in ASKING_MODES:
        return _NOT_ASKING[mode]
    if not (0.0 <= terms.threshold <= 1.0 and 0.0 <= terms.audit_share <= 1.0):
        return _ERROR
    audit = audit_dice < terms.audit_share
    if terms.dp is not None and terms.dp.random_ask is not None:
        return (
            _ask_hub(DecisionReason.AUDIT, link, now, audit=audit) if audit_dice < terms.dp.random_ask else _NOT_DRAWN
        )
    if mode is EscalationMode.HUB_FIRST:
        return _ask_hub(DecisionReason.HUB_FIRST, link, now, audit=audit)
    if confidence < terms.threshold:
        return _ask_hub(DecisionReason.UNSURE, link, now, audit=audit)
    return _AUDIT if audit and now >= link.quiet_until else _CONFIDENT


def _ask_hub(why: DecisionReason, link: LinkState, now: float, *, audit: bool) -> EscalationDecision:
    """Ask the hub: queued while the link is down, kept while the hub wants no questions."""
    if link.up is not True:
        return _QUEUE[audit]
    if now >= link.quiet_until:
        return _ASK[why, audit]
    return _QUIET
