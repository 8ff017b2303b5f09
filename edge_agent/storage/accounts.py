"""SQL of the table `accounts`: what was charged, by account and period.

Rule: a charge is committed before anything is sent. No total is reduced for what may have left, and none beyond its
limit is written, whatever another process has charged meanwhile.
"""

import sqlite3
from collections.abc import Iterable

from policies.decisions.budget import SUBJECT_SEPARATOR, AccountCharge, BudgetSpend, shared_account_key
from policies.model.policy import AccountUnit
from wire.protocol.messages import SpendTotals

_ADD_CHARGE = (
    "insert into accounts values(?,?,?) on conflict(key,period) do update set amount=max(amount,?)+? "
    "where max(amount,?)+?<=?"
)
_RAISE_TOTAL = (
    "insert into accounts values(?,?,?) on conflict(key,period) do update set amount=max(amount,excluded.amount)"
)
_KEPT_PERIODS = 400


class OverdrawnError(ValueError):
    """A charge exceeds its limit: another process has charged the account, or its ledger was replaced."""


def add_charges(db: sqlite3.Connection, charges: Iterable[AccountCharge]) -> None:
    """Add the charges. OverdrawnError if one exceeds its limit; the caller's transaction is then rolled back."""
    for each in charges:
        least = _read_least(db, each)
        new = (each.key, each.period, least + each.amount)
        raised = (least, each.amount, least, each.amount, each.limit)
        if least + each.amount > each.limit or db.execute(_ADD_CHARGE, new + raised).rowcount != 1:
            raise OverdrawnError(each.key)


def _read_least(db: sqlite3.Connection, charge: AccountCharge) -> int:
    """How much the account held at least: of a subject whose account was lost, what the fullest of all held."""
    shared = shared_account_key(charge.key)
    if shared is None:
        return 0
    row = db.execute("select amount from accounts where key=? and period=?", (shared, charge.period)).fetchone()
    return row[0] if row else 0


def refund_charges(db: sqlite3.Connection, charges: Iterable[AccountCharge]) -> None:
    """Refund a question that was denied before it was ever sent: the only charges that are undone."""
    rows = [(each.amount, each.key, each.period) for each in charges]
    db.executemany("update accounts set amount=max(0,amount-?) where key=? and period=?", rows)


def read_spend(db: sqlite3.Connection) -> BudgetSpend:
    """The newest period of each account."""
    rows = db.execute("select key, max(period), amount from accounts group by key").fetchall()
    day = max((period for key, period, _ in rows if key == AccountUnit.BYTES), default=0)
    return BudgetSpend(day, {(key, period): amount for key, period, amount in rows})


def read_hub_totals(db: sqlite3.Connection) -> SpendTotals:
    """Totals as reported to the hub: of all subjects' accounts only the fullest, without its subject."""
    told: dict[tuple[str, int], int] = {}
    for (key, period), amount in read_spend(db).totals.items():
        name = key.split(SUBJECT_SEPARATOR, 1)[0] + (SUBJECT_SEPARATOR if SUBJECT_SEPARATOR in key else "")
        told[name, period] = max(told.get((name, period), 0), amount)
    return tuple((key, period, amount) for (key, period), amount in sorted(told.items()))


def raise_totals(db: sqlite3.Connection, totals: SpendTotals) -> None:
    """Raise totals to what the hub remembers, so that a lost or restored ledger cannot spend twice."""
    db.executemany(_RAISE_TOTAL, totals)


def prune_periods(db: sqlite3.Connection) -> None:
    """Delete periods that lie more than 400 before the newest of their account."""
    db.execute(
        "delete from accounts where period < (select max(period) from accounts a where a.key=accounts.key) - ?",
        (_KEPT_PERIODS,),
    )
