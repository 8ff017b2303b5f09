"""What comes down the link, believed or refused. Every refusal is counted under its fault's name.

Law: signature first, then the binding to the very question; only then does the clock or the core hear of it.
"""

from collections import Counter
from typing import NamedTuple

from edge_agent.clock import HubClock
from edge_agent.desk import Desk
from edge_agent.envelope import Envelopes
from wire.errors import RemoteError
from wire.messages import DownNote, Suite, Verdict, Welcome


class Heard(NamedTuple):
    """A verdict that opens for the open question `seq` and for no other."""

    seq: int
    verdict: Verdict


class Intake:
    """Owned by the event loop."""

    def __init__(self, envelopes: Envelopes, desk: Desk, clock: HubClock, counts: Counter[str]) -> None:
        self._envelopes = envelopes
        self._desk = desk
        self._clock = clock
        self._counts = counts

    def take(self, payload: bytes, epoch: int) -> DownNote | Heard | None:
        """None if it is refused, or concerns nothing that is open."""
        try:
            return self._take(payload, epoch)
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None

    def _take(self, payload: bytes, epoch: int) -> DownNote | Heard | None:
        frame = self._envelopes.believe(payload)
        header = frame.header
        if frame.suite is Suite.SIGNED:
            note = self._envelopes.open_note(frame)
            self._clock.hear(header.created_ms, welcome=isinstance(note, Welcome))
            self._counts["notes"] += 1
            return note
        memo = self._desk.memo(header.seq) if header.epoch == epoch else None
        if memo is None:
            self._counts["verdicts_repeated"] += 1  # ended before, or of an earlier database
            return None
        verdict = self._envelopes.open_verdict(frame, memo.binding)
        self._clock.hear(header.created_ms)
        self._counts["verdicts"] += 1
        return Heard(header.seq, verdict)
