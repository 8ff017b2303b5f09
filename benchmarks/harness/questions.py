"""Load generator of the intake benchmark: sealed questions of 1 KB, and a sender that keeps its window full."""

import asyncio
import time
from typing import NamedTuple

from cloud_hub.engine.types import ModelCard
from edge_agent.identity.identity import Identity
from wire.protocol.codec import decode_down_note, encode_wire_message, pad_plaintext, split_frame
from wire.protocol.messages import (
    CipherSuite,
    Escalation,
    FieldSpec,
    FrameHeader,
    ModelRef,
    Receipt,
    SensitivityLevel,
    Tensor,
    TensorDType,
)
from wire.protocol.sealing import seal_frame
from wire.protocol.topics import TopicChannel, build_topic, compute_shard
from wire.transport.mqtt import MqttTransport

WINDOW = 32  # unreceipted questions a device may have in flight
CODES = 640
PADDED_BYTES = 832  # with header, HPKE and signature a frame of about 1 KB
REF = ModelRef("bench", 1, "cut", "pack8")
CARD = ModelCard(
    REF, (FieldSpec("features", TensorDType.UINT8, (CODES,), 0, 255, SensitivityLevel.P2, "features"),), ("a", "b")
)


class QuestionSender(NamedTuple):
    """One device: its link, and its questions, sealed beforehand."""

    identity: Identity
    link: MqttTransport
    frames: list[bytes]


def seal_questions(identity: Identity, epoch: int, count: int) -> list[bytes]:
    """`count` questions that differ, sealed and signed as the device's own agent would."""
    hub = identity.hubs[0]
    device, created_ms = identity.device, int(time.time() * 1000)

    def one(seq: int) -> bytes:
        codes = seq.to_bytes(4, "big") * (CODES // 4)
        fields = {"features": Tensor(TensorDType.UINT8, (CODES,), codes)}
        question = Escalation(f"{seq:032x}", REF, "0" * 32, hub.region, fields, 5.0, audit=False, trace="")
        header = FrameHeader(compute_shard(device), device, epoch, seq, created_ms, hub.key_id)
        padded = pad_plaintext(encode_wire_message(question), PADDED_BYTES)
        return seal_frame(header, padded, to=hub.seal_to, by=identity.signing, channel=TopicChannel.QUESTION)

    return [one(seq) for seq in range(1, count + 1)]


async def send_questions(sender: QuestionSender) -> int:
    """Send everything with at most `WINDOW` questions that the hub has not owned up to; how many it did."""
    up, owned, posted = build_topic(sender.identity.device, TopicChannel.QUESTION), set[int](), 0
    while len(owned) < len(sender.frames):
        while posted < len(sender.frames) and posted - len(owned) < WINDOW:
            sender.link.post(up, sender.frames[posted])
            posted += 1
        for message in await asyncio.wait_for(sender.link.receive(), 20):
            owned.update(parse_owned(message.payload))
    return len(owned)


def parse_owned(payload: bytes) -> tuple[int, ...]:
    """Seqs that a receipt names, or that a verdict answers (the hub sends no receipt where the verdict is quicker)."""
    frame = split_frame(payload)
    if frame.suite is CipherSuite.SEALED:
        return (frame.header.seq,)
    note = decode_down_note(frame.body)
    if not isinstance(note, Receipt):
        raise TypeError(f"the hub said {note}")
    return note.seqs
