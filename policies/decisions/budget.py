"""Budgets: accounts of bytes, cost and privacy, charged before anything is sent and never refunded. Pure.

Rule: every account that the terms name must hold the charge, or nothing leaves and none is charged. A clock that goes
back opens no older period; an account whose past is not known holds nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from policies.model.policy import Account, Coin, Terms
from policies.model.reasons import FAULTS, Denied, Why
from wire.protocol.codec import MAX_FRAME_BYTES

QUESTIONS = "q"  # the topic of questions
SUBJECT = "/s/"  # in the key of one subject's account; at its end, what every subject's holds at least
_NOTHING: Mapping[tuple[str, int], int] = MappingProxyType({})


class Spend(msgspec.Struct, frozen=True):
    """Amounts charged so far: `totals` by account and number of its period; `day`: the latest that was charged on.

    `known` False: an earlier ledger of this device is lost, and the hub has not yet said what it held.
    """

    day: int = 0
    totals: Mapping[tuple[str, int], int] = _NOTHING
    known: bool = True

    @classmethod
    def of(cls, day: int, size_bytes: int) -> "Spend":
        """Spend of `size_bytes` on `day`, and nothing else."""
        return cls(day, {(Coin.BYTES.value, day): size_bytes})

    @property
    def bytes(self) -> int:
        """Bytes charged on `day`, whatever the rule."""
        return self.totals.get((Coin.BYTES.value, self.day), 0)


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Cost of one message. `size_bytes`: the whole frame on the link, 0 for one that was charged before.

    `price`: the hub's, in millionths; `releases`: noised fields; `audit`: asked at random alone; `subject`: whom it is
    about, as a keyed hash in hex, or "".
    """

    size_bytes: int
    price: int = 0
    releases: int = 0
    audit: bool = False
    topic: str = QUESTIONS
    subject: str = ""


class Charge(msgspec.Struct, frozen=True, gc=False):
    """Charge of `amount` to an account in one of its periods, which then holds at most `limit`."""

    key: str
    period: int
    amount: int
    limit: int


class Charged(msgspec.Struct, frozen=True):
    """New totals, and the charges that were added."""

    spend: Spend
    charges: tuple[Charge, ...]


def charge(terms: Terms, spend: Spend, cost: Cost, day: int) -> Charged | Denied:
    """Charge a message to all accounts that apply, or deny it.

    `day`: days since 1970, UTC. Denied (budget) if one account would exceed its limit or the past is not known; denied
    (too big) above `MAX_FRAME_BYTES`. Bytes count whole frames, cost millionths, privacy units of the account.
    """
    try:
        return _charge(terms, spend, cost, max(day, spend.day))
    except FAULTS as error:
        return Denied(Why.DENIED_POLICY_ERROR, f"budget: {type(error).__name__}")


def _charge(terms: Terms, spend: Spend, cost: Cost, day: int) -> Charged | Denied:
    if cost.size_bytes < 0 or cost.price < 0 or cost.releases < 0:
        return Denied(Why.DENIED_POLICY_ERROR, "budget: a negative count")
    if cost.size_bytes > MAX_FRAME_BYTES:
        return Denied(Why.DENIED_TOO_BIG, f"{cost.size_bytes} bytes, at most {MAX_FRAME_BYTES} in one message")
    if not cost.size_bytes:
        return Charged(spend, ())
    if not spend.known:
        return Denied(Why.DENIED_BUDGET, "the record of past spending is lost, and the hub has not sent it yet")
    charges = tuple(_charges(terms.accounts, cost, day))
    if cost.topic == QUESTIONS and not any(each.key == Coin.BYTES for each in charges):
        raise TypeError  # every document has that account
    for each in charges:
        held = _held(spend, each)
        total = held + each.amount
        if not 0 <= held <= total <= each.limit:
            return Denied(Why.DENIED_BUDGET, f"account {each.key}: {total} in this period, at most {each.limit}")
    return Charged(added(spend, charges, day), charges)


def _held(spend: Spend, charge: Charge) -> int:
    """Amount in the account.

    Of a subject whose account was lost: as much as the fullest of all subjects' accounts held.
    """
    held = spend.totals.get((charge.key, charge.period), 0)
    every, of, subject = charge.key.partition(SUBJECT)
    return max(held, spend.totals.get((every + of, charge.period), 0)) if subject else held


def _charges(accounts: Iterable[Account], cost: Cost, day: int) -> Iterator[Charge]:
    """Charges of one message to the accounts that count it."""
    for account in accounts:
        if account.topic not in {"", cost.topic} or (account.topic == "" and cost.topic != QUESTIONS):
            continue
        if account.audits and not cost.audit:
            continue
        if not (type(account.limit) is type(account.period_days) is int and account.period_days > 0):
            raise TypeError  # infinity is no limit
        amount = _amount(account, cost)
        if amount:
            key = f"{account.key}{SUBJECT}{cost.subject}" if account.subject and cost.subject else account.key
            yield Charge(key, day // account.period_days, amount, account.limit)


def _amount(account: Account, cost: Cost) -> int:
    """Amount in the account's unit."""
    if account.coin is Coin.BYTES:
        return cost.size_bytes
    if account.coin is Coin.COST:
        return cost.price
    if account.coin is Coin.PRIVACY and type(account.each) is int and account.each > 0:
        return account.each * cost.releases
    raise TypeError


def added(spend: Spend, charges: Iterable[Charge], day: int) -> Spend:
    """Totals with these charges; older periods of the same accounts are dropped."""
    totals = dict(spend.totals)
    for each in charges:
        old = [at for at in totals if at[0] == each.key and at[1] < each.period]
        for at in old:
            del totals[at]
        totals[each.key, each.period] = totals.get((each.key, each.period), 0) + each.amount
    return Spend(max(day, spend.day), totals, spend.known)


def without(spend: Spend, charges: Iterable[Charge]) -> Spend:
    """Totals as if these charges had not been made: for a message that was never recorded, and so never left."""
    totals = dict(spend.totals)
    for each in charges:
        held = totals.get((each.key, each.period), 0)
        totals[each.key, each.period] = max(0, held - each.amount)
    return Spend(spend.day, totals, spend.known)


def left(accounts: Iterable[Account], spend: Spend, day: int) -> dict[str, tuple[int, int]]:
    """Remaining amount and limit of each account; nothing remains where the past is not known."""
    latest = max(day, spend.day)
    held = {a.key: spend.totals.get((a.key, latest // a.period_days), 0) for a in accounts}
    return {a.key: (max(0, a.limit - held[a.key]) if spend.known else 0, a.limit) for a in accounts}
