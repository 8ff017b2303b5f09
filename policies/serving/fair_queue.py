"""Fair queue of the hub: start-time fair queueing over priority bands, tenants and devices. Pure (in memory).

Bands share the engine by fixed shares, tenants take turns in a band, devices in a tenant. Rule: each level is
start-time fair queueing (Goyal, Vin & Cheng, SIGCOMM 1996): who had least goes first, and who was away begins where the
others are, so that idle time saves up nothing. A tenant's turns are counted over all bands: it gains nothing by calling
everything urgent. Every band has a share, so nothing that waits waits for ever.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

HIGH, NORMAL, LOW = 0, 1, 2
BAND_COUNT = 3
BAND_SHARES = {HIGH: 16.0, NORMAL: 4.0, LOW: 1.0}
_PRUNE_AT = 1024

F = TypeVar("F", int, str)
T = TypeVar("T")


def priority_to_band(priority: int) -> int:
    """Priority band of the Open Inference Protocol's number (1 = most urgent, 0 = default).

    Whatever is larger than 2 is low.
    """
    return {0: NORMAL, 1: HIGH, 2: NORMAL}.get(priority, LOW)


def extract_tenant(device: str) -> str:
    """Tenant of a device id: `acme--camera-1` belongs to `acme`."""
    return device.partition("--")[0]


class FlowKey(NamedTuple):
    """Where an item queues. `device`: the flow inside the tenant, a device or a caller's key."""

    band: int
    tenant: str
    device: str


class VirtualClock(Generic[F]):
    """Virtual clock of one level: start tags of its flows, the service each has had divided by its share."""

    def __init__(self, shares: Mapping[F, float] | None = None) -> None:
        self.now = 0.0
        self._tags: dict[F, float] = {}
        self._shares: Mapping[F, float] = shares or {}
        self._prune_at = _PRUNE_AT

    def start_tag(self, flow: F) -> float:
        """Start tag of a flow; one that was away begins at the present time at the earliest."""
        tag = self._tags.get(flow, 0.0)
        return tag if tag > self.now else self.now  # noqa: FURB136 - twenty times an item, twice as quick

    def charge(self, flow: F, weight: float) -> None:
        """Charge a flow for served weight."""
        self._tags[flow] = self.start_tag(flow) + weight / self._shares.get(flow, 1.0)
        if len(self._tags) > self._prune_at:
            self._prune()

    def advance(self, least: float) -> None:
        """Advance virtual time to the least start tag of those that wait; it never goes back."""
        self.now = max(self.now, least)

    def _prune(self) -> None:
        """Drop tags in the past: they say nothing."""
        self._tags = {flow: tag for flow, tag in self._tags.items() if tag > self.now}
        self._prune_at = max(_PRUNE_AT, 2 * len(self._tags))


class TurnOrder(Generic[F]):
    """Flows that have something to send, the least served first. Several may share their `tags`."""

    def __init__(self, tags: VirtualClock[F] | None = None) -> None:
        self.tags: VirtualClock[F] = tags or VirtualClock()
        self._waiting: set[F] = set()
        self._heap: list[tuple[float, int, F]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, flow: F) -> None:
        """Add a flow that has something to send now; nothing happens if it had before."""
        if flow not in self._waiting:
            self._waiting.add(flow)
            self._push(flow, self.tags.start_tag(flow))

    def first(self) -> F:
        """Flow whose turn it is. Raises IndexError if nobody waits."""
        while True:
            tag, _, flow = self._heap[0]
            if flow in self._waiting and tag >= self.tags.start_tag(flow):
                return flow
            heappop(self._heap)
            if flow in self._waiting:  # it was served meanwhile, here or in another band
                self._push(flow, self.tags.start_tag(flow))

    def leave(self, flow: F) -> None:
        """Remove a flow that has nothing more to send."""
        self._waiting.discard(flow)
        if not self._waiting:
            self._heap.clear()
        elif self._heap[0][2] == flow:
            heappop(self._heap)

    def _push(self, flow: F, tag: float) -> None:
        self._order += 1
        heappush(self._heap, (tag, self._order, flow))
        if len(self._heap) > 2 * len(self._waiting) + _PRUNE_AT:
            newest = {entry[2]: entry for entry in sorted(self._heap) if entry[2] in self._waiting}
            self._heap = list(newest.values())
            heapify(self._heap)


class _TenantFlow(Generic[T]):
    """A tenant inside one band: its devices and their waiting items."""

    def __init__(self) -> None:
        self.count = 0
        self.turns: TurnOrder[str] = TurnOrder()
        self.items: dict[str, deque[tuple[float, T]]] = {}


class FairQueue(Generic[T]):
    """Queue of items of many tenants and devices; `take_next` returns them in fair order.

    Items of one device keep theirs. An item that comes and goes alone touches no clock: with the last item all of the
    past is forgotten anyway.
    """

    def __init__(self) -> None:
        self._lone: tuple[FlowKey, float, T] | None = None  # the only item, as long as no other came to it
        self._reset()

    def _reset(self) -> None:
        self._tenants: VirtualClock[str] = VirtualClock()
        self._bands: TurnOrder[int] = TurnOrder(VirtualClock(BAND_SHARES))
        self._turns = {band: TurnOrder(self._tenants) for band in range(BAND_COUNT)}
        self._flows: dict[tuple[int, str], _TenantFlow[T]] = {}
        self._count = [0] * BAND_COUNT
        self._size = 0
        self._peeked: FlowKey | None = None  # whose turn it is, until something changes
        self._aside: list[FlowKey] = []  # what is passed over; device "" = all of the tenant's
        self._only: FlowKey | None = None  # what alone is served; device "" = all of the tenant's

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        """Everything that waits, in no order."""
        self._place_lone()
        return (item for flow in self._flows.values() for queue in flow.items.values() for _, item in queue)

    def estimate_ahead(self, band: int, tenant: str) -> float:
        """Estimate how many items are served before one that this tenant puts into this band now, if all others go on.

        Its own, what it had lately more than the others, and as many of each other tenant that waits in the band; for
        each of these, what the other bands have of turns.
        """
        self._place_lone()
        flow, turns = self._flows.get((band, tenant)), self._turns[band]
        own, tenants = flow.count if flow else 0, len(turns) + (flow is None)
        shares = BAND_SHARES[band]
        for each, count in enumerate(self._count):
            shares += BAND_SHARES[each] if count and each != band else 0.0
        debt = self._tenants.start_tag(tenant) - self._tenants.now
        return ((own + debt + 1) * tenants - 1) * shares / BAND_SHARES[band]

    def put(self, place: FlowKey, weight: float, item: T) -> None:
        """Append an item to its flow. `weight`: what the flow is charged when it is taken."""
        if not self._size:
            self._lone, self._size = (place, weight, item), 1
            return
        self._place_lone()
        self._place(place, weight, item)
        self._size += 1

    def _place_lone(self) -> None:
        """Put the item that was alone where all others are."""
        if self._lone is not None:
            lone, self._lone = self._lone, None
            self._place(*lone)

    def put_back(self, place: FlowKey, weight: float, item: T) -> None:
        """Put an item that was taken at the head of its flow again; it is charged again when it is taken."""
        if not self._size:
            self.put(place, weight, item)
            return
        self._place_lone()
        self._place(place, weight, item, first=True)
        self._size += 1

    def charge(self, place: FlowKey, weight: float) -> None:
        """Charge a tenant and its device for service beyond that of their items."""
        self._place_lone()
        if not self._size:  # all of the past is forgotten anyway
            return
        self._peeked = None
        self._tenants.charge(place.tenant, weight)
        flow = self._flows.get(place[:2])
        if flow is not None:
            flow.turns.tags.charge(place.device, weight)

    def _place(self, place: FlowKey, weight: float, item: T, *, first: bool = False) -> None:
        self._peeked = None
        band, tenant, device = place
        flow = self._flows.setdefault((band, tenant), _TenantFlow())
        flow.count += 1
        queue = flow.items.setdefault(device, deque())
        (queue.appendleft if first else queue.append)((weight, item))
        flow.turns.enter(device)
        self._turns[band].enter(tenant)
        self._bands.enter(band)
        self._count[band] += 1

    def peek(self) -> T:
        """The item that `take_next` would return. Raises IndexError if nothing waits."""
        if self._lone is not None:
            return self._lone[2]
        place = self._peeked = self._next_flow()
        return self._flows[place[:2]].items[place.device][0][1]

    def take_next(self) -> T:
        """Remove and return the next item, and charge its device, tenant and band.

        Raises IndexError if nothing waits.
        """
        return self._pop(charged=True)

    def drop_next(self) -> T:
        """Remove and return the next item without charging anybody. Raises IndexError if nothing waits."""
        return self._pop(charged=False)

    @property
    def has_next(self) -> bool:
        """Whether something waits that is not passed over."""
        if self._only is not None:
            flow = self._flows.get(self._only[:2])
            return flow is not None and (not self._only.device or self._only.device in flow.items)
        return self._lone is not None or len(self._bands) > 0

    def pass_over(self, *, device_only: bool = False) -> None:
        """Let the tenant whose turn it is in its band wait, with all that it has there, until `recall`.

        It keeps its place, but for what those that were served meanwhile have had less than it.
        `device_only`: only the device whose turn it is waits.
        """
        self._place_lone()
        band, tenant, device = self._next_flow()
        self._peeked = None
        if device_only:
            self._aside.append(FlowKey(band, tenant, device))
            turns = self._flows[band, tenant].turns
            turns.leave(device)
            if len(turns):
                return
        else:
            self._aside.append(FlowKey(band, tenant, ""))
        self._turns[band].leave(tenant)
        if not len(self._turns[band]):
            self._bands.leave(band)

    def narrow(self, *, device_only: bool) -> None:
        """Serve only the tenant whose turn it is, or only its device, in this band until `recall`: also out of turn."""
        self._place_lone()
        place, self._peeked = self._next_flow(), None
        self._only = place if device_only else place._replace(device="")

    def recall(self) -> None:
        """Let those that were passed over have their turns again, and all others where the queue was narrowed."""
        self._only = self._peeked = None
        for band, tenant, device in self._aside:
            if device:
                self._flows[band, tenant].turns.enter(device)
            self._turns[band].enter(tenant)
            self._bands.enter(band)
        self._aside.clear()

    def remove_unless(self, keep: Callable[[T], bool]) -> list[T]:
        """Remove and return all items that `keep` refuses; nobody is charged."""
        self._place_lone()
        self._peeked = None
        gone: list[T] = []
        for (band, tenant), flow in list(self._flows.items()):
            for device, queue in list(flow.items.items()):
                kept = deque(entry for entry in queue if keep(entry[1]))
                gone += [item for _, item in queue if not keep(item)] if len(kept) < len(queue) else []
                flow.items[device] = kept
                self._leave_if_empty(FlowKey(band, tenant, device), flow, taken=len(queue) - len(kept))
        return gone

    def _pop(self, *, charged: bool) -> T:
        if self._lone is not None:
            (_, _, item), self._lone, self._size = self._lone, None, 0
            return item
        place, self._peeked = self._next_flow(), None
        flow = self._flows[place[:2]]
        weight, item = flow.items[place.device].popleft()
        if charged:
            self._charge_flow(place, flow, weight)
        self._leave_if_empty(place, flow)
        return item

    def _next_flow(self) -> FlowKey:
        if self._peeked is not None:
            return self._peeked
        if self._only is not None:
            band, tenant, device = self._only
            return FlowKey(band, tenant, device or self._flows[band, tenant].turns.first())
        band = self._bands.first()
        tenant = self._turns[band].first()
        return FlowKey(band, tenant, self._flows[band, tenant].turns.first())

    def _charge_flow(self, place: FlowKey, flow: _TenantFlow[T], weight: float) -> None:
        if self._only is None:
            self._bands.tags.advance(self._bands.tags.start_tag(place.band))
            flow.turns.tags.advance(flow.turns.tags.start_tag(place.device))
        heads = (self._tenants.start_tag(turns.first()) for turns in self._turns.values() if len(turns))
        self._tenants.advance(min(heads))
        self._bands.tags.charge(place.band, weight)
        self._tenants.charge(place.tenant, weight)
        flow.turns.tags.charge(place.device, weight)

    def _leave_if_empty(self, place: FlowKey, flow: _TenantFlow[T], taken: int = 1) -> None:
        """Remove flows that have nothing left from their level; with the last item all of the past is forgotten."""
        self._count[place.band] -= taken
        self._size -= taken
        flow.count -= taken
        if flow.items[place.device]:
            return
        del flow.items[place.device]
        flow.turns.leave(place.device)
        if len(flow.turns):
            return
        if not flow.items:
            del self._flows[place[:2]]
        self._turns[place.band].leave(place.tenant)
        if not len(self._turns[place.band]):
            self._bands.leave(place.band)
        if not self._flows:
            self._reset()
