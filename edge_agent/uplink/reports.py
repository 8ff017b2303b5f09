"""Sender of rollout reports to the home hub: each is repeated, with growing pauses, until the hub acknowledges it.

Rule: a report is stored before it is sent, also while the disk fails for a time; which of its fields may leave is
decided each time it is sent. No report, sent or not, changes which model serves.
"""

import asyncio
from functools import partial
from typing import Any

import msgspec

from edge_agent.question.permissions import disclose_report
from edge_agent.storage import tables
from edge_agent.uplink.outbound import LedgeredSender, read_result
from edge_agent.uplink.services import AgentServices
from wire.protocol.rollout import InstallReport, ReportReceipt

FIRST_S = 5.0  # pause before a report is sent again ...
MAX_PAUSE_S = 300.0  # ... doubled each time, up to this
MAX_BURST = 4  # reports in one burst: a hub accepts ten notes of a device at once


class RolloutReporter:
    """Stores and sends install reports; used on the event loop only. A provider of the agent's status."""

    def __init__(self, parts: AgentServices, sender: LedgeredSender) -> None:
        self._parts = parts
        self._sender = sender
        self._pause_s = FIRST_S
        self._due_at = 0.0
        self._pending = 0
        self._looking = False

    def put_report(self, report: InstallReport) -> None:
        """Store a report and send it. Its `epoch` and `seq` are set here."""
        op = partial(tables.store_report, report=report, now_ms=self._parts.clock.hub_ms())
        self._parts.database.write((op,), lambda _: self.on_connected(), must=True)

    def on_connected(self) -> None:
        """Start again with the shortest pause: the home hub is connected, or there is a new report."""
        self._pause_s = FIRST_S
        self._due_at = 0.0
        self.send_due()

    def send_due(self) -> None:
        """Send the pending reports if the pause is over; called about every second."""
        parts = self._parts
        if self._looking or parts.clock.now() < self._due_at:
            return
        if not parts.connections.home.up or not parts.database.is_open:
            return
        self._looking = True
        parts.database.read(tables.read_reports).add_done_callback(self._send_reports)

    def on_acknowledged(self, note: ReportReceipt) -> None:
        """The hub has acknowledged a report; what was stored in the meantime is sent next."""
        self._parts.counts["reports_seen"] += 1
        self._parts.database.write((partial(tables.drop_reports, seq=note.seq),), lambda _: self.on_connected())

    def _send_reports(self, found: "asyncio.Future[list[InstallReport]]") -> None:
        self._looking = False
        told = read_result(found) or []
        self._pending = len(told)
        self._due_at = self._parts.clock.now() + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        core = self._parts.core
        for report in told[:MAX_BURST]:
            self._sender.send_note(msgspec.structs.replace(disclose_report(report, core.permissions), epoch=core.epoch))

    # For the agent's status

    def status_fields(self) -> dict[str, Any]:
        """Fields of the agent's status: how many reports no hub has acknowledged."""
        return {"reports_unheard": self._pending}

    def alarms(self) -> set[str]:
        """None: a report that waits needs nobody."""
        return set()
