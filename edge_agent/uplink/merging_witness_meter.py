"""Writes down how what our sockets have sent grows, all lines together."""

from functools import partial
from typing import Any

from edge_agent.storage import merging_tables_traffic
from edge_agent.uplink.outbound import LedgeredSender
from edge_agent.uplink.services import Parts


class Meter:
    """Owned by the event loop."""

    def __init__(self, parts: Parts, sender: LedgeredSender) -> None:
        self._parts = parts
        self._sender = sender
        self._noted = 0

    def flush(self, at_least: int = 1) -> None:
        """Write what was sent since the last time, if it is so many bytes."""
        sent = self._parts.connections.sent_bytes
        if sent - self._noted >= at_least:
            more, self._noted = sent - self._noted, sent
            self._parts.database.write(
                (partial(merging_tables_traffic.add, at_ms=self._parts.clock.ms(), size=more),), soon=True
            )

    def facts(self) -> dict[str, Any]:
        """Since the start, in bytes: `by_rule` and `overhead` sum up to `sockets`."""
        rules, sent = dict(self._sender.by_rule), self._parts.connections.sent_bytes
        overhead = sent - sum(rules.values()) if sent else None  # None: this system does not tell
        return {"sent": {"by_rule": rules, "overhead": overhead, "sockets": sent or None}}
