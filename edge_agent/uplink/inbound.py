"""Verification of messages from hubs: each is decoded, verified and decrypted, or refused and counted by its fault.

Rule: first the signature, then the binding to the very question; only then does the clock or the core see it.
"""

from collections import Counter
from typing import NamedTuple

from edge_agent.system.clock import HubClock
from edge_agent.uplink.envelope import Envelopes
from edge_agent.uplink.sealing import PendingVerdicts
from wire.errors import Fault, RemoteError
from wire.protocol.messages import CipherSuite, DenyAllNotice, DownNote, Verdict, WelcomeNote
from wire.protocol.rollout import Assignment
from wire.protocol.topics import TopicChannel


class VerifiedVerdict(NamedTuple):
    """A verified verdict, which decrypts for the open question `seq` and for no other."""

    seq: int
    verdict: Verdict


class InboundVerifier:
    """Verifies and opens messages of all lines; used on the event loop only.

    Refusals are counted as `refused_<fault>`.
    """

    def __init__(self, envelopes: Envelopes, pending: PendingVerdicts, clock: HubClock, counts: Counter[str]) -> None:
        self._envelopes = envelopes
        self._pending = pending
        self._clock = clock
        self._counts = counts

    def open_reply(self, payload: bytes, epoch: int, line: str = "") -> DownNote | VerifiedVerdict | None:
        """Verify a message of the reply topic. Only the hubs of this line are accepted on it.

        Returns None if it is refused, or concerns no question that is open.
        """
        try:
            return self._open_reply(payload, epoch, self._envelopes.for_line(line))
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None

    def open_order(self, payload: bytes, line: str = "") -> DenyAllNotice | Assignment | None:
        """Verify a message of the topic `down/desired`: a deny-all order or an assignment. None if it is refused."""
        try:
            envelopes = self._envelopes.for_line(line)
            frame = envelopes.verify_frame(payload, TopicChannel.DESIRED)
            note = require_order(envelopes.open_note(frame))
        except RemoteError as error:
            self._counts[f"refused_{error.fault}"] += 1
            return None
        self._clock.on_signed_time(frame.header.created_ms)
        return note

    def _open_reply(self, payload: bytes, epoch: int, envelopes: Envelopes) -> DownNote | VerifiedVerdict | None:
        frame = envelopes.verify_frame(payload)
        header = frame.header
        if frame.suite is CipherSuite.SIGNED:
            note = envelopes.open_note(frame)
            self._clock.on_signed_time(header.created_ms, welcome=isinstance(note, WelcomeNote))
            self._counts["notes"] += 1
            return note
        pending = self._pending.get(header.seq) if header.epoch == epoch else None
        if pending is None:
            self._counts["verdicts_repeated"] += 1  # ended before, or of an earlier database
            return None
        verdict = envelopes.open_verdict(frame, pending.binding)
        self._clock.on_signed_time(header.created_ms)
        self._counts["verdicts"] += 1
        return VerifiedVerdict(header.seq, verdict)


def require_order(note: DownNote) -> DenyAllNotice | Assignment:
    if not isinstance(note, DenyAllNotice | Assignment):
        raise RemoteError(Fault.MALFORMED, "neither a deny-all order nor an assignment")
    return note
