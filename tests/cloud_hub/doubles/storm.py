"""Load simulation against the production `HubCore` in virtual time.

An engine of given cost, devices that obey retries.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from policies.serving.batching import BatchCost
from simulations.nodes.plain_envelopes import PlainEnvelopes
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import CARD, NOW_S
from tests.cloud_hub.stories.test_core_machine import PlainDevice
from wire.protocol.messages import Receipt, Refusal

COMMIT_S = 0.005


class Storm:
    """Simulated hub under load; a batch takes `base_s + item_s * n`. Times in seconds since the start."""

    def __init__(self, *devices: PlainDevice, base_s: float = 0.05, item_s: float = 0.002, **settings) -> None:
        self.bench = Bench(*devices, envelopes=PlainEnvelopes(), **{"max_batch": 16, **settings})
        self.devices = {device.id: device for device in devices}
        self.answered: dict[tuple[str, int], float] = {}
        self.receipted: dict[tuple[str, int], float] = {}
        self.refusals: list[tuple[float, str, Refusal]] = []
        self.first_sent: dict[tuple[str, int], float] = {}
        self.admitted: dict[tuple[str, int], float] = {}  # sent when it was let in
        self.batches: list[int] = []
        self._cost = (base_s, item_s)
        self.bench.core.lineup.on_measured(CARD.name, BatchCost(base_s, item_s), NOW_S)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._frames: dict[tuple[str, int], bytes] = {}
        self._dice = random.Random(7)
        self._busy_until = 0.0
        self._dirty = False
        self.patient = True  # whoever is refused comes again

    @property
    def now(self) -> float:
        return self.bench.now - NOW_S

    def at(self, when: float, act) -> None:
        heappush(self._events, (when, next(self._order), act))

    def ask(self, device: str, seq: int, when: float, **changes) -> None:
        self.at(when, lambda: self._send(device, seq, **changes))

    def run(self, until: float) -> None:
        self.at(self.now, self._wake)
        while self._events and self._events[0][0] <= until:
            when, _, act = heappop(self._events)
            self.bench.now = NOW_S + when
            act()
        self.bench.now = NOW_S + until

    def latencies(self, *devices: str) -> list[float]:
        """From when a question was sent and let in until its verdict."""
        found = [at - self.admitted[key] for key, at in self.answered.items() if not devices or key[0] in devices]
        return sorted(found)

    def served(self) -> Counter[str]:
        return Counter(device for device, _ in self.answered)

    def _send(self, device: str, seq: int, **changes) -> None:
        key = device, seq
        if key in self.answered or (key in self._frames and not self.patient):
            return
        if key not in self._frames:
            self._frames[key] = self.devices[device].question(seq, self.bench.now, **changes)
            self.first_sent[key] = self.now
        self.admitted[key] = self.now
        self.bench.say(self.devices[device].up, self._frames[key])
        self._look(device)
        self._round()

    def _round(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.at(self.now + COMMIT_S, self._commit)

    def _commit(self) -> None:
        self._dirty = False
        self.bench.flush()
        self.bench.commit()
        self._dispatch()
        for device in [name for name, frames in self.bench.sent.items() if frames]:
            self._look(device)

    def _dispatch(self) -> None:
        batches, self.bench.batches = self.bench.batches, []
        for batch in batches:
            cost_s = self._cost[0] + self._cost[1] * len(batch.items)
            self._busy_until = max(self.now, self._busy_until) + cost_s
            self.batches.append(len(batch.items))
            self.at(self._busy_until, lambda batch=batch, cost_s=cost_s: self._done(batch, cost_s))

    def _done(self, batch, cost_s: float) -> None:
        found = self.bench.engine.infer([item.work for item in batch.items])
        self.bench._obey(self.bench.core.on_results(batch.ticket, found, cost_s, self.bench.now))
        self._dispatch()
        self._round()

    def _look(self, device: str) -> None:
        for reply in self.bench.replies(self.devices[device]):
            if isinstance(reply, tuple):
                assert (device, reply[0]) not in self.answered, "answered twice"
                self.answered[device, reply[0]] = self.now
            elif isinstance(reply, Receipt):
                self.receipted |= {(device, seq): self.now for seq in reply.seqs}
            elif isinstance(reply, Refusal):
                self._refused(device, reply)

    def _refused(self, device: str, refusal: Refusal) -> None:
        self.refusals.append((self.now, device, refusal))
        if not refusal.final:
            again = self.now + refusal.retry_after_s + self._dice.random()
            self.at(again, lambda: self._send(device, refusal.seq))

    def _wake(self) -> None:
        self.bench.wait(0.0)
        self._round()
        self.at(self.now + 1.0, self._wake)


def crowd(devices: int, tenants: int = 1) -> list[PlainDevice]:
    return [PlainDevice(f"t{n % tenants}--d{n}") for n in range(devices)]


def by_tenant(counts: Counter[str]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for device, number in counts.items():
        found[device.partition("--")[0]] += number
    return found
