"""Notes about sessions: whom the hub invites, which offers and lists of frames it takes up. Pure.

Rule: sessions are for the device classes that the hub's configuration names, none by default. A question of a session
is not signed, so a hub whose operator relies on the signature of each one opens none (docs/adr/0050).
"""

from cloud_hub.core.commands import Command, KeepFrameList, OpenSession, SendNote
from cloud_hub.core.context import CoreContext
from cloud_hub.core.verification import MAX_INT64, VerifiedFrame
from cloud_hub.registry.device_states import Device
from wire.ledger.merkle import HASH_BYTES
from wire.protocol.session_notes import SealedFrameList, SessionInvite, SessionOffer
from wire.protocol.sessions import SHARE_BYTES

OFFER_AGE_S = 300.0  # inclusive: an older offer is a recorded one, or of a device whose clock is wrong
MAX_LISTED = 2000  # frames in one list


class SessionNotes:
    """Decides on the notes of `wire.protocol.session_notes`."""

    def __init__(self, context: CoreContext) -> None:
        self._context = context

    def invite(self, device: Device, epoch: int) -> list[Command]:
        """The invitation of a device that has just connected, if this hub opens sessions for it."""
        if not self._context.settings.opens_sessions(device.device_class):
            return []
        return [SendNote(device.id, SessionInvite(epoch, self._context.settings.name))]

    def on_note(
        self, passed: VerifiedFrame, payload: bytes, note: SessionOffer | SealedFrameList, now: float
    ) -> list[Command]:
        """Handle a verified offer or list; `payload`: the note as it was signed. `now` in hub seconds."""
        if isinstance(note, SessionOffer):
            return self._on_offer(passed, note, now)
        if note.hub != self._context.settings.name or not is_sound_list(note):
            return self._context.count_drop("malformed")
        key = passed.device.signing_key.public_bytes_raw()
        return [KeepFrameList(passed.device.id, key, note, payload)]

    def _on_offer(self, passed: VerifiedFrame, offer: SessionOffer, now: float) -> list[Command]:
        settings, device = self._context.settings, passed.device
        if not settings.opens_sessions(device.device_class) or offer.hub != settings.name:
            return self._context.count_drop("no_sessions")
        if len(offer.share) != SHARE_BYTES or not 0 <= offer.epoch <= MAX_INT64:
            return self._context.count_drop("malformed")
        if abs(now - passed.frame.header.created_ms / 1000) > OFFER_AGE_S:
            return self._context.count_drop("old_offer")
        return [OpenSession(device, offer)]


def is_sound_list(listed: SealedFrameList) -> bool:
    """Whether the numbers of a list are in range and its digests have the length of a SHA-256."""
    numbers = 0 <= listed.after < listed.entries <= MAX_INT64 and 0 <= listed.epoch <= MAX_INT64
    few = len(listed.digests) <= min(MAX_LISTED, listed.entries - listed.after)
    return numbers and few and all(len(digest) == HASH_BYTES for digest in listed.digests)
