"""TCP proxy process between devices and their broker that adds latency, stalls, resets and partitions.

Rule: TCP stays TCP. What is lost is a stall, as a retransmission is; what is held while a lane is cut comes when it is
mended; nothing is repeated, reordered or changed. It takes commands from its parent alone, JSON lines on its standard
input, and ends when that closes. `python -m simulations.live.proxy TARGET PORT...`: one lane for each port.
"""

import asyncio
import contextlib
import json
import sys
from collections import deque
from functools import partial
from random import Random

import msgspec

from simulations.live.limits import raise_descriptor_limit

MOST_BYTES = 1 << 20  # of one direction, waiting; then its sender is no longer read
STALL_S = (0.2, 0.4)  # what a lost segment costs: TCP's first retransmission timeout, or the second
_GAP_S = 0.0005  # between two slices, so that they travel apart


class LaneConditions(msgspec.Struct, frozen=True):
    """Conditions of one lane.

    `latency_s`: mean one way; half of it is certain, the rest exponential. `loss`: share of segments.
    `slice_bytes`: no segment is longer (0 = as they come). `resets_per_s`: of each connection. `up`, `down`:
    whether anything passes towards the broker and back; one alone is a half-open link. `refuse`: connections are
    closed, existing ones too.
    """

    latency_s: float = 0.0
    loss: float = 0.0
    slice_bytes: int = 0
    resets_per_s: float = 0.0
    up: bool = True
    down: bool = True
    refuse: bool = False


class ProxyCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Command from the parent: conditions of every lane (None: unchanged); it is always answered with the counters."""

    lanes: tuple[LaneConditions, ...] | None = None
    tell: bool = False


class ProxyLane:
    """One port of the proxy: its conditions, its connections, and counters."""

    def __init__(self, target: int, rng: Random, counts: dict[str, int]) -> None:
        self.target = target
        self.now = LaneConditions()
        self.counts = counts
        self._rng = rng
        self.pairs: set[ProxiedConnection] = set()

    def set_conditions(self, conditions: LaneConditions) -> None:
        """Put conditions into force."""
        self.now = conditions
        for pair in list(self.pairs):
            if conditions.refuse:
                pair.abort()
            else:
                pair.pump()

    def delay_s(self) -> float:
        """Draw the delay of one segment in seconds; a lost segment costs a retransmission timeout."""
        half = self.now.latency_s / 2
        delay_s = half + self._rng.expovariate(1.0) * half if half else 0.0
        if self.now.loss and self._rng.random() < self.now.loss:
            self.counts["stalled"] += 1
            delay_s += self._rng.uniform(*STALL_S)
        return delay_s

    def split_slices(self, data: bytes) -> list[bytes]:
        """Split data into segments of random length, if the lane slices."""
        most = self.now.slice_bytes
        if not most or len(data) <= 1:
            return [data]
        pieces, at = [], 0
        while at < len(data):
            step = self._rng.randint(1, most)
            pieces.append(data[at : at + step])
            at += step
        self.counts["sliced"] += len(pieces) - 1
        return pieces

    def reset_connections(self, every_s: float) -> None:
        """Reset as many connections as are due; called every `every_s` seconds."""
        for pair in list(self.pairs) if self.now.resets_per_s else ():
            if self._rng.random() < self.now.resets_per_s * every_s:
                self.counts["reset"] += 1
                pair.abort()


class DelayPipe:
    """One direction of a proxied connection: queued data, and when each piece is due on the other side."""

    __slots__ = ("_ended", "_lane", "_last_s", "_loop", "_rest", "_timer", "_up", "_waiting", "source", "target")

    def __init__(self, lane: ProxyLane, *, up: bool) -> None:
        self._lane, self._up = lane, up
        self._loop = asyncio.get_running_loop()
        self._rest: deque[tuple[float, bytes]] = deque()
        self._waiting = 0
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None

    def feed(self, data: bytes) -> None:
        """Queue data; the sender is paused when too much waits."""
        now_s, lane = self._loop.time(), self._lane
        for piece in lane.split_slices(data):
            self._last_s = max(self._last_s + (_GAP_S if lane.now.slice_bytes else 0.0), now_s + lane.delay_s())
            self._rest.append((self._last_s, piece))
        self._waiting += len(data)
        if self._waiting > MOST_BYTES and self.source is not None:
            self.source.pause_reading()
        self.pump()

    def end(self) -> None:
        """The sender has closed: close the other side once it has what was sent."""
        self._ended = True
        self.pump()

    def pump(self) -> None:
        """Forward what is due, if this direction is open."""
        if self.target is None or not (self._lane.now.up if self._up else self._lane.now.down):
            return
        now_s = self._loop.time()
        while self._rest and self._rest[0][0] <= now_s:
            _, piece = self._rest.popleft()
            self._waiting -= len(piece)
            if self.target.is_closing():
                continue  # the receiver has closed
            self._lane.counts["up_bytes" if self._up else "down_bytes"] += len(piece)
            self.target.write(piece)
        if self._rest and self._timer is None:
            self._timer = self._loop.call_at(self._rest[0][0], self._due)
        if self._waiting <= MOST_BYTES and self.source is not None and not self.source.is_reading():
            self.source.resume_reading()
        if self._ended and not self._rest:
            self.target.close()

    def _due(self) -> None:
        self._timer = None
        self.pump()

    def drop(self) -> None:
        """Drop what is queued."""
        if self._timer is not None:
            self._timer.cancel()
        self._rest.clear()


class ProxiedConnection:
    """Proxied connection: one of a device, and the proxy's own to the broker for it."""

    __slots__ = ("_down", "_lane", "_sides", "_up")

    def __init__(self, lane: ProxyLane) -> None:
        self._lane = lane
        self._up, self._down = DelayPipe(lane, up=True), DelayPipe(lane, up=False)
        self._sides: list[asyncio.Transport] = []

    def on_joined(self, side: asyncio.Transport, *, device: bool) -> None:
        """One side of the connection is up."""
        self._sides.append(side)
        came, goes = (self._up, self._down) if device else (self._down, self._up)
        came.source = goes.target = side
        if device:
            self._lane.pairs.add(self)
        self.pump()

    def on_data(self, data: bytes, *, device: bool) -> None:
        """Data arrived from one side."""
        (self._up if device else self._down).feed(data)

    def on_left(self, *, device: bool) -> None:
        """One side has closed."""
        (self._up if device else self._down).end()
        if all(side.is_closing() for side in self._sides):
            self._lane.pairs.discard(self)

    def pump(self) -> None:
        """Forward what is due in both directions."""
        self._up.pump()
        self._down.pump()

    def abort(self) -> None:
        """Reset both sides."""
        self._up.drop()
        self._down.drop()
        for side in self._sides:
            side.abort()
        self._lane.pairs.discard(self)


class ProxySide(asyncio.Protocol):
    """One end of a proxied connection."""

    def __init__(self, lane: ProxyLane, pair: ProxiedConnection | None = None) -> None:
        self._lane = lane
        self._device = pair is None
        self._pair = pair or ProxiedConnection(lane)
        self._asking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection is up; a device's end opens the one to the broker, or is refused."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a stream was expected")
        if self._lane.now.refuse:
            transport.abort()
            return
        self._pair.on_joined(transport, device=self._device)
        if self._device:
            self._lane.counts["connections"] += 1
            self._asking = asyncio.get_running_loop().create_task(self._connect_broker())

    async def _connect_broker(self) -> None:
        """Connect to the broker for a device."""
        loop, pair = asyncio.get_running_loop(), self._pair
        try:
            await loop.create_connection(lambda: ProxySide(self._lane, pair), "127.0.0.1", self._lane.target)
        except OSError:
            self._lane.counts["unreached"] += 1
            pair.abort()

    def data_received(self, data: bytes) -> None:
        """Forward the data."""
        self._pair.on_data(data, device=self._device)

    def connection_lost(self, _: Exception | None) -> None:
        """Close the other side after what was sent."""
        self._pair.on_left(device=self._device)


async def serve_lanes(target: int, ports: list[int]) -> None:
    """Serve all lanes until the parent closes standard input."""
    counts = dict.fromkeys(("connections", "unreached", "stalled", "sliced", "reset", "up_bytes", "down_bytes"), 0)
    lanes = [ProxyLane(target, Random(number), counts) for number in range(len(ports))]  # noqa: S311 - weather keeps no secret
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for lane, port in zip(lanes, ports, strict=True):
            server = await loop.create_server(partial(ProxySide, lane), "127.0.0.1", port, backlog=4096)
            stack.callback(server.close)
        resetting = asyncio.create_task(_reset_periodically(lanes))
        await _obey_commands(lanes, counts)
        resetting.cancel()


async def _reset_periodically(lanes: list[ProxyLane], every_s: float = 0.25) -> None:
    while True:
        await asyncio.sleep(every_s)
        for lane in lanes:
            lane.reset_connections(every_s)


async def _obey_commands(lanes: list[ProxyLane], counts: dict[str, int]) -> None:
    reader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _print_json({"ready": 1})
    while line := await reader.readline():
        command = msgspec.json.decode(line, type=ProxyCommand)
        for lane, conditions in zip(lanes, command.lanes or (), strict=False):
            lane.set_conditions(conditions)
        _print_json({**counts, "open": sum(len(lane.pairs) for lane in lanes)})


def _print_json(facts: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise_descriptor_limit()
    asyncio.run(serve_lanes(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
