"""Sender of rollout reports to the home hub: each is repeated, with growing pauses, until the hub acknowledges it.

Rule: a report is stored before it is sent, also while the disk fails for a time; which of its fields may leave is
decided each time it is sent. No report, sent or not, changes which model serves.
"""

import asyncio
from functools import partial
from typing import Any

import msgspec

from edge_agent.core.permissions import disclosed
from edge_agent.storage import tables
from edge_agent.uplink.outbound import LedgeredSender, result
from edge_agent.uplink.services import Parts
from wire.protocol.rollout import InstallReport, ReportSeen

FIRST_S = 5.0  # pause before a report is sent again ...
AT_MOST_S = 300.0  # ... doubled each time, up to this
TOGETHER = 4  # reports in one burst: a hub accepts ten notes of a device at once


class Outgoing:
    """Stores and sends install reports; used on the event loop only. A provider of the agent's status."""

    def __init__(self, parts: Parts, sender: LedgeredSender) -> None:
        self._parts = parts
        self._sender = sender
        self._pause_s = FIRST_S
        self._due_at = 0.0
        self._pending = 0
        self._looking = False

    def put(self, report: InstallReport) -> None:
        """Store a report and send it. Its `epoch` and `seq` are set here."""
        op = partial(tables.keep, report=report, now_ms=self._parts.clock.ms())
        self._parts.database.write((op,), lambda _: self.connected(), must=True)

    def connected(self) -> None:
        """Start again with the shortest pause: the home hub is connected, or there is a new report."""
        self._pause_s = FIRST_S
        self._due_at = 0.0
        self.watch()

    def watch(self) -> None:
        """Send the pending reports if the pause is over; called about every second."""
        parts = self._parts
        if self._looking or parts.clock.now() < self._due_at:
            return
        if not parts.connections.home.up or not parts.database.is_open:
            return
        self._looking = True
        parts.database.read(tables.pending).add_done_callback(self._tell)

    def hear(self, note: ReportSeen) -> None:
        """The hub has acknowledged a report; what was stored in the meantime is sent next."""
        self._parts.counts["reports_seen"] += 1
        self._parts.database.write((partial(tables.seen, seq=note.seq),), lambda _: self.connected())

    def _tell(self, found: "asyncio.Future[list[InstallReport]]") -> None:
        self._looking = False
        told = result(found) or []
        self._pending = len(told)
        self._due_at = self._parts.clock.now() + self._pause_s
        self._pause_s = min(2 * self._pause_s, AT_MOST_S)
        core = self._parts.core
        for report in told[:TOGETHER]:
            self._sender.note(msgspec.structs.replace(disclosed(report, core.ruling), epoch=core.epoch))

    # For the agent's status

    def facts(self) -> dict[str, Any]:
        """Fields of the agent's status: how many reports no hub has acknowledged."""
        return {"reports_unheard": self._pending}

    def alarms(self) -> set[str]:
        """None: a report that waits needs nobody."""
        return set()
