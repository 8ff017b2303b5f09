"""May something new be queued, and if not, when is its place free? Admission, with what it has to know. Pure.

Rule: a refusal costs nothing but its own few bytes: nothing is written, and what is remembered is bounded.
"""

from collections import OrderedDict
from typing import Any, TypeVar

from cloud_hub.core.context import Memory
from cloud_hub.core.scheduler import Batcher
from cloud_hub.system.settings import HubSettings
from policies.serving.admission import Bucket, Limits, Line, Load, Refuse, decide, in_line, take, token_in_s
from policies.serving.fair_queue import HIGH, tenant_of
from wire.protocol.messages import Reason

LAG_S = 0.05
MAX_TENANTS = 4096  # remembered; the one that asked least lately goes first

V = TypeVar("V")


class Turnstile:
    """Decides who may still put work into the queue; from `drain` on nobody may."""

    def __init__(self, settings: HubSettings, memory: Memory, batcher: Batcher) -> None:
        self.draining = False
        self._settings = settings
        self._memory = memory
        self._batcher = batcher
        most = settings.max_queued
        self._limits = Limits(most, settings.device_open, max_wait_s=settings.max_wait_s, held_back=settings.held_back)
        self._lines: OrderedDict[str, Line] = OrderedDict()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def drain(self) -> None:
        """Refuse all that is new from now on."""
        self.draining = True

    @property
    def queued(self) -> int:
        return len(self._memory) + self._batcher.local

    def device(self, device: str, now: float) -> Refuse | None:
        """Before its frame is opened, when nothing but the sender is known: as if it were most urgent."""
        tenant = tenant_of(device)
        load = self._load(tenant, HIGH, device_open=self._memory.device_open(device))
        return self._judge(load, tenant, now) or self._over_its_rate(tenant, now, 1)

    def lookup(self, device: str, under_way: int, now: float) -> Refuse | None:
        """Before the store is asked whether it knows this one."""
        if under_way < self._settings.max_queued:
            return None
        return self._later(tenant_of(device), Refuse(Reason.BUSY, 1.0), now)

    def band(self, device: str, place: tuple[str, int], now: float) -> Refuse | None:
        """Once it is known what it asks: `place` = model ("" if it is not served) and band."""
        tenant, (model, band) = tenant_of(device), place
        ahead = self._batcher.ahead(model, band, tenant) if model else 0.0
        load = self._load(tenant, band, device_open=self._memory.device_open(device), ahead=ahead)
        return self._judge(load, tenant, now)

    def web(self, tenant: str, place: tuple[str, int], samples: int, budget_s: float, now: float) -> Refuse | None:
        """`place`: model and band. A caller that hangs up after `budget_s` is told at once that it will be too late."""
        model, band = place
        load = self._load(
            tenant, band, more=samples - 1, ahead=self._batcher.ahead(model, band, tenant), budget_s=budget_s
        )
        return self._judge(load, tenant, now) or self._over_its_rate(tenant, now, samples)

    def overrun(self, tenant: str, lag_s: float, now: float) -> Refuse | None:
        """Before a request is even read: this process is late, and there is more to do than the engines manage."""
        if lag_s < LAG_S or self._batcher.pressed < 1:
            return None
        return self._later(tenant, Refuse(Reason.BUSY, 1.0), now)

    def _load(self, tenant: str, band: int, *, more: int = 0, **asker: Any) -> Load:
        return Load(
            self.queued + more,
            asker.pop("device_open", 0),
            draining=self.draining,
            tenant_open=self._memory.tenant_open(tenant) + self._batcher.tenant_open(tenant) + more,
            band=band,
            served_per_s=self._batcher.served_per_s,
            **asker,
        )

    def _judge(self, load: Load, tenant: str, now: float) -> Refuse | None:
        judged = decide(load, self._limits)
        if not isinstance(judged, Refuse):
            return None
        return judged if judged.reason is Reason.DRAINING else self._later(tenant, judged, now)

    def _later(self, tenant: str, refused: Refuse, now: float) -> Refuse:
        """Each refused one of a tenant is told a time of its own: as many a second as its share of what is served."""
        tenants = max(1, self._memory.tenants + self._batcher.tenants)
        rate = self._batcher.served_per_s or self._limits.served_per_s
        line, told = in_line(self._lines.get(tenant, Line()), refused, rate / tenants, now)
        _remember(self._lines, tenant, line)
        return told

    def _over_its_rate(self, tenant: str, now: float, samples: int) -> Refuse | None:
        rate, burst = self._settings.tenant_rate_per_s, self._settings.tenant_burst
        bucket = self._buckets.get(tenant, Bucket(burst, now))
        for _ in range(samples):
            left = take(bucket, rate, burst, now)
            if left is None:
                return Refuse(Reason.RATE, token_in_s(bucket, rate, now))
            bucket = left
        _remember(self._buckets, tenant, bucket)
        return None


def _remember(known: "OrderedDict[str, V]", tenant: str, value: V) -> None:
    known[tenant] = value
    known.move_to_end(tenant)
    if len(known) > MAX_TENANTS:
        known.popitem(last=False)
