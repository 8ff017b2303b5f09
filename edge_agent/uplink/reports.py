"""Tells the home hub how rollouts fare here, again and again until it says that it knows.

Law: a report is on disk before it is sent, also over a disk that takes nothing for a while; what of it may leave is
decided each time it is sent. No report, sent or not, changes what serves.
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

FIRST_S = 5.0  # until a report is said again ...
AT_MOST_S = 300.0  # ... twice as long each time
TOGETHER = 4  # reports in one go: a hub takes ten notes of a device at once


class Outgoing:
    """Owned by the event loop."""

    def __init__(self, parts: Parts, sender: LedgeredSender) -> None:
        self._parts = parts
        self._sender = sender
        self._pause_s = FIRST_S
        self._due_at = 0.0
        self._pending = 0
        self._looking = False

    def put(self, report: InstallReport) -> None:
        """Its `epoch` and `seq` are given here."""
        op = partial(tables.keep, report=report, now_ms=self._parts.clock.ms())
        self._parts.database.write((op,), lambda _: self.connected(), must=True)

    def connected(self) -> None:
        """There is a hub that may not have heard, or something that it has not heard."""
        self._pause_s = FIRST_S
        self._due_at = 0.0
        self.watch()

    def watch(self) -> None:
        """Every second or so."""
        parts = self._parts
        if self._looking or parts.clock.now() < self._due_at:
            return
        if not parts.connections.home.up or not parts.database.is_open:
            return
        self._looking = True
        parts.database.read(tables.pending).add_done_callback(self._tell)

    def hear(self, note: ReportSeen) -> None:
        """What was kept in the meantime is told with the next look."""
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

    # As a side of the agent's status

    def facts(self) -> dict[str, Any]:
        return {"reports_unheard": self._pending}

    def alarms(self) -> set[str]:
        return set()
