"""Sentences of the console for what the API has as codes: why a question was refused, what an account counts."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from cloud_hub.console.rendering import format_bytes
from cloud_hub.storage.question_history import QuestionOutcome, QuestionRecord
from policies.model.policy import AccountUnit, BudgetAccount, Policy

_REFUSALS = {
    "busy": "the hub had more questions than it could answer in time",
    "rate": "the tenant asked for more than its share",
    "draining": "the hub was stopping",
    "too_big": "the question was larger than a message may be",
    "expired": "it became too old before it could be answered, or its verdict was deleted at the end of its time",
    "created_ahead": "the device's clock was ahead of the hub's",
    "key_expired": "it was sealed to a hub key that has expired",
    "device_unknown": "the device was not known, suspended or revoked",
    "policy": "the hub's own check of the policy did not let it pass",
    "model_gone": "the hub has no half of this model version",
    "schema": "its fields did not fit the model",
    "conflict": "the same number came with another content before",
    "engine": "the model failed on it",
    "policy_old": "it came under a policy that was replaced, or while a notice denied all",
}
_EPOCH = dt.date(1970, 1, 1)


def explain_question(record: QuestionRecord) -> str:
    """Say in one sentence how a question ended, or that it is open."""
    if record.outcome is QuestionOutcome.OPEN:
        return "The hub has it and has not answered yet."
    took = f"{max(0, record.ended_ms - record.kept_ms):,} ms after it was stored"
    if record.outcome is QuestionOutcome.ANSWERED:
        return f"Answered by the hub's half of {record.model}, {took}. The answer itself is sealed to the device."
    return f"Refused: {_REFUSALS.get(record.reason, record.reason)}, {took}."


def summarise_question(record: QuestionRecord) -> str:
    """Say in a few words how a question ended; "" where its outcome says all."""
    return _REFUSALS.get(record.reason, record.reason) if record.reason else ""


def explain_refusal(reason: str) -> str:
    """Say why a question was refused."""
    return _REFUSALS.get(reason, reason.replace("_", " "))


def describe_spending(totals: list[dict[str, Any]], policies: tuple[Policy, ...]) -> list[dict[str, Any]]:
    """Return what a device spent of each account in its newest period, beside the limit where a policy has one."""
    accounts = {account.key: account for policy in policies for account in policy.base.accounts}
    accounts |= {each.key: each for policy in policies for rule in policy.rules for each in rule.narrowing.accounts}
    newest: dict[str, Mapping[str, Any]] = {}
    for total in totals:
        if total["account"] not in newest or newest[total["account"]]["period"] < total["period"]:
            newest[total["account"]] = total
    return [_describe_account(total, accounts.get(key)) for key, total in sorted(newest.items())]


def _describe_account(total: Mapping[str, Any], account: BudgetAccount | None) -> dict[str, Any]:
    days = account.period_days if account else 1
    try:
        since = (_EPOCH + dt.timedelta(days=int(total["period"]) * days)).isoformat()
    except OverflowError:
        since = "unknown"
    limit = account.limit if account else 0
    unit = account.coin if account else AccountUnit.BYTES if "bytes" in total["account"] else None
    share = min(1.0, total["amount"] / limit) if limit else 0.0
    return {
        "account": total["account"],
        "amount": format_amount(total["amount"], unit, limit),
        "limit": format_amount(limit, unit, limit) if limit else "none known",
        "has_limit": limit > 0,
        "share": share,
        "since": since,
    }


def format_amount(amount: int, unit: AccountUnit | None, limit: int) -> str:
    """Format what an account counts: bytes, cost in millionths, millijoules, privacy loss as a share of its limit."""
    if unit is AccountUnit.BYTES:
        return format_bytes(amount)
    if unit is AccountUnit.PRIVACY and limit:
        return f"{100 * amount / limit:.1f} %"
    if unit is AccountUnit.ENERGY:
        return f"{amount / 1000:,.1f} J"
    return f"{amount / 1e6:,.4f} of cost" if unit is AccountUnit.COST else f"{amount:,} units"
