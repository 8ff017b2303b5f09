"""Escalation decision: keep the local answer, or ask the hub. Pure.

Rule: total. Every float and every damaged policy has an answer, and in doubt the sample stays on the device.
"""

from enum import StrEnum

import msgspec

from policies.model.policy import ASKING, Mode, Terms
from policies.model.reasons import FAULTS, Why


class Action(StrEnum):
    """What to do with one local prediction."""

    KEEP = "keep"  # answer locally; nothing leaves
    ASK = "ask"  # ask; whether the caller waits is the mode's business
    QUEUE = "queue"  # answer locally at once with this reason; the question waits in the outbox until the link is back
    AUDIT = "audit"  # answer locally at once; ask too, to measure quality


class Link(msgspec.Struct, frozen=True, gc=False):
    """State of the link to the hubs.

    `quiet_until`: the hub asked this device to send nothing until then (seconds, same clock as `now`).
    """

    up: bool
    quiet_until: float = 0.0


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Result of the escalation decision, with its reason.

    `audit` is True for every question drawn at random, the unsure ones too: only so is the sample unbiased.
    """

    action: Action
    why: Why
    audit: bool = False


_INVALID = Decision(Action.KEEP, Why.INVALID_CONFIDENCE)
_ERROR = Decision(Action.KEEP, Why.DENIED_POLICY_ERROR)
_NOT_DRAWN = Decision(Action.KEEP, Why.NOT_DRAWN)
_CONFIDENT = Decision(Action.KEEP, Why.CONFIDENT)
_QUIET = Decision(Action.KEEP, Why.HUB_QUIET)
_AUDIT = Decision(Action.AUDIT, Why.AUDIT, audit=True)
_NOT_ASKING = {
    Mode.LOCAL_ONLY: Decision(Action.KEEP, Why.LOCAL_ONLY),
    Mode.DISABLED: Decision(Action.KEEP, Why.DISABLED),
}
_ASK = {
    (why, audit): Decision(Action.ASK, why, audit)
    for why in (Why.UNSURE, Why.HUB_FIRST, Why.AUDIT)
    for audit in (False, True)
}
_QUEUE = {audit: Decision(Action.QUEUE, Why.LINK_DOWN, audit) for audit in (False, True)}


def decide(confidence: float, link: Link, terms: Terms, audit_dice: float, now: float) -> Decision:
    """Decide what to do with a prediction of this `confidence` (0..1).

    `audit_dice` is drawn uniformly from [0, 1). `now`: seconds, same clock as `Link.quiet_until`. A confidence out of
    range, NaN included, is kept; so is any prediction under a damaged policy. Asking while the link is down queues the
    question. With `dp.random_ask` the draw alone decides.
    """
    try:
        return _decide(confidence, link, terms, audit_dice, now)
    except FAULTS:
        return _ERROR


def _decide(  # noqa: PLR0911 - a reason a line
    confidence: float, link: Link, terms: Terms, audit_dice: float, now: float
) -> Decision:
    """As `decide`; raises one of FAULTS on damaged terms."""
    if not 0.0 <= confidence <= 1.0:  # false for NaN too
        return _INVALID
    mode = terms.mode
    if mode not in ASKING:
        return _NOT_ASKING[mode]
    if not (0.0 <= terms.threshold <= 1.0 and 0.0 <= terms.audit_share <= 1.0):
        return _ERROR
    audit = audit_dice < terms.audit_share
    if terms.dp is not None and terms.dp.random_ask is not None:
        return _ask(Why.AUDIT, link, now, audit=audit) if audit_dice < terms.dp.random_ask else _NOT_DRAWN
    if mode is Mode.HUB_FIRST:
        return _ask(Why.HUB_FIRST, link, now, audit=audit)
    if confidence < terms.threshold:
        return _ask(Why.UNSURE, link, now, audit=audit)
    return _AUDIT if audit and now >= link.quiet_until else _CONFIDENT


def _ask(why: Why, link: Link, now: float, *, audit: bool) -> Decision:
    """Ask the hub: queued while the link is down, kept while the hub wants no questions."""
    if link.up is not True:
        return _QUEUE[audit]
    if now >= link.quiet_until:
        return _ASK[why, audit]
    return _QUIET
