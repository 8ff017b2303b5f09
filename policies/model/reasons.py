"""Reason codes of every answer, denial and outcome; people, metrics and tests use the same values. Pure.

Also the denial itself (`Denied`), which every decision returns in place of its result, and the exceptions that count
as one.

Rule: evaluating a damaged policy never raises out of a decision: each of `EVALUATION_ERRORS` becomes
DENIED_POLICY_ERROR.
"""

from enum import StrEnum

import msgspec


class DecisionReason(StrEnum):
    """Why an answer is what it is, or why nothing left. `denied_*`: the policy did not let it leave.

    The values stand in answers, the ledger, metrics and logs; a value never changes its meaning.
    """

    CONFIDENT = "confident"  # at or above the threshold
    UNSURE = "unsure"  # below it: the hub is asked
    AUDIT = "audit"  # confident, but drawn at random to be audited
    NOVEL = "novel"  # confident, but unlike what the model knows: the policy's `novel = "ask"` asks the hub
    OUT_OF_DOMAIN = "out_of_domain"  # unlike what the model knows, and the policy says `novel = "reject"`
    NOT_DRAWN = "not_drawn"  # the rule asks at random only, and this sample was not drawn
    HUB_FIRST = "hub_first"  # the mode asks whatever the confidence
    LOCAL_ONLY = "local_only"  # the mode never asks
    DISABLED = "disabled"  # the mode answers nothing
    NO_MODEL = "no_model"
    INVALID_CONFIDENCE = "invalid_confidence"  # NaN, infinite or outside 0..1: the hub is never asked

    LINK_DOWN = "link_down"
    HUB_QUIET = "hub_quiet"  # the hub asked this device to send nothing for a while
    OUTBOX_FULL = "outbox_full"
    NO_DISK = "no_disk"  # the outbox cannot be written: nothing may leave that is not recorded
    BUDGET_ELAPSED = "budget_elapsed"  # waited as long as the mode allows
    VERDICT = "verdict"  # the hub answered
    REFUSED = "refused"  # the hub refused it finally
    EXPIRED = "expired"  # too old to be asked
    RETIRED = "retired"  # the device was retired before the hub had answered
    ERASED = "erased"  # its subject's data was erased before the hub had answered

    DENIED_UNLISTED_FIELD = "denied_unlisted_field"
    DENIED_LABEL = "denied_label"
    DENIED_DATA_CLASS = "denied_data_class"
    DENIED_REGION = "denied_region"
    DENIED_HUB = "denied_hub"
    DENIED_UNMEASURED = "denied_unmeasured"  # the bundle has no leakage measurement of these transforms
    DENIED_LEAKAGE = "denied_leakage"  # the measured leakage exceeds the policy's limit
    DENIED_RULE = "denied_rule"  # a rule of the policy lets nothing leave in this case
    DENIED_PURPOSE = "denied_purpose"  # no purpose is stated for what is private
    DENIED_BUDGET = "denied_budget"
    DENIED_TOO_BIG = "denied_too_big"
    DENIED_NOTICE = "denied_notice"  # the hub ordered that nothing leaves, until a policy clears it
    DENIED_POLICY_EXPIRED = "denied_policy_expired"
    DENIED_POLICY_CHANGED = "denied_policy_changed"
    DENIED_POLICY_ERROR = "denied_policy_error"  # no policy, a damaged one, or a rule that failed: deny


class Denied(msgspec.Struct, frozen=True, gc=False):
    """A denial: nothing may leave. `detail` names the rule and the thing in one line, never a value of the sample."""

    why: DecisionReason
    detail: str = ""


# What evaluating a damaged policy can raise. Each such failure is a denial, never an answer.
EVALUATION_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
