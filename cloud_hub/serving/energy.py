"""Energy of graphics cards on the bill: shared by the seconds in which engines computed, idle energy apart.

Time is cut into slots of a second. The energy of a slot belongs to those for whom an engine computed in it, by their
engine seconds there; that of a slot in which none did is idle. Shared and idle energy together are what the cards'
counters say, to a joule for each line of the bill. The cards of the machine are one: who used which is not known.
Rule: a slot is billed once nothing that computed in it can still be reported.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from cloud_hub.core.commands import LOCAL
from cloud_hub.core.queues import Batch
from cloud_hub.engine.card_energy import EnergyCounters
from cloud_hub.engine.types import EngineSetup
from cloud_hub.storage.costs import DAY_MS, CostKind, Usage
from policies.serving.fair_queue import extract_tenant

IDLE_MODEL = "(idle)"  # on the bill in place of a model; no model can be named so
READ_S = 1.0
SETTLE_S = 60.0  # a batch is reported within this time after it computed
MAX_SPAN_S = 3600.0
_SLOTS_PER_DAY = DAY_MS // 1000


class EnergyUser(NamedTuple):
    """For whom an engine computed."""

    tenant: str
    model: str
    region: str


class EnergyLedger:
    """Joules of a machine's cards, shared among those who used them. Pure: times are seconds since 1970."""

    def __init__(self, region: str) -> None:
        self._idle = EnergyUser("", IDLE_MODEL, region)
        self._busy: dict[int, defaultdict[EnergyUser, float]] = {}  # engine seconds, by slot
        self._joules: defaultdict[int, float] = defaultdict(float)  # by slot
        self._rests: defaultdict[EnergyUser, float] = defaultdict(float)  # shares of less than a joule
        self._counters: dict[int, int] = {}
        self._read_at = 0.0
        self._settled = 0  # slots before this one are on the bill

    def on_computed(self, user: EnergyUser, begin: float, end: float, share: float = 1.0) -> None:
        """Record that an engine computed for `user` from `begin` to `end`, with a share of its time."""
        begin = max(begin, end - MAX_SPAN_S)
        for slot in range(max(int(begin), self._settled), int(end) + 1):
            seconds = min(end, slot + 1) - max(begin, slot)
            if seconds > 0:
                self._busy.setdefault(slot, defaultdict(float))[user] += seconds * share

    def on_counters(self, millijoules: dict[int, int], now: float) -> None:
        """Record what the cards' counters say. One that went back (its driver was loaded anew) counts from there."""
        before, began = self._counters, self._read_at
        spent = sum(max(0, told - before[card]) for card, told in millijoules.items() if card in before) / 1000
        self._counters, self._read_at = dict(millijoules), now
        if now <= began or not spent:
            return
        for slot in range(int(began), int(now) + 1):
            seconds = min(now, slot + 1) - max(began, slot)
            self._joules[max(slot, self._settled)] += spent * seconds / (now - began)

    def settle(self, until: float) -> list[Usage]:
        """Return what belongs on the bill of all slots that ended by `until`."""
        last = int(until)
        found = []
        for slot in sorted(each for each in self._joules if each < last):
            found += self._share_slot(slot, self._joules.pop(slot))
        for slot in [each for each in self._busy if each < last]:
            del self._busy[slot]
        self._settled = max(self._settled, last)
        return found

    def _share_slot(self, slot: int, joules: float) -> list[Usage]:
        busy = self._busy.get(slot) or {self._idle: 1.0}
        total = sum(busy.values())
        found = []
        for user, seconds in busy.items():
            exact = self._rests[user] + joules * seconds / total
            self._rests[user] = exact - int(exact)
            if int(exact):
                found.append(Usage(slot // _SLOTS_PER_DAY, *user, {CostKind.JOULES: int(exact)}))
        return found


class EnergyMeter:
    """Reads the cards' counters each second and bills what they say. `bill` takes what is used.

    `oldest`: when the oldest request that is being computed began, inf = there is none.
    """

    def __init__(
        self,
        counters: EnergyCounters,
        region: str,
        bill: Callable[[list[Usage]], None],
        oldest: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self.ledger = EnergyLedger(region)
        self._counters = counters
        self._region = region
        self._bill = bill
        self._oldest = oldest
        self._now = now

    def on_batch(self, batch: Batch, seconds: float, setup: EngineSetup | None) -> None:
        """Record a batch that was computed just now, by its items' weights; `setup` None = its model is not loaded."""
        if setup is None or not setup.device.startswith("cuda"):
            return
        now, total = self._now(), batch.weight
        for item in batch.items:
            tenant = item.tenant if item.key.device == LOCAL else extract_tenant(item.key.device)
            user = EnergyUser(tenant, batch.model, self._region)
            self.ledger.on_computed(user, now - seconds, now, item.weight / total)

    async def run(self) -> None:
        """Read and bill until cancelled; then bill the rest."""
        try:
            while True:
                self.ledger.on_counters(await asyncio.to_thread(self._counters.read), self._now())
                self._settle(min(self._now() - SETTLE_S, self._oldest()))
                await asyncio.sleep(READ_S)
        finally:
            self._settle(self._now() + 1)

    def _settle(self, until: float) -> None:
        used = self.ledger.settle(until)
        if used:
            self._bill(used)
