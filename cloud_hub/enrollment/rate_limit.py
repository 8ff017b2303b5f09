"""Rate limit for enrolment and renewal attempts: token buckets per address for failures, and one for everything.

Rule: at most 1024 addresses are remembered, whoever comes.
"""

from typing import NamedTuple

import msgspec

from policies.serving.admission import RateLimit, TokenBucket, settle_bucket, take_from_share

_MAX_ADDRESSES = 1024


class AttemptLimiter:
    """Limits how fast tokens and proofs can be tried: a bucket per address for failures, one for all attempts.

    Rates are per second, bursts are numbers of attempts. A hub without this would check tokens as fast as an attacker
    can send them.
    """

    def __init__(self, rate_per_s: float, burst: float, failures_per_s: float, failures: float) -> None:
        self._rate = RateLimit(rate_per_s, burst)
        self._failure_rate = RateLimit(failures_per_s, failures)
        self._all = TokenBucket(burst, 0.0)
        self._failed: dict[str, TokenBucket] = {}

    def divide_rates(self, hubs: int, now: float) -> None:
        """Allow so many hubs together what one alone allows: whoever tries at each of them gains nothing."""
        self._all = settle_bucket(self._all, self._rate, now)
        self._failed = {name: settle_bucket(each, self._failure_rate, now) for name, each in self._failed.items()}
        self._rate = msgspec.structs.replace(self._rate, hubs=hubs)
        self._failure_rate = msgspec.structs.replace(self._failure_rate, hubs=hubs)

    @property
    def remembered_addresses(self) -> int:
        """Number of addresses with a failure on record."""
        return len(self._failed)

    def admit_attempt(self, address: str, now: float) -> bool:
        """Whether this attempt may be checked. `now` in seconds, monotonic."""
        bucket = self._failed.get(address)
        if bucket is not None and take_from_share(bucket, self._failure_rate, now, 1.0) is None:
            return False
        after = take_from_share(self._all, self._rate, now, 1.0)
        if after is not None:
            self._all = after
        return after is not None

    def record_failure(self, address: str, now: float) -> None:
        """Charge a failed attempt to its address."""
        bucket = self._failed.pop(address, TokenBucket(self._failure_rate.share, now))
        if len(self._failed) >= _MAX_ADDRESSES:
            self._failed.pop(next(iter(self._failed)))
        self._failed[address] = take_from_share(bucket, self._failure_rate, now, 1.0) or bucket


class AttemptGates(NamedTuple):
    """A limit for each purpose: who tries keys at the console keeps no device from enrolling, nor from renewing."""

    enrol: AttemptLimiter
    renew: AttemptLimiter
    sign_in: AttemptLimiter
