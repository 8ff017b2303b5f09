"""Verification of messages from hubs: each is decoded, verified and decrypted, or refused and counted by its fault.

Rule: first the signature, then the binding to the very question; only then does the clock or the core see it.
"""

from collections import Counter
from typing import NamedTuple

from edge_agent.system.clock import HubClock
from edge_agent.uplink.envelope import Envelopes
from edge_agent.uplink.sealing import PendingVerdicts
from wire.errors import Fault, RemoteError
from wire.protocol.messages import DenyAll, DownNote, Suite, Verdict, Welcome
from wire.protocol.rollout import Assignment
from wire.protocol.topics import Channel


class Heard(NamedTuple):
    """A verified verdict, which decrypts for the open question `seq` and for no other."""

    seq: int
    verdict: Verdict


class Intake:
    """Verifies and opens messages of all lines; used on the event loop only.

    Refusals are counted as `refused_<fault>`.
    """

    def __init__(self, envelopes: Envelopes, pending: PendingVerdicts, clock: HubClock, counts: Counter[str]) -> None:
        self._envelopes = envelopes
        self._pending = pending
        self._clock = clock
        self._counts = counts

    def take(self, payload: bytes, epoch: int, line: str = "") -> DownNote | Heard | None:
        """Verify a message of the reply topic. Only the hubs of this line are accepted on it.

        Returns None if it is refused, or concerns no question that is open.
        """
        try:
            return self._take(payload, epoch, self._envelopes.on(line))
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None

    def order(self, payload: bytes, line: str = "") -> DenyAll | Assignment | None:
        """Verify a message of the topic `down/desired`: a deny-all order or an assignment. None if it is refused."""
        try:
            envelopes = self._envelopes.on(line)
            frame = envelopes.believe(payload, Channel.DESIRED)
            note = _ordered(envelopes.open_note(frame))
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None
        self._clock.hear(frame.header.created_ms)
        return note

    def _take(self, payload: bytes, epoch: int, envelopes: Envelopes) -> DownNote | Heard | None:
        frame = envelopes.believe(payload)
        header = frame.header
        if frame.suite is Suite.SIGNED:
            note = envelopes.open_note(frame)
            self._clock.hear(header.created_ms, welcome=isinstance(note, Welcome))
            self._counts["notes"] += 1
            return note
        pending = self._pending.get(header.seq) if header.epoch == epoch else None
        if pending is None:
            self._counts["verdicts_repeated"] += 1  # ended before, or of an earlier database
            return None
        verdict = envelopes.open_verdict(frame, pending.binding)
        self._clock.hear(header.created_ms)
        self._counts["verdicts"] += 1
        return Heard(header.seq, verdict)


def _ordered(note: DownNote) -> DenyAll | Assignment:
    if not isinstance(note, DenyAll | Assignment):
        raise RemoteError(Fault.MALFORMED, "neither a deny-all order nor an assignment")
    return note
