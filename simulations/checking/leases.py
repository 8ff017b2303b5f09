"""Checker of leases: whoever writes about the devices of a shard is the last that took its lease.

Rule: it sees who took a lease in which term, and in which term a write was made, and asks no fence.
"""

from collections.abc import Callable

from simulations.checking.events import Flaw, LeaseTaken, ShardWritten


class LeaseChecker:
    """Terms of all shards of all hubs. `add_flaw` gets a flaw and its story."""

    def __init__(self, add_flaw: Callable[[Flaw, str], None]) -> None:
        self._add_flaw = add_flaw
        self._last: dict[tuple[str, int], tuple[int, str]] = {}

    def on_taken(self, event: LeaseTaken) -> None:
        """A process took a lease; a store that went back to a backup says so for each of its leases."""
        self._last[event.hub, event.shard] = event.term, event.holder

    def on_written(self, event: ShardWritten) -> None:
        """A process wrote about a device of a shard."""
        term, holder = self._last.get((event.hub, event.shard), (0, ""))
        if (event.term, event.writer) != (term, holder):
            self._add_flaw(
                Flaw.UNLEASED,
                f"{event.hub} shard {event.shard}: {event.writer} wrote in term {event.term}, "
                f"{holder or 'nobody'} holds it in term {term}",
            )
