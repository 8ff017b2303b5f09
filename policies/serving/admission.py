"""Admission control of the hub: queue a question, or refuse it with a time to retry. Pure.

A refusal costs nothing: nothing is written for it. Rule: every queue is bounded. The last places are held back for
urgent bands, and some for each tenant; a tenant or device that has much open may have less of what is left (dynamic
thresholds, A. Choudhury and E. Hahne, IEEE/ACM ToN 1998); and refused callers get different retry times, when a place
is likely to be free.
"""

from math import ceil, inf

import msgspec

from policies.serving.fair_queue import BAND_COUNT, HIGH
from wire.protocol.messages import RefusalReason

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
# of its caller's patience may be spent waiting, by the best guess; the rest is for computing and bad luck
PATIENCE_SHARE = 0.7
TENANT_KEENNESS = 4.0  # times what is left of the queue: n greedy tenants have 4 / (4 n + 1) of it each
DEVICE_KEENNESS = 1.0
OWN_PART = 1 / 8  # of all places, that are divided evenly among tenants and lent to none ...
OWN_TENANTS = 16  # ... as long as they are no more than these


class AdmissionLoad(msgspec.Struct, frozen=True, gc=False):
    """Load of the hub now, and what the sender has open.

    `queued`: questions in the queue; `device_open`, `tenant_open`: of this sender. `served_per_s`: what the engines
    manage (0 = not known yet). `ahead`: questions served before this one; `budget_s`: after so many seconds the caller
    has hung up (inf = will take a late answer). `tenants`: how many have something open.
    """

    queued: int
    device_open: int
    draining: bool = False
    tenant_open: int = 0
    band: int = HIGH
    served_per_s: float = 0.0
    ahead: float = 0.0
    budget_s: float = inf
    tenants: int = 0


class AdmissionLimits(msgspec.Struct, frozen=True, gc=False):
    """Limits of admission.

    `served_per_s` is used until engines were measured; `max_wait_s`: nobody is let in to wait longer.
    `held_back`: share of the queue that the lowest band may not fill; the bands between have less held back.
    """

    max_queued: int
    max_device_open: int
    max_wait_s: float
    held_back: float
    served_per_s: float = 500.0


class AdmitQuestion(msgspec.Struct, frozen=True, gc=False):
    """Admission: the question goes into the queue."""


class RefuseQuestion(msgspec.Struct, frozen=True, gc=False):
    """Refusal of a question. `final`: asking again is no use."""

    reason: RefusalReason
    retry_after_s: float
    final: bool = False


class TokenBucket(msgspec.Struct, frozen=True, gc=False):
    """Token bucket as a value: `tokens` left at time `at` (seconds)."""

    tokens: float
    at: float


class RateLimit(msgspec.Struct, frozen=True, gc=False):
    """Rate limit of a tenant at one of the `hubs` of its region, which share `rate_per_s` and `burst` evenly."""

    rate_per_s: float
    burst: float
    hubs: int = 1

    @property
    def share_per_s(self) -> float:
        """Tokens that one hub earns a second."""
        return self.rate_per_s / self.hubs

    @property
    def share(self) -> float:
        """Tokens that one hub may hold."""
        return self.burst / self.hubs

    def count_needed(self, count: float) -> float:
        """Tokens that must be there for a request of `count`: a full bucket is enough for any."""
        return min(count, self.share)


class RetrySchedule(msgspec.Struct, frozen=True, gc=False):
    """Schedule of retry times: the next refused caller is sent a time not before `at` (seconds)."""

    at: float = 0.0


_QUEUE = AdmitQuestion()
_DRAINING = RefuseQuestion(RefusalReason.DRAINING, 5.0)
_LEAST_OPEN_RETRY_S = 2.0  # of a device with too much open


def decide_admission(load: AdmissionLoad, limits: AdmissionLimits) -> AdmitQuestion | RefuseQuestion:
    """Decide whether to admit a question.

    Draining refuses all; then the queue counts, then the sender's share of it. A number that is NaN refuses.
    """
    if load.draining:
        return _DRAINING
    return _check_saturation(load, limits) or _check_flow_share(load, limits) or _QUEUE


def _check_saturation(load: AdmissionLoad, limits: AdmissionLimits) -> RefuseQuestion | None:
    """Refusal if the queue is full for this band, or the wait would exceed the caller's patience."""
    rate = estimate_service_rate(load, limits)
    if load.queued >= _compute_ceiling(load, limits):
        return RefuseQuestion(RefusalReason.BUSY, _clamp_retry(load.queued / rate))
    patience_s = min(PATIENCE_SHARE * load.budget_s, limits.max_wait_s)
    if not load.ahead / rate <= patience_s:
        return RefuseQuestion(RefusalReason.BUSY, _clamp_retry(load.ahead / rate - patience_s))
    return None


def _check_flow_share(load: AdmissionLoad, limits: AdmissionLimits) -> RefuseQuestion | None:
    """Refusal if the tenant or the device has more open than its share."""
    rate, places = estimate_service_rate(load, limits), compute_capacity(load, limits)
    if is_within_own(load, places):
        many = load.device_open >= limits.max_device_open
        return RefuseQuestion(RefusalReason.RATE, _LEAST_OPEN_RETRY_S) if many else None
    if load.tenant_open >= compute_flow_share(load.queued, places, TENANT_KEENNESS, places):
        return RefuseQuestion(RefusalReason.RATE, _clamp_retry(load.tenant_open / rate))
    if load.device_open >= compute_flow_share(load.queued, places, DEVICE_KEENNESS, limits.max_device_open):
        return RefuseQuestion(RefusalReason.RATE, _clamp_retry(max(_LEAST_OPEN_RETRY_S, load.device_open / rate)))
    return None


def estimate_service_rate(load: AdmissionLoad, limits: AdmissionLimits) -> float:
    """Questions served a second: as measured, or as configured before."""
    return load.served_per_s if 0 < load.served_per_s < inf else limits.served_per_s


def compute_capacity(load: AdmissionLoad, limits: AdmissionLimits) -> int:
    """Places in the queue: no more than are served within `max_wait_s`, at least one."""
    return max(1, min(limits.max_queued, int(estimate_service_rate(load, limits) * limits.max_wait_s)))


def compute_band_ceiling(band: int, places: int, held_back: float) -> int:
    """Queue length up to which this band is let in: all places for the highest, least for the lowest, at least one."""
    return max(1, ceil(places * (1.0 - held_back * band / (BAND_COUNT - 1))))


def is_within_own(load: AdmissionLoad, places: int) -> bool:
    """Whether the sender's tenant has less open than the places that are its own, in whatever band.

    So tenants that fill the queue, or call everything urgent, take these places from none. There are such places while
    no more tenants than `OWN_TENANTS` have something open.
    """
    own = max(1, int(OWN_PART * places / OWN_TENANTS))
    return load.tenants <= OWN_TENANTS and max(load.tenant_open, load.device_open) < own


def _compute_ceiling(load: AdmissionLoad, limits: AdmissionLimits) -> int:
    """Queue length up to which this sender is let in: all places are filled only by tenants within their own."""
    places = compute_capacity(load, limits)
    if is_within_own(load, places):
        return places
    ceiling = compute_band_ceiling(load.band, places, limits.held_back)
    return ceiling if load.tenants > OWN_TENANTS else min(ceiling, max(1, int((1.0 - OWN_PART) * places)))


def compute_flow_share(queued: int, places: int, keenness: float, most: int) -> int:
    """How much one flow may have open: `keenness` times what is left of the queue (Choudhury & Hahne 1998).

    Who has nothing open is always let in before one that has some, and one alone cannot fill the queue.
    """
    return max(1, min(most, int(keenness * (places - queued))))


def schedule_retry(
    line: RetrySchedule, refused: RefuseQuestion, per_s: float, now: float
) -> tuple[RetrySchedule, RefuseQuestion]:
    """Schedule the retry of a refused caller: as many a second as are served, from the refusal's time on.

    One time for all would bring all back at once. Beyond `MAX_RETRY_S` the schedule does not grow: those callers
    come back mixed. `per_s`: questions served a second; `now`: seconds.
    """
    at = max(line.at, now + refused.retry_after_s)
    if at - now >= MAX_RETRY_S:
        return line, RefuseQuestion(refused.reason, MAX_RETRY_S, refused.final)
    step_s = 1.0 / per_s if per_s > 0 else MIN_RETRY_S
    return RetrySchedule(at + step_s), RefuseQuestion(refused.reason, at - now, refused.final)


def take_token(
    bucket: TokenBucket, rate_per_s: float, burst: float, now: float, count: float = 1.0
) -> TokenBucket | None:
    """Take `count` tokens; returns the bucket after it, or None if they are not there.

    A clock that goes back adds nothing.
    """
    earned = max(0.0, now - bucket.at) * rate_per_s
    tokens = min(burst, bucket.tokens + earned)
    return TokenBucket(tokens - count, max(now, bucket.at)) if tokens >= count else None


def take_from_share(bucket: TokenBucket, limit: RateLimit, now: float, count: float) -> TokenBucket | None:
    """Take `count` tokens at one of a region's hubs; None if they are not there.

    A request of more than the hub may hold is let in when the bucket is full, and what is missing is owed: the hubs
    together never give more than the rate for long. Of more than the whole burst the burst is charged.
    """
    needed = limit.count_needed(count)
    left = take_token(bucket, limit.share_per_s, limit.share, now, needed)
    owed = min(count, limit.burst) - needed
    return left if left is None or owed <= 0 else TokenBucket(left.tokens - owed, left.at)


def settle_bucket(bucket: TokenBucket, limit: RateLimit, now: float) -> TokenBucket:
    """The bucket with what it has earned until now; to be called before its limit changes."""
    earned = max(0.0, now - bucket.at) * limit.share_per_s
    return TokenBucket(min(limit.share, bucket.tokens + earned), max(now, bucket.at))


def seconds_until_token(bucket: TokenBucket, rate_per_s: float, now: float, count: float = 1.0) -> float:
    """Seconds until `take_token` has `count` tokens again, within the bounds of every retry."""
    earned = max(0.0, now - bucket.at) * rate_per_s
    return _clamp_retry((count - bucket.tokens - earned) / rate_per_s)


def _clamp_retry(seconds: float) -> float:
    return min(MAX_RETRY_S, max(MIN_RETRY_S, seconds))
