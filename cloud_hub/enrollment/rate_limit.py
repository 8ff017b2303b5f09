"""Rate limit for enrolment and renewal attempts: token buckets per address for failures, and one for everything.

Rule: at most 1024 addresses are remembered, whoever comes.
"""

from policies.serving.admission import TokenBucket, take_token

_MAX_ADDRESSES = 1024


class AttemptLimiter:
    """Limits how fast tokens and proofs can be tried: a bucket per address for failures, one for all attempts.

    Rates are per second, bursts are numbers of attempts. A hub without this would check tokens as fast as an attacker
    can send them.
    """

    def __init__(self, rate_per_s: float, burst: float, failures_per_s: float, failures: float) -> None:
        self._rate = (rate_per_s, burst)
        self._failure_rate = (failures_per_s, failures)
        self._all = TokenBucket(burst, 0.0)
        self._failed: dict[str, TokenBucket] = {}

    @property
    def remembered_addresses(self) -> int:
        """Number of addresses with a failure on record."""
        return len(self._failed)

    def admit_attempt(self, address: str, now: float) -> bool:
        """Whether this attempt may be checked. `now` in seconds, monotonic."""
        bucket = self._failed.get(address)
        if bucket is not None and take_token(bucket, *self._failure_rate, now) is None:
            return False
        after = take_token(self._all, *self._rate, now)
        if after is not None:
            self._all = after
        return after is not None

    def record_failure(self, address: str, now: float) -> None:
        """Charge a failed attempt to its address."""
        bucket = self._failed.pop(address, TokenBucket(self._failure_rate[1], now))
        if len(self._failed) >= _MAX_ADDRESSES:
            self._failed.pop(next(iter(self._failed)))
        self._failed[address] = take_token(bucket, *self._failure_rate, now) or bucket
