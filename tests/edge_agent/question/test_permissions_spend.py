"""Recorded spending is never reduced: in memory, in the table, and in what the hub remembers."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_agent.question.permissions import SpendTracker
from edge_agent.storage import accounts
from edge_agent.storage.accounts import OverdrawnError
from edge_agent.storage.schema import SCHEMA, migrate_schema
from policies.decisions import budget
from policies.decisions.budget import AccountCharge, BudgetSpend, ChargeResult

DAY = 20_000
KEYS = st.sampled_from(["bytes", "cost", "privacy/30d"])
TOTALS = st.lists(st.tuples(KEYS, st.integers(DAY, DAY + 1), st.integers(0, 1000)), max_size=6).map(tuple)
CHARGES = st.lists(st.builds(AccountCharge, KEYS, st.just(DAY), st.integers(1, 400), st.just(1000)), max_size=6)


def tracker(*, mirrored: bool = True, known: bool = True, **totals: int) -> SpendTracker:
    made = SpendTracker()
    made.load_spend(
        BudgetSpend(DAY, {(key, DAY): amount for key, amount in totals.items()}, known=known), mirrored=mirrored
    )
    return made


def charged(held: BudgetSpend, *charges: AccountCharge) -> ChargeResult:
    return ChargeResult(budget.add_charges(held, charges, DAY), charges)


@given(TOTALS, CHARGES, TOTALS)
def test_no_word_of_the_hub_lowers_a_total(first, charges, second):
    held = tracker(mirrored=False)
    before: dict[tuple[str, int], int] = {}
    for step in (first, charges, second):
        if step is charges:
            for each in charges:
                held.set_spend(charged(held.current, each).spend)
        else:
            held.merge_hub_totals(step, complete=True)
        now = dict(held.current.totals)
        assert all(now.get(at, 0) >= amount for at, amount in before.items() if at[1] >= DAY)
        before = now


def test_what_was_charged_since_the_start_comes_on_top_of_what_the_hub_remembers():
    held = tracker(mirrored=False, bytes=100)
    held.set_spend(charged(held.current, AccountCharge("bytes", DAY, 50, 1000)).spend)
    assert held.merge_hub_totals((("bytes", DAY, 900),), complete=True) == (("bytes", DAY, 950),)
    assert held.mirrored
    assert held.merge_hub_totals((("bytes", DAY, 950),), complete=True) == ()


def test_a_ledger_that_is_whole_counts_although_the_hubs_report_is_not_complete_yet():
    held = tracker(mirrored=False, bytes=100)
    held.merge_hub_totals((("bytes", DAY, 1),), complete=False)
    assert (held.current.known, held.mirrored) == (True, False)


def test_a_lost_ledger_stays_exhausted_until_the_mirror_is_complete():
    held = tracker(mirrored=False, known=False)
    held.merge_hub_totals((("bytes", DAY, 1),), complete=False)
    assert (held.current.known, held.mirrored) == (False, False)
    held.merge_hub_totals((("bytes", DAY, 1),), complete=True)
    assert (held.current.known, held.mirrored) == (True, True)


@pytest.mark.parametrize(
    ("told", "day"),
    [
        ((), DAY),
        ((("bytes", DAY + 2, 1), ("bytes", DAY + 1, 1)), DAY + 2),
        ((("bytes", DAY - 5, 1),), DAY),
        ((("cost", DAY + 9, 1), ("privacy/30d", 666, 1)), DAY),  # a period of theirs is no day
    ],
)
def test_the_day_is_the_latest_that_bytes_were_spent_on_as_far_as_the_hub_or_the_device_knows(told, day):
    held = tracker(mirrored=False)
    held.merge_hub_totals(told, complete=True)
    assert held.current.day == day


def test_of_each_total_the_greater_counts_and_one_that_is_nothing_stays_nothing():
    held = tracker(bytes=0, cost=5)
    held.raise_to_stored(BudgetSpend(DAY + 1, {("cost", DAY): 3, ("images", DAY): 0, ("cost", DAY + 1): 2}))
    totals = {("bytes", DAY): 0, ("cost", DAY): 5, ("images", DAY): 0, ("cost", DAY + 1): 2}
    assert held.current == BudgetSpend(DAY + 1, totals)


@pytest.fixture
def db():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        migrate_schema(made, "")
        yield made


@given(CHARGES)
def test_no_account_ever_holds_more_than_its_limit(charges):
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate_schema(db, "")
        for each in charges:
            db.execute("begin")
            try:
                accounts.add_charges(db, (each,))
                db.execute("commit")
            except OverdrawnError:
                db.execute("rollback")
        assert all(amount <= 1000 for amount in accounts.read_spend(db).totals.values())


def test_of_subjects_accounts_the_hub_hears_the_fullest_and_no_subject(db):
    accounts.add_charges(
        db, [AccountCharge(f"privacy/30d/s/{who}", 7, amount, 99) for who, amount in (("aa", 3), ("bb", 9))]
    )
    accounts.add_charges(db, [AccountCharge("bytes", DAY, 5, 10)])
    assert accounts.read_hub_totals(db) == (("bytes", DAY, 5), ("privacy/30d/s/", 7, 9))


def test_a_lost_ledger_takes_every_subject_for_the_fullest():
    held = tracker(mirrored=False, known=False)
    held.merge_hub_totals((("privacy/30d/s/", 7, 90),), complete=True)
    held.merge_hub_totals((("privacy/30d/s/", 7, 99),), complete=True)  # of later: we know whose that is
    assert held.current.totals == {("privacy/30d/s/", 7): 90}


def test_a_lost_subjects_account_starts_at_the_fullest_in_the_table_as_in_memory(db):
    accounts.raise_totals(db, (("privacy/30d/s/", 7, 90),))
    charge = AccountCharge("privacy/30d/s/ab", 7, 10, 100)
    held = accounts.read_spend(db)
    accounts.add_charges(db, [charge])
    assert accounts.read_spend(db).totals == budget.add_charges(held, [charge], DAY).totals
    assert accounts.read_spend(db).totals["privacy/30d/s/ab", 7] == 100
    with pytest.raises(OverdrawnError):
        accounts.add_charges(db, [AccountCharge("privacy/30d/s/ab", 7, 1, 100)])
    with pytest.raises(OverdrawnError):
        accounts.add_charges(db, [AccountCharge("privacy/30d/s/cd", 7, 11, 100)])


def test_what_an_older_version_has_charged_is_still_charged():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for version, script in enumerate(SCHEMA[:2], 1):
            db.executescript(f"{script};pragma user_version={version}")
        db.execute("insert into spend values(?,700)", (DAY,))
        migrate_schema(db, "")
        assert accounts.read_spend(db) == BudgetSpend.spent_bytes(DAY, 700)


def test_a_charge_is_taken_back_only_as_far_as_there_is_one(db):
    charge = AccountCharge("bytes", DAY, 5, 10)
    accounts.add_charges(db, [charge])
    accounts.refund_charges(db, [charge, charge])
    assert accounts.read_spend(db) == BudgetSpend.spent_bytes(DAY, 0)
    accounts.raise_totals(db, (("bytes", DAY, 8),))
    accounts.raise_totals(db, (("bytes", DAY, 3),))
    assert accounts.read_spend(db).bytes == 8
