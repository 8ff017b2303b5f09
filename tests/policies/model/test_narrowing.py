"""Two sets of accounts together: all of both, each with the smaller numbers."""

import pytest

from policies.model.narrowing import meet_accounts
from policies.model.policy import AccountUnit, BudgetAccount

BYTES = next(iter(AccountUnit))


@pytest.mark.parametrize("field", ["limit", "each"])
@pytest.mark.parametrize("pair", [(3, 5), (5, 3), (4, 4), (0, 2)])
def test_of_two_accounts_of_one_key_each_number_is_the_smaller_one(field, pair):
    accounts = [BudgetAccount("a", BYTES, **{"limit": 10, "each": 7, field: number}) for number in pair]
    (met,) = meet_accounts(accounts)
    assert met == BudgetAccount("a", BYTES, **{"limit": 10, "each": 7, field: min(pair)})


@pytest.mark.parametrize("pair", [(True, True), (True, False), (False, True), (False, False)])
def test_an_account_is_per_subject_only_where_both_say_so(pair):
    (met,) = meet_accounts([BudgetAccount("a", BYTES, 10, subject=subject) for subject in pair])
    assert met.subject is all(pair)


def test_accounts_of_different_keys_all_hold_in_the_order_of_their_keys():
    accounts = [BudgetAccount(key, BYTES, limit) for key, limit in (("b", 3), ("a", 9), ("b", 2))]
    assert meet_accounts(accounts) == (BudgetAccount("a", BYTES, 9), BudgetAccount("b", BYTES, 2))
