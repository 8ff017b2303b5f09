"""Budgets: accounts of bytes, cost, energy and privacy, charged before anything is sent and never refunded. Pure.

Rule: every account that the terms name must hold the charge, or nothing leaves and none is charged. A clock that goes
back opens no older period; an account whose past is not known holds nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from policies.model.policy import AccountUnit, BudgetAccount, Terms
from policies.model.reasons import EVALUATION_ERRORS, DecisionReason, Denied
from wire.protocol.codec import MAX_FRAME_BYTES

QUESTIONS_TOPIC = "q"  # the topic of questions
SUBJECT_SEPARATOR = "/s/"  # in the key of one subject's account; at its end, what every subject's holds at least
_NOTHING: Mapping[tuple[str, int], int] = MappingProxyType({})


class BudgetSpend(msgspec.Struct, frozen=True):
    """Amounts charged so far: `totals` by account and number of its period; `day`: the latest that was charged on.

    `known` False: an earlier ledger of this device is lost, and the hub has not yet said what it held.
    """

    day: int = 0
    totals: Mapping[tuple[str, int], int] = _NOTHING
    known: bool = True

    @classmethod
    def spent_bytes(cls, day: int, size_bytes: int) -> "BudgetSpend":
        """Spend of `size_bytes` on `day`, and nothing else."""
        return cls(day, {(AccountUnit.BYTES.value, day): size_bytes})

    @property
    def bytes(self) -> int:
        """Bytes charged on `day`, whatever the rule."""
        return self.totals.get((AccountUnit.BYTES.value, self.day), 0)


class MessageCost(msgspec.Struct, frozen=True, gc=False):
    """Cost of one message. `size_bytes`: the whole frame on the link, 0 for one that was charged before.

    `price`: the hub's, in millionths; `releases`: noised fields; `audit`: asked at random alone; `subject`: whom it is
    about, as a keyed hash in hex, or "". `energy_mj`: what the device spends on sending it, in millijoules.
    """

    size_bytes: int
    price: int = 0
    releases: int = 0
    audit: bool = False
    topic: str = QUESTIONS_TOPIC
    subject: str = ""
    energy_mj: int = 0


class AccountCharge(msgspec.Struct, frozen=True, gc=False):
    """Charge of `amount` to an account in one of its periods, which then holds at most `limit`."""

    key: str
    period: int
    amount: int
    limit: int


class ChargeResult(msgspec.Struct, frozen=True):
    """New totals, and the charges that were added."""

    spend: BudgetSpend
    charges: tuple[AccountCharge, ...]


def charge_accounts(terms: Terms, spend: BudgetSpend, cost: MessageCost, day: int) -> ChargeResult | Denied:
    """Charge a message to all accounts that apply, or deny it.

    `day`: days since 1970, UTC. Denied (budget) if one account would exceed its limit or the past is not known; denied
    (too big) above `MAX_FRAME_BYTES`. Bytes count whole frames, cost millionths, energy millijoules, privacy
    units of the account.
    """
    try:
        return _charge_accounts(terms, spend, cost, max(day, spend.day))
    except EVALUATION_ERRORS as error:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, f"budget: {type(error).__name__}")


def _charge_accounts(terms: Terms, spend: BudgetSpend, cost: MessageCost, day: int) -> ChargeResult | Denied:
    if min(cost.size_bytes, cost.price, cost.releases, cost.energy_mj) < 0:
        return Denied(DecisionReason.DENIED_POLICY_ERROR, "budget: a negative count")
    if cost.size_bytes > MAX_FRAME_BYTES:
        return Denied(
            DecisionReason.DENIED_TOO_BIG, f"{cost.size_bytes} bytes, at most {MAX_FRAME_BYTES} in one message"
        )
    if not cost.size_bytes:
        return ChargeResult(spend, ())
    if not spend.known:
        return Denied(
            DecisionReason.DENIED_BUDGET, "the record of past spending is lost, and the hub has not sent it yet"
        )
    charges = tuple(_list_charges(terms.accounts, cost, day))
    if cost.topic == QUESTIONS_TOPIC and not any(each.key == AccountUnit.BYTES for each in charges):
        raise TypeError  # every document has that account
    for each in charges:
        held = _amount_held(spend.totals, each)
        total = held + each.amount
        if not 0 <= held <= total <= each.limit:
            return Denied(
                DecisionReason.DENIED_BUDGET, f"account {each.key}: {total} in this period, at most {each.limit}"
            )
    return ChargeResult(add_charges(spend, charges, day), charges)


def shared_account_key(key: str) -> str | None:
    """Key of the account that says how much every subject of this one has spent at least; None for other accounts."""
    every, separator, subject = key.partition(SUBJECT_SEPARATOR)
    return every + separator if subject else None


def _amount_held(totals: Mapping[tuple[str, int], int], charge: AccountCharge) -> int:
    """Amount in the account.

    Of a subject whose account was lost: as much as the fullest of all subjects' accounts held.
    """
    held = totals.get((charge.key, charge.period), 0)
    shared = shared_account_key(charge.key)
    return max(held, totals.get((shared, charge.period), 0)) if shared else held


def _list_charges(accounts: Iterable[BudgetAccount], cost: MessageCost, day: int) -> Iterator[AccountCharge]:
    """Charges of one message to the accounts that count it."""
    for account in accounts:
        if account.topic not in {"", cost.topic} or (account.topic == "" and cost.topic != QUESTIONS_TOPIC):
            continue
        if account.audits and not cost.audit:
            continue
        if not (type(account.limit) is type(account.period_days) is int and account.period_days > 0):
            raise TypeError  # infinity is no limit
        amount = _amount_charged(account, cost)
        if amount:
            key = f"{account.key}{SUBJECT_SEPARATOR}{cost.subject}" if account.subject and cost.subject else account.key
            yield AccountCharge(key, day // account.period_days, amount, account.limit)


def _amount_charged(account: BudgetAccount, cost: MessageCost) -> int:
    """Amount in the account's unit."""
    if account.coin is AccountUnit.BYTES:
        return cost.size_bytes
    if account.coin is AccountUnit.COST:
        return cost.price
    if account.coin is AccountUnit.ENERGY:
        return cost.energy_mj
    if account.coin is AccountUnit.PRIVACY and type(account.each) is int and account.each > 0:
        return account.each * cost.releases
    raise TypeError


def add_charges(spend: BudgetSpend, charges: Iterable[AccountCharge], day: int) -> BudgetSpend:
    """Totals with these charges; older periods of the same accounts are dropped.

    A lost subject's account starts at what `_amount_held` says, or a second charge would find it nearly empty.
    """
    totals = dict(spend.totals)
    for each in charges:
        old = [at for at in totals if at[0] == each.key and at[1] < each.period]
        for at in old:
            del totals[at]
        totals[each.key, each.period] = _amount_held(totals, each) + each.amount
    return BudgetSpend(max(day, spend.day), totals, spend.known)


def remove_charges(spend: BudgetSpend, charges: Iterable[AccountCharge]) -> BudgetSpend:
    """Totals as if these charges had not been made: for a message that was never recorded, and so never left."""
    totals = dict(spend.totals)
    for each in charges:
        held = totals.get((each.key, each.period), 0)
        totals[each.key, each.period] = max(0, held - each.amount)
    return BudgetSpend(spend.day, totals, spend.known)


def list_remaining(accounts: Iterable[BudgetAccount], spend: BudgetSpend, day: int) -> dict[str, tuple[int, int]]:
    """Remaining amount and limit of each account; nothing remains where the past is not known."""
    latest = max(day, spend.day)
    held = {a.key: spend.totals.get((a.key, latest // a.period_days), 0) for a in accounts}
    return {a.key: (max(0, a.limit - held[a.key]) if spend.known else 0, a.limit) for a in accounts}
