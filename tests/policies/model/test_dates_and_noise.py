"""Days and dates, against the calendar of the standard library, and accounts of noise against the closed form."""

from datetime import date
from math import erfc, exp, sqrt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model.context import date_to_day, day_to_date
from policies.model.differential_privacy import (
    build_noise_steps,
    build_privacy_accounts,
    compute_gaussian_delta,
    count_releases,
    count_releases_within,
    price_release,
)
from policies.model.policy import NoiseTerms, PrivacyUnit, TransformKind, TransformSpec
from tests.policies.model.gaussian_epsilon import compute_gaussian_epsilon
from wire.protocol.messages import TensorDType

EPOCH = date(1970, 1, 1).toordinal()
FIRST, LAST = date(1, 3, 1), date(9999, 12, 31)


@given(st.dates(FIRST, LAST))
def test_every_day_has_its_date_and_every_date_its_day(day: date) -> None:
    assert date_to_day(day.isoformat()) == day.toordinal() - EPOCH
    assert day_to_date(day.toordinal() - EPOCH) == day.isoformat()


@pytest.mark.parametrize("year", [1600, 1700, 1970, 1999, 2000, 2024, 2100, 2399, 2400])
def test_the_days_around_each_month_of_ordinary_leap_and_centurial_years(year: int) -> None:
    for number in range(date(year, 1, 1).toordinal(), date(year, 12, 31).toordinal() + 1):
        assert day_to_date(number - EPOCH) == date.fromordinal(number).isoformat()


@pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 10.0), (2.5, 37.0), (0.1, 400.0)])
def test_an_account_holds_as_many_releases_as_its_epsilon_and_a_charge_is_never_rounded_down(epsilon, sigma):
    delta = 1e-6
    most = count_releases_within(epsilon, sigma, delta)
    assert compute_gaussian_epsilon(sigma, most, delta) <= epsilon < compute_gaussian_epsilon(sigma, most + 1, delta)
    limit, each = price_release(epsilon, delta, sigma)
    assert isinstance(each, int)
    assert (100_000.0 / sigma) ** 2 <= each < (100_000.0 / sigma) ** 2 + 1
    assert most - 1 <= limit // each <= most
    assert price_release(epsilon, delta, 1e9)[1] == 1, "the finest charge"


@pytest.mark.parametrize("epsilon", [19.0, 21.0, 25.0, 30.0, 35.0])
def test_the_series_for_far_tails_gives_the_delta_of_the_closed_form(epsilon: float) -> None:
    def tail(x: float) -> float:
        return erfc(x / sqrt(2)) / 2

    assert compute_gaussian_delta(epsilon, 1.0) == pytest.approx(
        tail(epsilon - 0.5) - exp(epsilon) * tail(epsilon + 0.5), rel=1e-6, abs=0
    )


def test_audits_have_their_share_of_the_account_and_each_period_its_own_key() -> None:
    dp = NoiseTerms(
        unit=PrivacyUnit.SUBJECT, clip_norm=1.0, sigma=1.0, delta=1e-6, epsilon=1.0, period_days=30, audit_share=0.25,
        random_ask=None, limit=1000, each=3,
    )  # fmt: skip
    whole, share = build_privacy_accounts(dp)
    assert (whole.key, whole.limit, whole.each, whole.audits, whole.subject) == ("privacy/30d", 1000, 3, False, True)
    assert (share.key, share.limit, share.each, share.audits, share.subject) == (
        "privacy/30d/audits", 250, 3, True, True,
    )  # fmt: skip


NOISE = NoiseTerms(PrivacyUnit.RECORD, 2.0, 4.0, 1e-6, 1.0, 7, 0.25, None, 1000, 300)


def test_as_many_releases_as_an_account_pays_for_may_leave_and_of_audits_their_share() -> None:
    assert count_releases(NOISE) == 3
    assert [count_releases(NOISE, share) for share in (0.6, 0.59, 0.0)] == [2, 1, 0]
    assert not build_privacy_accounts(NOISE)[0].subject
    assert [each.period_days for each in build_privacy_accounts(NOISE)] == [7, 7]


@pytest.mark.parametrize("dtype", list(TensorDType))
def test_noise_is_of_twice_the_norm_and_whole_numbers_need_enough_of_it(dtype: TensorDType) -> None:
    steps = TransformSpec(TransformKind.CLIP_NORM, high=2.0), TransformSpec(TransformKind.NOISE, step=16.0)
    whole = dtype in {TensorDType.UINT8, TensorDType.INT8}
    floating = dtype in {TensorDType.FP32, TensorDType.FP16}
    assert build_noise_steps(NOISE, dtype) == (steps if whole or floating else None)
    finer = build_noise_steps(msgspec.structs.replace(NOISE, sigma=3.99), dtype)
    assert (finer is not None) == floating
