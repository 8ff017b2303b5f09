"""Verification of incoming frames: size, sender, rate, registry, age and signature, in that order. Pure.

Rule: the cheapest check first, and nothing is written here. A frame that fails before its signature is verified is
answered a few times a second at most, and one with a bad signature never: the reply could be aimed at a third party.
"""

import msgspec

from cloud_hub.registry.device_states import GONE, HEARD, Device, DeviceLookup
from cloud_hub.security.envelopes import Envelopes
from cloud_hub.system.settings import HubSettings
from policies.serving.admission import TokenBucket, take_token
from wire.errors import Fault, RemoteError
from wire.protocol.codec import MAX_FRAME_BYTES, Frame, split_frame
from wire.protocol.messages import CipherSuite, FrameHeader, Refusal, RefusalReason
from wire.protocol.sealing import hash_frame
from wire.protocol.topics import TopicChannel, compute_shard

MAX_INT64 = 2**63 - 1  # epochs, seqs and times are signed 64-bit columns
STRIKE_BURST = 20.0  # bad signatures a device may send at once ...
STRIKES_PER_S = 0.2  # ... and over time; beyond that it is ignored for MUTE_S
MUTE_S = 60.0
MUTES = 2  # a device muted so often without one good signature in between is suspended
REFUSAL_BURST = 40.0  # refusals signed for frames that are not verified yet, at once ...
REFUSALS_PER_S = 20.0  # ... and over time
NOTE_BURST = 10.0
NOTES_PER_S = 0.5
SUSPENDED_RETRY_S = 600.0
UNKNOWN_RETRY_S = 3600.0
RATE_RETRY_S = 2.0
UNKNOWN_DEVICE = ""  # all devices that are not in the registry share one set of buckets


class VerifiedFrame(msgspec.Struct, frozen=True):
    """A verified frame: this device sent exactly this on this channel, recently enough."""

    frame: Frame
    device: Device


class DroppedFrame(msgspec.Struct, frozen=True):
    """A frame that is dropped without an answer and counted under `why`. `suspect`: its device must be suspended."""

    why: str
    suspect: bool = False


_Found = tuple[RefusalReason, float, bool]  # reason, retry_after_s, final


class _DeviceBuckets(msgspec.Struct):
    """Rate limits of one device, and how often it was muted."""

    frames: TokenBucket
    notes: TokenBucket
    courtesy: TokenBucket
    strikes: TokenBucket
    muted_until: float = 0.0
    mutes: int = 0  # since its last good signature
    heard_s: float = 0.0  # its last good signature


# A full bucket stays full: all devices share these until they first take from one.
_FULL_NOTES, _FULL_REFUSALS, _FULL_STRIKES = (
    TokenBucket(burst, 0.0) for burst in (NOTE_BURST, REFUSAL_BURST, STRIKE_BURST)
)


class FrameVerifier:
    """Verifies frames; owns four token buckets per device (frames, notes, refusals, bad signatures)."""

    def __init__(self, settings: HubSettings, registry: DeviceLookup, envelopes: Envelopes) -> None:
        self._settings = settings
        self._registry = registry
        self._envelopes = envelopes
        self._buckets: dict[str, _DeviceBuckets] = {}

    def replace_limits(self, settings: HubSettings) -> None:
        """Go by these rates from now on."""
        self._settings = settings

    def last_heard(self) -> dict[str, float]:
        """Hub time (s) of the last good signature of each device, since this process began."""
        return {device: buckets.heard_s for device, buckets in self._buckets.items() if buckets.heard_s}

    def verify_question(self, device_id: str, payload: bytes, now: float) -> VerifiedFrame | Refusal | DroppedFrame:
        """Verify a sealed question frame of `device_id`.

        Returns `VerifiedFrame`, a signed `Refusal` to send back, or `DroppedFrame` for what gets no answer. `now` in
        hub seconds.
        """
        try:
            frame = _split_frame(device_id, payload, CipherSuite.SEALED)
        except RemoteError as error:
            return DroppedFrame(error.fault.value)
        device = self._registry.device(device_id)
        buckets = self._buckets_for(device_id if device else UNKNOWN_DEVICE, now)
        if now < buckets.muted_until:
            return DroppedFrame("muted")
        found = self._check_size(payload) or self._check_rate(buckets, now)
        if device is None:
            # Not final: the device may be added again after its registry was restored from a backup.
            found = found or (RefusalReason.DEVICE_UNKNOWN, UNKNOWN_RETRY_S, False)
        else:
            found = found or self._check_state(device) or self._check_age(frame.header, now)
            if found is None:
                return self._verify_signature(VerifiedFrame(frame, device), TopicChannel.QUESTION, buckets, now)
        return self._limit_refusals(buckets, _make_refusal(frame.header, payload, found), now)

    def verify_note(
        self, device_id: str, payload: bytes, now: float, channel: TopicChannel = TopicChannel.ASK
    ) -> VerifiedFrame | DroppedFrame:
        """Verify a signed note of a known device; a note on the REPORT channel may be sealed as well."""
        suites = (CipherSuite.SIGNED, CipherSuite.SEALED) if channel is TopicChannel.REPORT else (CipherSuite.SIGNED,)
        try:
            frame = _split_frame(device_id, payload, *suites)
        except RemoteError as error:
            return DroppedFrame(error.fault.value)
        device = self._registry.device(device_id)
        if device is None or device.state not in HEARD:
            return DroppedFrame("not_active")
        buckets = self._buckets_for(device_id, now)
        if now < buckets.muted_until:
            return DroppedFrame("muted")
        left = take_token(buckets.notes, NOTES_PER_S, NOTE_BURST, now)
        if left is None:
            return DroppedFrame("note_rate")
        buckets.notes = left
        return self._verify_signature(VerifiedFrame(frame, device), channel, buckets, now)

    def _check_size(self, payload: bytes) -> _Found | None:
        return (RefusalReason.TOO_BIG, 0.0, True) if len(payload) > self._settings.max_frame_bytes else None

    def _check_rate(self, buckets: _DeviceBuckets, now: float) -> _Found | None:
        """Take from the device's frame bucket; `RefusalReason.RATE` if it is empty."""
        left = take_token(buckets.frames, self._settings.device_rate_per_s, self._settings.device_burst, now)
        if left is None:
            return RefusalReason.RATE, RATE_RETRY_S, False
        buckets.frames = left
        return None

    def _check_state(self, device: Device) -> _Found | None:
        """Refusal of a device that is suspended or gone; None for one that is served."""
        if device.state in HEARD:
            return None
        return RefusalReason.DEVICE_UNKNOWN, SUSPENDED_RETRY_S, device.state in GONE

    def _check_age(self, header: FrameHeader, now: float) -> _Found | None:
        """Refusal of a frame that is too old or from the future.

        Both limits are inclusive (exactly 7 days, 5 minutes).
        """
        age_ms = int(now * 1000) - header.created_ms
        if age_ms > self._settings.created_max_age_s * 1000:
            return RefusalReason.EXPIRED, 0.0, True
        ahead_s = -age_ms / 1000 - self._settings.created_max_ahead_s
        if ahead_s > 0:
            return RefusalReason.CREATED_AHEAD, min(ahead_s, UNKNOWN_RETRY_S), False
        return None

    def _limit_refusals(self, buckets: _DeviceBuckets, refusal: Refusal, now: float) -> Refusal | DroppedFrame:
        """The refusal, unless this device was sent too many for frames that were never verified."""
        left = take_token(buckets.courtesy, REFUSALS_PER_S, REFUSAL_BURST, now)
        if left is None:
            return DroppedFrame("refused_silently")
        buckets.courtesy = left
        return refusal

    def _verify_signature(
        self, passed: VerifiedFrame, channel: TopicChannel, buckets: _DeviceBuckets, now: float
    ) -> VerifiedFrame | DroppedFrame:
        """Verify the signature, the last check; a bad one counts as a strike."""
        try:
            self._envelopes.verify(passed.frame, passed.device, channel)
        except RemoteError as error:
            return DroppedFrame(error.fault.value, suspect=self._count_strike(buckets, now))
        buckets.mutes, buckets.heard_s = 0, now
        return passed

    def _count_strike(self, buckets: _DeviceBuckets, now: float) -> bool:
        """Count a bad signature; True if the device was muted for earlier ones and still goes on."""
        left = take_token(buckets.strikes, STRIKES_PER_S, STRIKE_BURST, now)
        if left is not None:
            buckets.strikes = left
            return False
        buckets.muted_until = now + MUTE_S
        buckets.mutes += 1
        return buckets.mutes >= MUTES

    def _buckets_for(self, name: str, now: float) -> _DeviceBuckets:
        found = self._buckets.get(name)
        if found is None:
            frames = TokenBucket(self._settings.device_burst, now)
            found = self._buckets[name] = _DeviceBuckets(frames, _FULL_NOTES, _FULL_REFUSALS, _FULL_STRIKES)
        return found


def _make_refusal(header: FrameHeader, payload: bytes, found: _Found) -> Refusal:
    reason, retry_after_s, final = found
    return Refusal(
        header.epoch, header.seq, hash_frame(payload), reason=reason, retry_after_s=retry_after_s, final=final
    )


def _split_frame(device_id: str, payload: bytes, *suites: CipherSuite) -> Frame:
    """Split a frame and check that its header names the device and shard of its topic. RemoteError otherwise."""
    frame = split_frame(payload, MAX_FRAME_BYTES)
    header = frame.header
    if frame.suite not in suites:
        raise RemoteError(Fault.SUITE, f"{frame.suite.name} where {suites[0].name} is due")
    if header.device != device_id or header.shard != compute_shard(device_id):
        raise RemoteError(Fault.TOPIC, "the header names another device or shard than the topic")
    if not (0 <= header.epoch <= MAX_INT64 and 0 <= header.seq <= MAX_INT64 and 0 <= header.created_ms <= MAX_INT64):
        raise RemoteError(Fault.MALFORMED, "a number in the header is out of range")
    return frame
