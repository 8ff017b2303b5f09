"""Sessions that a hub has open with devices: their keys, in memory alone.

Rule: no key of a session and none of one use ever reaches a disk, and all that this process knows of a session is
dropped `GRACE_S` after its end: what was recorded of it opens for nobody from then on. A hub that starts anew, or takes
over a shard, has none of the sessions there; it refuses their questions as KEY_EXPIRED, and devices seal them again.
"""

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cloud_hub.registry.device_states import Device
from cloud_hub.security.hub_keys import HubKeys
from wire.errors import RemoteError
from wire.protocol.codec import Frame, hash_plaintext
from wire.protocol.session_notes import SessionAccept, SessionOffer
from wire.protocol.sessions import (
    SESSION_S,
    SHARE_BYTES,
    SessionKeys,
    SessionTerms,
    VerdictKey,
    agree_as_hub,
    derive_verdict_key,
    open_in_session,
)
from wire.protocol.topics import compute_shard

GRACE_S = 900.0  # questions sealed before the end still arrive so long after it
MAX_OF_DEVICE = 4  # open at once: the present one, the one before, and those of restarts
MAX_SESSIONS = 65_536  # about 60 MB; the oldest go first, and their devices seal again


class OpenedQuestion(NamedTuple):
    """A question of a session: its padded plaintext, the hash of it, and the key of its verdict."""

    padded: bytes
    fingerprint: bytes
    verdict_key: VerdictKey


class _OpenSession(NamedTuple):
    """A session. `signer`: raw Ed25519 key of the device that it was agreed with; `ends_s` in hub seconds."""

    keys: SessionKeys
    accept: SessionAccept
    signer: bytes
    ends_s: float


class SessionTable:
    """The open sessions by device and name; used on the event loop only."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, bytes], _OpenSession] = OrderedDict()
        self._of_device: dict[str, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def accept_offer(self, device: Device, offer: SessionOffer, keys: HubKeys, now: float) -> SessionAccept | None:
        """Begin a session as offered; the same offer once more gets the same answer.

        None if it names an HPKE key that is gone, or holds a key with which no secret can be agreed. `now` in hub
        seconds.
        """
        signer = device.signing_key.public_bytes_raw()
        known = self._find_offered(device.id, signer, offer)
        hpke = keys.hpke.get(offer.key_id)
        if known is not None or hpke is None or len(offer.share) != SHARE_BYTES:
            return known
        own = X25519PrivateKey.generate()  # of one use: it ends with this call
        terms = SessionTerms(
            device.id, signer, offer.hub, keys.signing_public, hpke.public_key().public_bytes_raw(), offer.epoch,
            offer.share, own.public_key().public_bytes_raw(), int((now + SESSION_S) * 1000),
        )  # fmt: skip
        try:
            made = agree_as_hub(terms, own, hpke)
        except RemoteError:
            return None
        accept = SessionAccept(offer.epoch, offer.hub, offer.share, terms.share, terms.ends_ms)
        self._add(device.id, _OpenSession(made, accept, signer, terms.ends_ms / 1000))
        return accept

    def open_question(self, frame: Frame, device: Device | None = None) -> OpenedQuestion | None:
        """Open a question; None if its session is not open here, or was agreed with another key than the device's.

        `device`: None for a frame that was checked when it was stored. RemoteError(SEAL) if it does not open.
        """
        header = frame.header
        session = self._open.get((header.device, header.key_id))
        if session is None or session.accept.epoch != header.epoch:
            return None
        if device is not None and device.signing_key.public_bytes_raw() != session.signer:
            return None
        padded = open_in_session(frame, keys=session.keys)
        fingerprint = hash_plaintext(padded)
        return OpenedQuestion(
            padded, fingerprint, derive_verdict_key(session.keys, header.epoch, header.seq, fingerprint)
        )

    def forget_ended(self, now: float) -> None:
        """Drop the keys of sessions that have ended. `now` in hub seconds."""
        for name in [name for name, session in self._open.items() if now > session.ends_s + GRACE_S]:
            self._drop(name)

    def forget_shards(self, shards: AbstractSet[int]) -> None:
        """Drop the sessions of devices of these shards: another hub serves them."""
        for name in [name for name in self._open if compute_shard(name[0]) in shards]:
            self._drop(name)

    def _find_offered(self, device: str, signer: bytes, offer: SessionOffer) -> SessionAccept | None:
        for name in self._of_device.get(device, ()):
            session = self._open[device, name]
            same = (session.accept.epoch, session.accept.hub, session.accept.offered, session.signer)
            if same == (offer.epoch, offer.hub, offer.share, signer):
                return session.accept
        return None

    def _add(self, device: str, session: _OpenSession) -> None:
        names = self._of_device.setdefault(device, [])
        while len(names) >= MAX_OF_DEVICE:
            self._drop((device, names[0]))
            names = self._of_device.setdefault(device, [])
        names.append(session.keys.id)
        self._open[device, session.keys.id] = session
        while len(self._open) > MAX_SESSIONS:
            self._drop(next(iter(self._open)))

    def _drop(self, name: tuple[str, bytes]) -> None:
        device, session = name
        del self._open[name]
        names = self._of_device[device]
        names.remove(session)
        if not names:
            del self._of_device[device]
