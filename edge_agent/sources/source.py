"""The interface of a source of samples with a device behind it, and the bounded queue between the two.

Rule: whatever a source received was answered, waits, or is counted as dropped under a reason of `counts`:
`received == answered + waiting + sum(dropped)`, at any moment. Nothing here is named by a device: reasons and states
are fixed words, and the name of a source comes from the configuration.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from edge_agent.sources.counts import DropReason, SourceCounts
from models.bundle.manifest import InputSpec
from models.runtime.runner import Sample as SampleArray


class Overflow(StrEnum):
    """What happens where a source is faster than answering.

    `newest`: what waited is dropped for what is newer. `wait`: the source is made to wait, and with it its device.
    """

    NEWEST = "newest"
    WAIT = "wait"


class SourceError(Exception):
    """The device is away or of no use; the source is started again.

    `reason`: a fixed word, or a library's message, for status and log; never what the device sent.

    `pause_s`: not before so many seconds, beside the usual growing pause.
    """

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_s = pause_s


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One thing that a source received. `parse`: makes the sample for a model's input; SampleError if it is unfit.

    `data_class` "" is the source's own.
    """

    parse: Callable[[InputSpec], SampleArray]
    data_class: str = ""


class Intake:
    """The bounded queue of one source: it puts readings in, the supervisor takes them out.

    `size`: readings that may wait. All methods are called on the agent's event loop.
    """

    def __init__(self, counts: SourceCounts, overflow: Overflow, size: int) -> None:
        self._counts = counts
        self._overflow = overflow
        self._waiting: asyncio.Queue[Reading] = asyncio.Queue(size)  # it wakes one taker for a reading, not all
        self._room = asyncio.Event()
        self._on_alive: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return self._waiting.qsize()

    def watch(self, on_alive: Callable[[], None]) -> None:
        """Call `on_alive` with each sign of life of the device."""
        self._on_alive = on_alive

    def note_alive(self) -> None:
        """The device is there and gave a sign of life."""
        self._on_alive()

    def note_size_change(self) -> None:
        """The device's pictures changed their size in the middle of its stream."""
        self._counts.size_changes += 1

    def skip(self, reason: DropReason, count: int = 1) -> None:
        """Count readings that the source received and did not put in."""
        self._counts.received += count
        self._counts.drop(reason, count)
        self._on_alive()

    async def put(self, reading: Reading) -> None:
        """Hand a reading over. A source that waits is held here until there is room."""
        self._on_alive()
        if self._overflow is Overflow.WAIT:
            await self._waiting.put(reading)
        else:
            if self._waiting.full():
                self._waiting.get_nowait()
                self._counts.drop(DropReason.NEWER)
            self._waiting.put_nowait(reading)
        self._counts.received += 1

    async def wait_for_room(self) -> None:
        """Return when a reading could be put in without another being dropped for it."""
        while self._waiting.full():
            self._room.clear()
            await self._room.wait()

    async def take(self) -> Reading:
        """The oldest reading that waits; waits for one."""
        reading = await self._waiting.get()
        self._room.set()
        return reading


@runtime_checkable
class DetailedSource(Protocol):
    """A source that counts more than every source does."""

    def to_json(self) -> dict[str, Any]:
        """Further entries of the source in the status."""
        ...


class SampleSource(Protocol):
    """A source of samples.

    `name`: in status, metrics and log, such as "camera-1"; plain ASCII without spaces. `overflow`: what a slow device
    of answers costs. `queue_size`: readings that may wait. `parallel`: how many are answered at once.
    """

    name: str
    overflow: Overflow
    queue_size: int
    parallel: int

    async def run(self, intake: Intake) -> None:
        """Open the device and put what it gives into `intake`, until cancelled.

        Raises SourceError when the device goes away or is of no use, or returns when it has come to its end: in both
        cases the supervisor calls it again, after a pause that grows. It never blocks the event loop, and leaves
        nothing behind when it is cancelled.
        """
        ...
