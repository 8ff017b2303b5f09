"""Simulated devices with real keys and frames, without the agent, and a registry in memory.

Frames of version 1 are made and read by the second implementation.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cloud_hub.engine.types import make_model_card
from cloud_hub.registry.device_states import Standing
from cloud_hub.security.hub_keys import HubKeys, generate_keys
from models.runtime.feature_codec import build_codec
from models.runtime.runner import echo_manifest
from tests.second_implementation import frames
from tests.wire.doubles import other_side
from wire.protocol.messages import (
    CipherSuite,
    DownNote,
    Escalation,
    FrameHeader,
    HelloNote,
    StatusRequest,
    Tensor,
    UpNote,
    Verdict,
)
from wire.protocol.topics import TopicChannel, build_topic

MANIFEST = echo_manifest()
CARD = make_model_card(MANIFEST)
CODEC = build_codec(MANIFEST.codec, MANIFEST.features)
HUB = generate_keys()
NOW_S = 1_800_000_000.0
POLICY = "ab" * 16


@dataclass(frozen=True)
class Enrolled:
    """A device of `MemoryRegistry`."""

    id: str
    signing_key: Ed25519PublicKey
    hpke_key: X25519PublicKey
    state: Standing = Standing.ACTIVE
    device_class: str = ""
    region: str = ""


class MemoryRegistry:
    """Implementation of the registry protocol in memory."""

    def __init__(self, devices: Iterable[Enrolled] = ()) -> None:
        self._devices = {device.id: device for device in devices}

    def device(self, device: str, /) -> Enrolled | None:
        return self._devices.get(device)

    def suspect(self, device: str, now_ms: int, /) -> bool:
        del now_ms
        found = self._devices.get(device)
        if found is None or found.state is not Standing.ACTIVE:
            return False
        self.put(replace(found, state=Standing.SUSPENDED))
        return True

    def put(self, device: Enrolled) -> None:
        self._devices[device.id] = device


class SimDevice:
    """Device that seals questions and opens replies with real cryptography."""

    def __init__(self, name: str = "demo--d1", hub: HubKeys = HUB, epoch: int = 77) -> None:
        self.id = name
        self.epoch = epoch
        self.hub = hub
        self.signing = Ed25519PrivateKey.generate()
        self.hpke = X25519PrivateKey.generate()
        self.marks: dict[int, tuple[bytes, str]] = {}  # padded question and policy, by seq

    def enrolled(self, state: Standing = Standing.ACTIVE) -> Enrolled:
        return Enrolled(self.id, self.signing.public_key(), self.hpke.public_key(), state)

    @property
    def up(self) -> str:
        return build_topic(self.id, TopicChannel.QUESTION)

    @property
    def ask_topic(self) -> str:
        return build_topic(self.id, TopicChannel.ASK)

    @property
    def down(self) -> str:
        return build_topic(self.id, TopicChannel.REPLY)

    def escalation(self, seq: int, **changes) -> Escalation:
        codes = np.full(10, seq % 16, np.uint8)
        fields: dict[str, Tensor] = {"features": CODEC.encode("features", codes)}
        question = Escalation(f"{seq:032x}", MANIFEST.ref, POLICY, "local", fields, 1.0, False, "", data_class="open")
        return msgspec.structs.replace(question, **changes)

    def header(self, seq: int, created_s: float = NOW_S, key: bytes | None = None) -> FrameHeader:
        key_id = key or frames.key_id(self.hub.hpke_public)
        return other_side.make_header(self.id, self.epoch, seq, round(created_s * 1000), key_id)

    def question(self, seq: int, created_s: float = NOW_S, size: int = 512, **changes) -> bytes:
        question = self.escalation(seq, **changes)
        padded = other_side.pad_message(question, size)
        self.marks[seq] = padded, question.policy
        to = X25519PublicKey.from_public_bytes(self.hub.hpke_public)
        header = self.header(seq, created_s)
        return other_side.seal_padded(header, padded, to=to, by=self.signing, channel=TopicChannel.QUESTION)

    def ask(self, *seqs: int) -> bytes:
        return self._note(StatusRequest(self.epoch, seqs))

    def hello(self) -> bytes:
        return self._note(HelloNote(self.epoch, "boot", "agent/1", (MANIFEST.ref,)))

    def _note(self, note: UpNote) -> bytes:
        header = self.header(0, key=other_side.name_key(self.signing.public_key()))
        return other_side.sign_message(header, note, self.signing, TopicChannel.ASK)

    def read(self, payload: bytes) -> DownNote | tuple[int, Verdict]:
        """A note, or (seq, verdict): checked as a device checks it."""
        frame = other_side.read_frame(payload, self.hub.signing.public_key(), TopicChannel.REPLY)
        if frame.suite is CipherSuite.SIGNED:
            return other_side.decode_down_note(frame.body)
        opened = other_side.open_frame(frame, self.hpke, TopicChannel.REPLY, self._binding(frame.header.seq))
        return frame.header.seq, other_side.decode_verdict(opened)

    def _binding(self, seq: int) -> bytes:
        padded, policy = self.marks[seq]
        return other_side.bind_verdict(padded, MANIFEST.model, policy)


def registry(*devices: SimDevice) -> MemoryRegistry:
    return MemoryRegistry(device.enrolled() for device in devices)
