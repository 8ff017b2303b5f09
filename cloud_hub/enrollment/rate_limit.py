"""Rate limit for enrolment, renewal and sign-in attempts: a share for each caller, and one limit for everybody.

A caller is an address; a device that has proved itself is a caller of its own at the address where it did.
Rule: half of what everybody together may do is only for callers within their own share, which is a thirty-second. So
sixteen callers at least have their shares, whatever others try, and one alone has half of everything at once.
Rule: what is remembered of callers is bounded; those that came least lately are forgotten first.
"""

from collections import OrderedDict
from typing import NamedTuple, TypeVar

import msgspec

from policies.serving.admission import RateLimit, TokenBucket, settle_bucket, take_from_share
from wire.http.callers import find_network

SHARES = 32  # of everything, that callers may have
SHARED_PART = 0.5  # of everything, that any caller may use up
MAX_CALLERS = 4096
MAX_FAILED = 1024
MAX_PROVEN = 16_384

K = TypeVar("K")
V = TypeVar("V")


class AttemptSource(NamedTuple):
    """Who has a share of attempts. `device`: "" for all that did not prove who they are at this address."""

    network: str
    device: str


class AttemptLimiter:
    """Limits how fast tokens and proofs can be tried: by each caller, failures of each caller, and all attempts.

    Rates are per second, bursts are numbers of attempts. A hub without this would check tokens as fast as an attacker
    can send them.
    """

    def __init__(self, rate_per_s: float, burst: float, failures_per_s: float, failures: float) -> None:
        self._rate = RateLimit(rate_per_s, burst)
        self._share = RateLimit(rate_per_s / SHARES, max(1.0, burst / SHARES))
        self._failure_rate = RateLimit(failures_per_s, failures)
        self._all = TokenBucket(burst, 0.0)
        self._used: OrderedDict[AttemptSource, TokenBucket] = OrderedDict()
        self._failed: OrderedDict[AttemptSource, TokenBucket] = OrderedDict()
        self._proven: OrderedDict[str, str] = OrderedDict()  # network at which a device proved itself last

    def divide_rates(self, hubs: int, now: float) -> None:
        """Allow so many hubs together what one alone allows: whoever tries at each of them gains nothing."""
        self._all = settle_bucket(self._all, self._rate, now)
        for buckets, rate in ((self._used, self._share), (self._failed, self._failure_rate)):
            for source, bucket in buckets.items():
                buckets[source] = settle_bucket(bucket, rate, now)
        self._rate, self._share, self._failure_rate = (
            msgspec.structs.replace(rate, hubs=hubs) for rate in (self._rate, self._share, self._failure_rate)
        )

    @property
    def remembered_addresses(self) -> int:
        """Number of callers with a failure on record."""
        return len(self._failed)

    def admit_attempt(self, address: str, now: float, device: str = "") -> bool:
        """Whether this attempt may be checked.

        `now` in seconds, monotonic. `device`: whose proof the attempt carries, as it says itself.
        """
        source = self._find_source(address, device)
        failed = self._failed.get(source)
        if failed is not None and take_from_share(failed, self._failure_rate, now, 1.0) is None:
            return False
        own = self._take_own(source, now)
        after = take_from_share(self._all, self._rate, now, 1.0)
        if after is None or (own is None and after.tokens < self._count_kept()):
            return False
        self._all = after
        if own is not None:
            _remember(self._used, source, own, MAX_CALLERS)
        return True

    def record_failure(self, address: str, now: float, device: str = "") -> None:
        """Charge a failed attempt to its caller."""
        source = self._find_source(address, device)
        bucket = self._failed.get(source, TokenBucket(self._failure_rate.share, now))
        left = take_from_share(bucket, self._failure_rate, now, 1.0) or bucket
        _remember(self._failed, source, left, MAX_FAILED)

    def record_proof(self, address: str, device: str) -> None:
        """Note that a device proved itself: its next attempts at this address have a share of their own."""
        _remember(self._proven, device, find_network(address), MAX_PROVEN)

    def _find_source(self, address: str, device: str) -> AttemptSource:
        network = find_network(address)
        return AttemptSource(network, device if device and self._proven.get(device) == network else "")

    def _take_own(self, source: AttemptSource, now: float) -> TokenBucket | None:
        return take_from_share(self._used.get(source, TokenBucket(self._share.share, now)), self._share, now, 1.0)

    def _count_kept(self) -> float:
        """Return what a caller beyond its share leaves to others; where there is so little, one attempt is for any."""
        return min(SHARED_PART * self._rate.share, self._rate.share - 1.0)


def _remember(known: "OrderedDict[K, V]", key: K, value: V, most: int) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)


class AttemptGates(NamedTuple):
    """A limit for each purpose: who tries keys at the console keeps no device from enrolling, nor from renewing."""

    enrol: AttemptLimiter
    renew: AttemptLimiter
    sign_in: AttemptLimiter
