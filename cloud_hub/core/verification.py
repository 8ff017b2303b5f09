"""Verification of incoming frames: size, sender, rate, registry, age and signature, in that order. Pure.

Rule: the cheapest check first, and nothing is written here. A frame that fails before its signature is verified is
answered a few times a second at most, and one with a bad signature never: the reply could be aimed at a third party.
"""

import msgspec

from cloud_hub.registry.device_states import GONE, HEARD, Device, Registry
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.serving.admission import Bucket, take
from wire.errors import Fault, RemoteError
from wire.protocol.codec import MAX_FRAME_BYTES, Frame, split
from wire.protocol.messages import Header, Reason, Refusal, Suite
from wire.protocol.sealing import digest
from wire.protocol.topics import Channel, shard_of

BIGGEST = 2**63 - 1  # epochs, seqs and times are signed 64-bit columns
STRIKES = 20.0  # bad signatures a device may send at once ...
STRIKES_PER_S = 0.2  # ... and over time; beyond that it is ignored for MUTE_S
MUTE_S = 60.0
MUTES = 2  # a device muted so often without one good signature in between is suspended
COURTESY = 40.0  # refusals signed for frames that are not verified yet, at once ...
COURTESY_PER_S = 20.0  # ... and over time
NOTES = 10.0
NOTES_PER_S = 0.5
SUSPENDED_RETRY_S = 600.0
UNKNOWN_RETRY_S = 3600.0
RATE_RETRY_S = 2.0
STRANGER = ""  # all devices that are not in the registry share one set of buckets


class Passed(msgspec.Struct, frozen=True):
    """A verified frame: this device sent exactly this on this channel, recently enough."""

    frame: Frame
    device: Device


class Dropped(msgspec.Struct, frozen=True):
    """A frame that is dropped without an answer and counted under `why`. `suspect`: its device must be suspended."""

    why: str
    suspect: bool = False


_Found = tuple[Reason, float, bool]  # reason, retry_after_s, final


class _Buckets(msgspec.Struct):
    """Rate limits of one device, and how often it was muted."""

    frames: Bucket
    notes: Bucket
    courtesy: Bucket
    strikes: Bucket
    muted_until: float = 0.0
    mutes: int = 0  # since its last good signature


# A full bucket stays full: all devices share these until they first take from one.
_FULL_NOTES, _FULL_COURTESY, _FULL_STRIKES = (Bucket(burst, 0.0) for burst in (NOTES, COURTESY, STRIKES))


class FrameVerifier:
    """Verifies frames; owns four token buckets per device (frames, notes, refusals, bad signatures)."""

    def __init__(self, settings: HubSettings, registry: Registry, envelopes: Envelopes) -> None:
        self._settings = settings
        self._registry = registry
        self._envelopes = envelopes
        self._buckets: dict[str, _Buckets] = {}

    def question(self, device_id: str, payload: bytes, now: float) -> Passed | Refusal | Dropped:
        """Verify a sealed question frame of `device_id`.

        Returns `Passed`, a signed `Refusal` to send back, or `Dropped` for what gets no answer. `now` in hub seconds.
        """
        try:
            frame = _frame(device_id, payload, Suite.SEALED)
        except RemoteError as error:
            return Dropped(error.fault.value)
        device = self._registry.device(device_id)
        buckets = self._of(device_id if device else STRANGER, now)
        if now < buckets.muted_until:
            return Dropped("muted")
        found = self._oversized(payload) or self._excess(buckets, now) or self._standing(device)
        found = found or self._age(frame.header, now)
        if found or device is None:
            return self._politely(buckets, _refusal(frame.header, payload, found), now)
        return self._believe(Passed(frame, device), Channel.QUESTION, buckets, now)

    def note(self, device_id: str, payload: bytes, now: float, channel: Channel = Channel.ASK) -> Passed | Dropped:
        """Verify a signed note of a known device; a note on the REPORT channel may be sealed as well."""
        suites = (Suite.SIGNED, Suite.SEALED) if channel is Channel.REPORT else (Suite.SIGNED,)
        try:
            frame = _frame(device_id, payload, *suites)
        except RemoteError as error:
            return Dropped(error.fault.value)
        device = self._registry.device(device_id)
        if device is None or device.state not in HEARD:
            return Dropped("not_active")
        buckets = self._of(device_id, now)
        if now < buckets.muted_until:
            return Dropped("muted")
        left = take(buckets.notes, NOTES_PER_S, NOTES, now)
        if left is None:
            return Dropped("note_rate")
        buckets.notes = left
        return self._believe(Passed(frame, device), channel, buckets, now)

    def _oversized(self, payload: bytes) -> _Found | None:
        return (Reason.TOO_BIG, 0.0, True) if len(payload) > self._settings.max_frame_bytes else None

    def _excess(self, buckets: _Buckets, now: float) -> _Found | None:
        """Take from the device's frame bucket; `Reason.RATE` if it is empty."""
        left = take(buckets.frames, self._settings.device_rate_per_s, self._settings.device_burst, now)
        if left is None:
            return Reason.RATE, RATE_RETRY_S, False
        buckets.frames = left
        return None

    def _standing(self, device: Device | None) -> _Found | None:
        """Refusal of a device that is unknown, suspended or gone; None for one that is served."""
        if device is None:
            # Not final: the device may be added again after its registry was restored from a backup.
            return Reason.DEVICE_UNKNOWN, UNKNOWN_RETRY_S, False
        if device.state in HEARD:
            return None
        return Reason.DEVICE_UNKNOWN, SUSPENDED_RETRY_S, device.state in GONE

    def _age(self, header: Header, now: float) -> _Found | None:
        """Refusal of a frame that is too old or from the future.

        Both limits are inclusive (exactly 7 days, 5 minutes).
        """
        age_ms = int(now * 1000) - header.created_ms
        if age_ms > self._settings.created_max_age_s * 1000:
            return Reason.EXPIRED, 0.0, True
        ahead_s = -age_ms / 1000 - self._settings.created_max_ahead_s
        if ahead_s > 0:
            return Reason.CREATED_AHEAD, min(ahead_s, UNKNOWN_RETRY_S), False
        return None

    def _politely(self, buckets: _Buckets, refusal: Refusal, now: float) -> Refusal | Dropped:
        """The refusal, unless this device was sent too many for frames that were never verified."""
        left = take(buckets.courtesy, COURTESY_PER_S, COURTESY, now)
        if left is None:
            return Dropped("refused_silently")
        buckets.courtesy = left
        return refusal

    def _believe(self, passed: Passed, channel: Channel, buckets: _Buckets, now: float) -> Passed | Dropped:
        """Verify the signature, the last check; a bad one counts as a strike."""
        try:
            self._envelopes.verify(passed.frame, passed.device, channel)
        except RemoteError as error:
            return Dropped(error.fault.value, suspect=self._strike(buckets, now))
        buckets.mutes = 0
        return passed

    def _strike(self, buckets: _Buckets, now: float) -> bool:
        """Count a bad signature; True if the device was muted for earlier ones and still goes on."""
        left = take(buckets.strikes, STRIKES_PER_S, STRIKES, now)
        if left is not None:
            buckets.strikes = left
            return False
        buckets.muted_until = now + MUTE_S
        buckets.mutes += 1
        return buckets.mutes >= MUTES

    def _of(self, name: str, now: float) -> _Buckets:
        found = self._buckets.get(name)
        if found is None:
            frames = Bucket(self._settings.device_burst, now)
            found = self._buckets[name] = _Buckets(frames, _FULL_NOTES, _FULL_COURTESY, _FULL_STRIKES)
        return found


def _refusal(header: Header, payload: bytes, found: _Found | None) -> Refusal:
    reason, retry_after_s, final = found or (Reason.DEVICE_UNKNOWN, UNKNOWN_RETRY_S, False)
    return Refusal(header.epoch, header.seq, digest(payload), reason=reason, retry_after_s=retry_after_s, final=final)


def _frame(device_id: str, payload: bytes, *suites: Suite) -> Frame:
    """Split a frame and check that its header names the device and shard of its topic. RemoteError otherwise."""
    frame = split(payload, MAX_FRAME_BYTES)
    header = frame.header
    if frame.suite not in suites:
        raise RemoteError(Fault.SUITE, f"{frame.suite.name} where {suites[0].name} is due")
    if header.device != device_id or header.shard != shard_of(device_id):
        raise RemoteError(Fault.TOPIC, "the header names another device or shard than the topic")
    if not (0 <= header.epoch <= BIGGEST and 0 <= header.seq <= BIGGEST and 0 <= header.created_ms <= BIGGEST):
        raise RemoteError(Fault.MALFORMED, "a number in the header is out of range")
    return frame
