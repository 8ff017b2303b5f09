"""Hub double: real keys and real frames over a broker in memory, every byte by the second implementation.

A test sets how it answers, and reads what took effect.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from edge_agent.app.agent import Agent
from edge_agent.identity.identity import HubKeys, Identity
from edge_agent.question.limits import OutboxLimits
from edge_agent.question.records import Sample
from edge_agent.system.clock import HubClock
from edge_agent.system.settings import AgentSettings
from models.runtime.runner import EchoRunner
from policies.language.document import parse_policy
from policies.model.policy import Policy
from tests.second_implementation import frames
from tests.second_implementation.records import Record, decode_record
from tests.wire.doubles import other_side
from wire.protocol.codec import Frame
from wire.protocol.messages import (
    CipherSuite,
    DenyAllNotice,
    DownNote,
    Escalation,
    HelloNote,
    LedgerHeadReport,
    Prediction,
    Receipt,
    Refusal,
    RefusalReason,
    SpendMirror,
    StatusReply,
    StatusRequest,
    Verdict,
    WelcomeNote,
)
from wire.protocol.rollout import Assignment, InstallReport, ReportReceipt
from wire.protocol.topics import TopicChannel, build_topic, parse_up_topic
from wire.transport.base import IncomingMessage, LinkLostError, MemoryBroker, MemoryTransport

DEVICE = "demo--d1"
HUB_TIME_MS = 1_790_000_000_000
SURE = np.array([0.95, 0.05], np.float32)
UNSURE = np.array([0.45, 0.55], np.float32)
TRUTH = Prediction(0, 0.99, (0.99, 0.01), "big@1")
SIGNING = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
HPKE = X25519PrivateKey.from_private_bytes(b"h" * 32)

POLICY = """
schema = 2
name = "test"
version = {version}
issued = 2026-01-01
expires = 2099-12-31
[escalation]
mode = "{mode}"
threshold = 0.8
audit_share = {audit}
budget_s = {budget_s}
novel = "{novel}"
[egress]
ceiling = "P2"
[[egress.field]]
name = "features"
level = "{level}"
transforms = [{{ kind = "clip", low = 0, high = 15 }}]
[egress.data_class]
open = true
private = false
[locality]
hubs = ["hub-1"]
regions = ["local"]
[retention]
purpose = "test"
[budget]
bytes_per_day = {bytes_per_day}
max_open = {max_open}
"""
DEFAULTS = {
    "version": 1, "mode": "answer_now", "audit": 0.0, "budget_s": 5.0, "level": "P2",
    "bytes_per_day": 10_000_000, "max_open": 1000, "novel": "flag",
}  # fmt: skip


def policy(**changes: object) -> Policy:
    return parse_policy(POLICY.format(**{**DEFAULTS, **changes})).compile()


def sample(x: np.ndarray = UNSURE, data_class: str = "open", **more: str) -> Sample:
    return Sample(x, data_class, **more)


@dataclass
class HubDouble:
    """An in-memory hub for one device. `receipts`, `verdicts`, `statuses`, `mirrors`: whether it answers with these.

    `effects`: fingerprint of the question by (epoch, seq), for each that it has accepted.
    """

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    receipts: bool = True
    verdicts: bool = True
    statuses: bool = True
    mirrors: bool = True
    prediction: Prediction = TRUTH
    effects: dict[tuple[int, int], bytes] = field(default_factory=dict)
    questions: list[tuple[Frame, bytes, Escalation]] = field(default_factory=list)  # frame, its bytes, plaintext
    notes: list[StatusRequest | HelloNote] = field(default_factory=list)
    heads: list[LedgerHeadReport] = field(default_factory=list)
    acknowledges: bool = True
    reports: list[InstallReport] = field(default_factory=list)
    now_ms: int = HUB_TIME_MS
    present: bool = False

    def __post_init__(self) -> None:
        self.signing = Ed25519PrivateKey.from_private_bytes(b"r" * 32)
        self.hpke = X25519PrivateKey.from_private_bytes(b"k" * 32)
        self.signing_id = other_side.name_key(self.signing.public_key())
        self.keys = HubKeys(
            "hub-1", "local", self.hpke.public_key().public_bytes_raw(), self.signing.public_key().public_bytes_raw()
        )

    def identity(self) -> Identity:
        return Identity(DEVICE, "localhost", 1, (self.keys,), HUB_TIME_MS, SIGNING, HPKE, b"p" * 32)

    async def connect(self) -> MemoryTransport:
        """For the agent; refused while the hub itself is not there, so that no test waits for a retry by accident."""
        if not self.present:
            raise LinkLostError("no hub")
        return self.broker.connect()

    async def run(self) -> None:
        """Subscribe and handle messages, and reconnect, until cancelled."""
        while True:
            with contextlib.suppress(LinkLostError):
                transport = self.broker.connect()
                await transport.subscribe(
                    tuple(f"v1/+/+/{c}" for c in (TopicChannel.QUESTION, TopicChannel.ASK, TopicChannel.REPORT))
                )
                self.present = True
                while True:
                    for message in await transport.receive():
                        self.on_message(message)
            self.present = False
            await asyncio.sleep(0.01)

    def on_message(self, message: IncomingMessage) -> None:
        """Verify a message of the device and dispatch it by its type."""
        _, channel = parse_up_topic(message.topic)
        frame = other_side.read_frame(message.payload, SIGNING.public_key(), channel)
        if channel is TopicChannel.QUESTION:
            self.on_question(frame, message.payload)
            return
        if channel is TopicChannel.REPORT and frame.suite is CipherSuite.SEALED:
            self.on_report(frame)
            return
        note = other_side.decode_up_note(frame.body)
        assert not isinstance(note, InstallReport)
        assert isinstance(note, LedgerHeadReport) is (channel is TopicChannel.REPORT)
        if isinstance(note, LedgerHeadReport):
            self.on_heads(note)
        else:
            self.on_note(note)

    def on_heads(self, heads: LedgerHeadReport) -> None:
        """Answer a ledger head with a mirror of the device's own spending; it keeps no log."""
        self.heads.append(heads)
        if self.mirrors:
            self.send_note(SpendMirror(heads.epoch, heads.spend))

    def on_report(self, frame: Frame) -> None:
        opened = other_side.open_frame(frame, self.hpke, TopicChannel.REPORT)
        note = other_side.decode_up_note(frames.unpad(opened))
        assert isinstance(note, InstallReport)
        self.reports.append(note)
        if self.acknowledges:
            self.send_note(ReportReceipt(0, note.seq))

    def on_note(self, note: StatusRequest | HelloNote) -> None:
        self.notes.append(note)
        if isinstance(note, HelloNote):
            self.send_note(WelcomeNote(note.epoch, "hub-1", "local"))
        elif self.statuses:
            asked = {frame.header.seq for frame, _, _ in self.questions}
            known = [seq for seq in note.seqs if (note.epoch, seq) in self.effects and seq in asked]
            unknown = tuple(seq for seq in note.seqs if seq not in known)
            if self.verdicts:
                for frame, _, question in [q for q in self.questions if q[0].header.seq in known]:
                    self.send_frame(self.seal_verdict(frame, question))
                known = []
            self.send_note(StatusReply(note.epoch, tuple(known), unknown))

    def on_question(self, frame: Frame, data: bytes) -> None:
        padded = self.open_question(frame)
        question = other_side.decode_question(padded)
        self.questions.append((frame, data, question))
        key = (frame.header.epoch, frame.header.seq)
        fingerprint = frames.fingerprint(padded)
        assert self.effects.get(key, fingerprint) == fingerprint
        if self.receipts:
            self.effects[key] = fingerprint
            self.send_note(Receipt(key[0], (key[1],)))
        if self.verdicts:
            self.effects[key] = fingerprint
            self.send_frame(self.seal_verdict(frame, question))

    def open_question(self, frame: Frame) -> bytes:
        return other_side.open_frame(frame, self.hpke, TopicChannel.QUESTION)

    # Messages to the device

    def send_frame(self, data: bytes) -> None:
        self.broker.publish(IncomingMessage(build_topic(DEVICE, TopicChannel.REPLY), data))

    def send_note(self, note: DownNote) -> None:
        """Sign a note and send it to the device."""
        self.send_frame(self.sign_note(note))

    def sign_order(
        self,
        note: DenyAllNotice | Assignment,
        channel: TopicChannel = TopicChannel.DESIRED,
        receiver: Ed25519PrivateKey = SIGNING,
    ) -> bytes:
        """A frame with an order. `receiver`: signing key of the enrolment that it is for."""
        header = other_side.make_header(DEVICE, 0, 0, self.now_ms, self.signing_id)
        binding = other_side.bind_order(receiver.public_key())
        return other_side.sign_message(header, note, self.signing, channel, binding)

    def send_order(self, frame: bytes) -> None:
        self.broker.publish(IncomingMessage(build_topic(DEVICE, TopicChannel.DESIRED), frame))

    def sign_note(self, note: DownNote, by: Ed25519PrivateKey | None = None) -> bytes:
        header = other_side.make_header(DEVICE, note.epoch, 0, self.now_ms, self.signing_id)
        return other_side.sign_message(header, note, by or self.signing, TopicChannel.REPLY)

    def seal_verdict(self, frame: Frame, question: Escalation, by: Ed25519PrivateKey | None = None) -> bytes:
        told = frame.header
        key_id = other_side.name_key(HPKE.public_key())
        header = other_side.make_header(DEVICE, told.epoch, told.seq, self.now_ms, key_id)
        binding, padded = self.bind_verdict(frame, question), self.pad_verdict()
        return other_side.seal_padded(
            header, padded, to=HPKE.public_key(), by=by or self.signing, channel=TopicChannel.REPLY, binding=binding
        )

    def bind_verdict(self, frame: Frame, question: Escalation) -> bytes:
        model = f"{question.model.name}@{question.model.version}"
        return other_side.bind_verdict(self.open_question(frame), model, question.policy)

    def pad_verdict(self) -> bytes:
        return other_side.pad_message(Verdict(self.prediction, "hub-1", "local", 0.001, 0.002))

    def make_refusal(self, data: bytes, reason: RefusalReason, retry_after_s: float = 0.0, *, final: bool) -> Refusal:
        header = split_header(data)
        return Refusal(header["epoch"], header["seq"], frames.digest(data), reason, retry_after_s, final)


def split_header(data: bytes) -> Record:
    """Header of a frame of any version."""
    return decode_record(data[4 : 4 + int.from_bytes(data[2:4], "big")], "FrameHeader")


def public_bytes(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


class ManualClock:
    """A clock that a test advances by hand: `mono_s` in seconds, `wall` in milliseconds."""

    def __init__(self) -> None:
        self.mono_s = 1000.0
        self.wall = HUB_TIME_MS

    def hub_clock(self) -> HubClock:
        return HubClock(HUB_TIME_MS, lambda: self.mono_s, lambda: self.wall)

    def advance(self, seconds: float) -> None:
        """Advance both clocks by so many seconds."""
        self.mono_s += seconds
        self.wall += int(seconds * 1000)


QUICK = OutboxLimits(resend_base_s=0.05, resend_cap_s=0.1, ask_interval_s=0.2)


def settings(folder: Path, outbox: OutboxLimits = QUICK, **changes: object) -> AgentSettings:
    quick = {"reconnect_base_s": 0.01, "reconnect_cap_s": 0.05, "watchdog_s": 0.02, "flush_s": 0.005}
    quick |= {"answers_every_s": 0.005, "inline_infer_s": 10.0}
    return AgentSettings(state_dir=folder, outbox=outbox, **{**quick, **changes})  # type: ignore[arg-type]


class AgentRig(contextlib.AbstractAsyncContextManager["AgentRig"]):
    """A hub double and an agent in one event loop, connected when the block begins."""

    def __init__(self, folder: Path, rules: Policy | None = None, hub: HubDouble | None = None, **more: object) -> None:
        self.hub = hub or HubDouble()
        self.clock = more.pop("clock", None)
        runner: Any = more.pop("runner", None) or EchoRunner(2)
        self.agent = Agent(
            settings(folder, **more), self.hub.identity(), runner, rules, self.hub.connect,  # type: ignore[arg-type]
            clock=self.clock,  # type: ignore[arg-type]
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        self._hub_task = asyncio.create_task(self.hub.run())
        await asyncio.sleep(0)
        self._agent_task = asyncio.create_task(self.agent.run())
        await until(lambda: self.agent.status()["disk"] == "ok" or self.agent._counts["database_unusable"])
        if self.hub.broker.up:
            await until(lambda: self.agent.status()["link"] == "up")
            # a new device asks nothing before a hub has answered with what it remembers of its spending
            await until(
                lambda: (
                    not self.hub.mirrors or self.agent._core.epoch < 0 or self.agent._core.permissions.spend.mirrored
                )
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.agent.stop()
        await self._agent_task
        self._hub_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._hub_task

    @property
    def open(self) -> int:
        return int(self.agent.status()["open"])

    def event_count(self, name: str) -> int:
        return self.agent.counts.get(name, 0)


async def until(condition: object, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.002)
