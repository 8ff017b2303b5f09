"""Signed notes of a device: `Hello` is welcomed, `Ask` is answered with verdicts, refusals and `Statuses`. Pure."""

from collections.abc import Mapping

import msgspec

from cloud_hub.core.commands import Command, Find, Greeted, Key, Log, Reported, Resend, Row, Suspect, Tell
from cloud_hub.core.merging_context_parts import CoreContext, refusal
from cloud_hub.core.merging_notes_clones import Finding, Past, Sighting, judge
from cloud_hub.core.merging_notes_ledger_notes import is_sound
from cloud_hub.core.merging_notes_rollout_notes import is_possible
from cloud_hub.core.verification import BIGGEST, Dropped, FrameVerifier, Passed
from cloud_hub.registry.merging_device_states_devices import Device
from wire.errors import Fault, RemoteError
from wire.protocol.codec import Frame, decode_up, unpad
from wire.protocol.messages import Ask, Heads, Hello, Statuses, Suite, UpNote, Welcome
from wire.protocol.rollout import InstallReport
from wire.protocol.topics import Channel

CONNECTS_PER_S = 15.0  # a fleet that lost its broker comes back at this rate: 500 devices over half a minute
ASK_REPLIES = 1024  # verdicts sent for one Ask; the rest is called pending until the next


class _Asked(msgspec.Struct, eq=False):
    """An Ask whose lookup is under way."""

    device: Device
    epoch: int
    keys: tuple[Key, ...]
    pending: list[int]


class NoteHandler:
    """Owns the Asks under way, the last Hello of each device, and which of its boots and epochs are over."""

    def __init__(self, context: CoreContext, gate: FrameVerifier) -> None:
        self.hellos: dict[str, Hello] = {}
        self._fresh: dict[str, Hello] = {}
        self._context = context
        self._gate = gate
        self._asked: dict[int, _Asked] = {}
        self._pasts: dict[str, Past] = {}
        self._tickets = 0

    def take_hellos(self) -> dict[str, Hello]:
        """Those heard since last time."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def on_note(self, device: str, payload: bytes, now: float, channel: Channel = Channel.ASK) -> list[Command]:
        """`Heads` and `InstallReport`, which is sealed, come as reports; `Ask` and `Hello` on their own channel."""
        passed = self._gate.note(device, payload, now, channel)
        if isinstance(passed, Dropped):
            return self._context.dropped(device, passed)
        try:
            note = self._read(passed.frame, channel)
        except RemoteError as error:
            return self._context.drop(error.fault.value)
        self._context.counts["notes"] += 1
        if isinstance(note, Ask):
            return self._on_ask(passed.device, note)
        if isinstance(note, Heads):
            return self._on_heads(passed.device, note)
        return self._on_report(device, note) if isinstance(note, InstallReport) else self._on_hello(passed, note)

    def _read(self, frame: Frame, channel: Channel) -> UpNote:
        """RemoteError unless the note is one of this channel, in the envelope that is its own."""
        sealed = frame.suite is Suite.SEALED
        note = decode_up(unpad(self._context.envelopes.open(frame, channel)) if sealed else frame.body)
        reported = isinstance(note, Heads | InstallReport) == (channel is Channel.REPORT)
        if note.epoch != frame.header.epoch or not reported or isinstance(note, InstallReport) != sealed:
            raise RemoteError(Fault.MALFORMED, "not what this channel and this envelope are for")
        return note

    def _on_report(self, device: str, report: InstallReport) -> list[Command]:
        return [Reported(device, report)] if is_possible(report) else self._context.drop("malformed")

    def _on_heads(self, device: Device, heads: Heads) -> list[Command]:
        key = device.signing_key.public_bytes_raw()
        return [Log(device.id, key, heads)] if is_sound(device, key, heads) else self._context.drop("malformed")

    def _on_hello(self, passed: Passed, hello: Hello) -> list[Command]:
        device, header = passed.device.id, passed.frame.header
        seen = Sighting(hello.boot, hello.epoch, header.key_id, header.created_ms)
        self._pasts[device], finding = judge(self._pasts.get(device), seen)
        if finding is Finding.CLONE:
            self._context.counts["clone_suspects"] += 1
            del self._pasts[device]  # whoever resumes it has looked: a new history
            return [Suspect(device)]
        self.hellos[device] = self._fresh[device] = hello
        settings, spread_s = self._context.settings, len(self.hellos) / CONNECTS_PER_S
        notice = self._context.rules.notice(device)
        warned: list[Command] = [Tell(device, notice.note())] if notice else []
        welcome = Tell(device, Welcome(hello.epoch, settings.name, settings.region, spread_s))
        return [welcome, *warned, Greeted(device)]

    def _on_ask(self, device: Device, ask: Ask) -> list[Command]:
        asked = _Asked(device, ask.epoch, (), [])
        keys: list[Key] = []
        for seq in dict.fromkeys(ask.seqs):
            key = Key(device.id, ask.epoch, seq)
            if self._context.memory.open(key):
                asked.pending.append(seq)
            elif 0 <= seq <= BIGGEST:
                keys.append(key)
        asked.keys = tuple(keys)
        if not keys:
            return self._answer(asked, {})
        self._tickets += 1
        self._asked[self._tickets] = asked
        return [Find(self._tickets, asked.keys)]

    def _answer(self, asked: _Asked, rows: Mapping[Key, Row]) -> list[Command]:
        commands: list[Command] = []
        unknown: list[int] = []
        for key in asked.keys:
            row = rows.get(key)
            if self._context.memory.open(key) or (row and len(commands) >= ASK_REPLIES):
                asked.pending.append(key.seq)
            elif row is None or (row.verdict is None and row.refusal is None):
                unknown.append(key.seq)  # also what the store owes but memory lost: the same bytes begin it anew
                self._context.counts["gaps"] += row is None  # only what was receipted is asked for: the store went back
            elif row.refusal is not None:
                commands.append(refusal(key, row.digest, row.refusal))
            elif row.verdict is not None and self._context.readable(row.verdict, asked.device):
                commands.append(Resend(key.device, row.verdict))
            else:
                unknown.append(key.seq)
        if asked.pending or unknown:
            commands.append(Tell(asked.device.id, Statuses(asked.epoch, tuple(asked.pending), tuple(unknown))))
        return commands

    def on_found(self, ticket: int, rows: Mapping[Key, Row]) -> list[Command]:
        asked = self._asked.pop(ticket, None)
        return self._answer(asked, rows) if asked else []

    def on_find_failed(self, ticket: int) -> None:
        """Nothing is known and nothing is said: the device asks again."""
        self._asked.pop(ticket, None)
