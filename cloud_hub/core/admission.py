"""Admission control: whether a new question or web request may be queued, and when a refused one may try again. Pure.

Collects what `policies.serving.admission` needs to know (queue length, load of the tenant, throughput) and applies its
decision. Rule: a refusal writes nothing, and the state kept per tenant is bounded (`MAX_TENANTS`).
"""

from collections import OrderedDict
from math import inf
from typing import Any, Protocol, TypeVar

from cloud_hub.core.verification import FrameVerifier
from cloud_hub.system.settings import HubSettings
from policies.serving.admission import (
    AdmissionLimits,
    AdmissionLoad,
    RateLimit,
    RefuseQuestion,
    RetrySchedule,
    TokenBucket,
    decide_admission,
    schedule_retry,
    seconds_until_token,
    settle_bucket,
    take_from_share,
)
from policies.serving.fair_queue import HIGH, extract_tenant
from wire.protocol.messages import RefusalReason

OVERLOAD_LAG_S = 0.05
MAX_TENANTS = 4096  # remembered; the one that asked least lately goes first

V = TypeVar("V")


class OpenQuestions(Protocol):
    """Questions of devices in progress; implemented by `cloud_hub.core.context.QuestionMemory`.

    Those that are being looked up in the store are counted apart, by `cloud_hub.core.intake.StoreLookups`.
    """

    def __len__(self) -> int:
        """Return how many there are."""

    def count_for_device(self, device: str) -> int:
        """Return how many a device has."""

    def count_for_tenant(self, tenant: str) -> int:
        """Return how many a tenant's devices have."""

    @property
    def tenants(self) -> int:
        """Number of tenants that have some."""


class OpenSamples(Protocol):
    """Web requests in progress, and the engines' pace; implemented by `cloud_hub.core.scheduler.Batcher`, in samples.

    The queue of a language model implements it in tokens.
    """

    @property
    def web_open(self) -> int:
        """Samples in progress."""

    @property
    def tenants(self) -> int:
        """Number of tenants with samples in progress."""

    @property
    def served_per_s(self) -> float:
        """Throughput, 0 = not known yet."""

    @property
    def pressed(self) -> int:
        """Number of models that have more waiting than their engine takes at once."""

    def count_for_tenant(self, tenant: str) -> int:
        """Return a tenant's samples in progress."""

    def count_ahead(self, model: str, band: int, tenant: str) -> float:
        """Return how much is served before a new request of this band and tenant."""


class AdmissionControl:
    """Admission control of one hub: queue limits, fair shares and rate limits per tenant.

    Remembers per tenant a token bucket (rate limit) and the place in line that its last refused request was given.
    """

    def __init__(self, settings: HubSettings, memory: OpenQuestions, batcher: OpenSamples) -> None:
        self.draining = False
        self.open_until_s = inf  # what other hubs change is heard of up to then; hub time
        self._settings = settings
        self._memory = memory
        self._batcher = batcher
        self._limits = _make_limits(settings)
        self._lines: OrderedDict[str, RetrySchedule] = OrderedDict()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._rate = RateLimit(settings.tenant_rate_per_s, settings.tenant_burst)

    def replace_limits(self, settings: HubSettings, now: float) -> None:
        """Admit by these limits from now on; what tenants have earned until now stays theirs."""
        for tenant, bucket in self._buckets.items():
            self._buckets[tenant] = settle_bucket(bucket, self._rate, now)
        self._settings = settings
        self._limits = _make_limits(settings)
        self._rate = RateLimit(settings.tenant_rate_per_s, settings.tenant_burst, self._rate.hubs)

    def drain(self) -> None:
        """Refuse everything new from now on, with `RefusalReason.DRAINING`."""
        self.draining = True

    def divide_rates(self, hubs: int, now: float) -> None:
        """Let each tenant have its rate at so many hubs together: here it has its share of it."""
        if hubs != self._rate.hubs:
            for tenant, bucket in self._buckets.items():
                self._buckets[tenant] = settle_bucket(bucket, self._rate, now)
            self._rate = RateLimit(self._rate.rate_per_s, self._rate.burst, hubs)

    @property
    def queued(self) -> int:
        """Questions and web samples that wait or are being computed."""
        return len(self._memory) + self._batcher.web_open

    def admit_device(self, device: str, now: float) -> RefuseQuestion | None:
        """Decide on a frame of `device` before it is decrypted; None = admitted.

        Nothing but the sender is known yet, so it is judged as if it had the highest priority: what passes here may
        still be refused by `band`. `now` in hub seconds.
        """
        tenant = extract_tenant(device)
        if now > self.open_until_s:
            return self._add_retry_time(tenant, RefuseQuestion(RefusalReason.BUSY, 1.0), now)
        load = self._measure_load(tenant, HIGH, device_open=self._memory.count_for_device(device))
        return self._decide_load(load, tenant, now) or self._limit_rate(tenant, now, 1)

    def admit_lookup(self, device: str, lookups: OpenQuestions, now: float) -> RefuseQuestion | None:
        """Decide whether another question of `device` may be looked up beside `lookups`; None = it may.

        Tenants and devices share what may be looked up at once as they share the queue. The engines' pace says nothing
        of the store, and a hub that drains still answers repeats.
        """
        most, tenant = self._settings.max_queued, extract_tenant(device)
        load = AdmissionLoad(
            len(lookups),
            lookups.count_for_device(device),
            tenant_open=lookups.count_for_tenant(tenant),
            tenants=lookups.tenants,
        )
        return self._decide_load(load, tenant, now, AdmissionLimits(most, most, 1.0, 0.0, float(most)))

    def admit_band(self, device: str, place: tuple[str, int], now: float) -> RefuseQuestion | None:
        """Decide on a decrypted question of `device`; None = admitted.

        `place`: (model, priority band); the model is "" if this hub does not serve it.
        """
        tenant, (model, band) = extract_tenant(device), place
        ahead = self._batcher.count_ahead(model, band, tenant) if model else 0.0
        load = self._measure_load(tenant, band, device_open=self._memory.count_for_device(device), ahead=ahead)
        return self._decide_load(load, tenant, now)

    def admit_web(
        self, tenant: str, place: tuple[str, int], samples: int, budget_s: float, now: float
    ) -> RefuseQuestion | None:
        """Decide on a web request of `samples` samples; None = admitted.

        `place`: (model, priority band). A request that would not be answered within `budget_s` is refused at once. The
        samples count against the tenant's rate limit, one token each.
        """
        model, band = place
        if now > self.open_until_s:
            return self._add_retry_time(tenant, RefuseQuestion(RefusalReason.BUSY, 1.0), now)
        load = self._measure_load(
            tenant, band, more=samples - 1, ahead=self._batcher.count_ahead(model, band, tenant), budget_s=budget_s
        )
        return self._decide_load(load, tenant, now) or self._limit_rate(tenant, now, samples)

    def admit_at_once(self, tenant: str, samples: int, now: float) -> RefuseQuestion | None:
        """Decide on a web request that need not wait: only its tenant's rate counts; None = admitted."""
        if self.draining:
            return self._decide_load(AdmissionLoad(0, 0, draining=True), tenant, now)
        return self._limit_rate(tenant, now, samples)

    def check_overload(self, tenant: str, lag_s: float, now: float) -> RefuseQuestion | None:
        """Decide on a web request before it is read: refused if the event loop is late and the engines cannot keep up.

        `lag_s`: delay of the event loop; refused from `OVERLOAD_LAG_S` on, if at least one model has more waiting than
        a batch takes.
        """
        if lag_s < OVERLOAD_LAG_S or self._batcher.pressed < 1:
            return None
        return self._add_retry_time(tenant, RefuseQuestion(RefusalReason.BUSY, 1.0), now)

    def _measure_load(self, tenant: str, band: int, *, more: int = 0, **asker: Any) -> AdmissionLoad:
        return AdmissionLoad(
            self.queued + more,
            asker.pop("device_open", 0),
            draining=self.draining,
            tenant_open=self._memory.count_for_tenant(tenant) + self._batcher.count_for_tenant(tenant) + more,
            band=band,
            served_per_s=self._batcher.served_per_s,
            tenants=self._tenants,
            **asker,
        )

    @property
    def _tenants(self) -> int:
        """Number of tenants that have something open, those with questions and web requests counted twice."""
        return self._memory.tenants + self._batcher.tenants

    def _decide_load(
        self, load: AdmissionLoad, tenant: str, now: float, limits: AdmissionLimits | None = None
    ) -> RefuseQuestion | None:
        judged = decide_admission(load, limits or self._limits)
        if not isinstance(judged, RefuseQuestion):
            return None
        return judged if judged.reason is RefusalReason.DRAINING else self._add_retry_time(tenant, judged, now)

    def _add_retry_time(self, tenant: str, refused: RefuseQuestion, now: float) -> RefuseQuestion:
        """The refusal with a retry time of its own.

        Refused requests of a tenant come back at that tenant's share of throughput.
        """
        rate = (self._batcher.served_per_s or self._limits.served_per_s) / max(1, self._tenants)
        line, told = schedule_retry(self._lines.get(tenant, RetrySchedule()), refused, rate, now)
        _remember_tenant(self._lines, tenant, line)
        return told

    def _limit_rate(self, tenant: str, now: float, samples: int) -> RefuseQuestion | None:
        """Take a token per sample from the tenant's bucket.

        `RefusalReason.RATE` with the time of the next token if one is missing.
        """
        limit, count = self._rate, float(samples)
        bucket = self._buckets.get(tenant, TokenBucket(limit.share, now))
        left = take_from_share(bucket, limit, now, count)
        if left is None:
            wait_s = seconds_until_token(bucket, limit.share_per_s, now, limit.count_needed(count))
            return RefuseQuestion(RefusalReason.RATE, wait_s)
        _remember_tenant(self._buckets, tenant, left)
        return None


def _remember_tenant(known: "OrderedDict[str, V]", tenant: str, value: V) -> None:
    known[tenant] = value
    known.move_to_end(tenant)
    if len(known) > MAX_TENANTS:
        known.popitem(last=False)


def _make_limits(settings: HubSettings) -> AdmissionLimits:
    return AdmissionLimits(settings.max_queued, settings.device_open, settings.max_wait_s, settings.held_back)


class LiveLimits:
    """The limits that a running hub may change: of its queue, of tenants, and of each device."""

    def __init__(self, admission: AdmissionControl, verifier: FrameVerifier) -> None:
        self._admission = admission
        self._verifier = verifier

    def replace(self, settings: HubSettings, now: float) -> None:
        """Go by these from now on; `now` in hub seconds."""
        self._admission.replace_limits(settings, now)
        self._verifier.replace_limits(settings)
