"""Stateful property test of `HubCore`.

In any order of messages, commits, failures and kills every question ends once.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulations.nodes.plain_envelopes import PlainEnvelopes
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import SimDevice
from tests.examples import count_examples
from wire.protocol.codec import (
    SIGNATURE_BYTES,
    decode_down_note,
    decode_verdict,
    encode_clear_part,
    encode_wire_message,
    pad_plaintext,
    split_frame,
    unpad_plaintext,
)
from wire.protocol.messages import CipherSuite, Receipt, Refusal, StatusRequest

SEQS = st.integers(1, 16)  # 13 is poison to the bench's engine
DEVICES = st.integers(0, 1)
PASSING = ("busy", "rate", "draining", "key_expired", "created_ahead")


class PlainDevice(SimDevice):
    """Frames without cryptography, as `PlainEnvelopes` reads them."""

    def question(self, seq, created_s=0.0, size=512, **changes):
        header = self.header(seq, created_s, PlainEnvelopes.reader_id)
        return (
            encode_clear_part(CipherSuite.SEALED, header)
            + pad_plaintext(encode_wire_message(self.escalation(seq, **changes)), size)
            + bytes(SIGNATURE_BYTES)
        )

    def ask(self, *seqs):
        clear = encode_clear_part(CipherSuite.SIGNED, self.header(0, key=PlainEnvelopes.reader_id))
        return clear + encode_wire_message(StatusRequest(self.epoch, seqs)) + bytes(SIGNATURE_BYTES)

    def read(self, payload):
        frame = split_frame(payload)
        if frame.suite is CipherSuite.SIGNED:
            return decode_down_note(frame.body)
        return frame.header.seq, decode_verdict(unpad_plaintext(frame.body))


class HubMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.devices = [PlainDevice(f"demo--d{n}") for n in range(2)]
        self.bench = Bench(*self.devices, envelopes=PlainEnvelopes(), max_batch=3, max_queued=12)
        self.frames = {}  # the first bytes of each question: what the device sends again
        self.stored = set()  # every key the store ever held
        self.ended = {}  # key -> the one ending it got

    @rule(which=DEVICES, seq=SEQS)
    def send(self, which, seq):
        device = self.devices[which]
        frame = self.frames.setdefault((device.id, seq), device.question(seq, self.bench.now))
        self.bench.say(device.up, frame)

    @rule(which=DEVICES, seq=SEQS)
    def send_something_else_under_the_same_key(self, which, seq):
        device = self.devices[which]
        if (device.id, seq) in self.frames:
            self.bench.say(device.up, device.question(seq, self.bench.now, trace="another"))

    @rule(which=DEVICES, seqs=st.lists(SEQS, max_size=4))
    def ask(self, which, seqs):
        device = self.devices[which]
        self.bench.say(device.ask_topic, device.ask(*seqs))

    @rule()
    def commit(self):
        self.bench.flush()
        self.bench.commit()
        self.look()

    @rule()
    def the_disk_is_full(self):
        self.bench.lose_commit()
        self.look()

    @rule()
    def infer(self):
        self.bench.flush()
        self.bench.infer()

    @rule(broken=st.booleans())
    def engine(self, broken):
        self.bench.engine.broken = broken

    @rule()
    def kill(self):
        self.bench.restart()

    @rule(seconds=st.sampled_from([1.0, 61.0, 3600.0]))
    def wait(self, seconds):
        self.bench.wait(seconds)

    @precondition(lambda self: self.frames)
    @rule()
    def heal(self):
        """Without further faults every stored question ends."""
        self.bench.engine.broken = False
        for _ in range(3):
            self.bench.wait(120.0)
            self.bench.settle()
        self.look()
        assert not self.bench.store.read_unanswered()
        assert self.bench.core.open_count == 0
        self.nothing_is_said_that_is_not_stored()
        assert self.stored == set(self.ended)

    @invariant()
    def nothing_is_said_that_is_not_stored(self) -> None:
        for device in self.devices:
            for reply in self.bench.replies(device):
                if isinstance(reply, Receipt):
                    assert all((device.id, seq) in self.stored for seq in reply.seqs)
                elif isinstance(reply, Refusal):
                    self.hear_refusal(device, reply)
                elif isinstance(reply, tuple):
                    self.hear_ending(device, reply[0], reply[1])

    def hear_refusal(self, device, refusal) -> None:
        assert refusal.final == (refusal.reason not in PASSING)
        if refusal.reason == "engine":
            assert refusal.seq == 13
            self.hear_ending(device, refusal.seq, "engine")

    def hear_ending(self, device, seq, ending) -> None:
        key = (device.id, seq)
        assert key in self.stored
        assert self.ended.setdefault(key, ending) == ending

    def look(self) -> None:
        """What the store holds now; a key it held it holds for ever."""
        with self.bench.store._engine.connect() as connection:
            rows = connection.exec_driver_sql("select device, seq, verdict, refusal from effects").all()
        keys = {(row.device, row.seq) for row in rows}
        assert len(keys) == len(rows)
        assert self.stored <= keys
        self.stored = keys
        for row in rows:
            assert row.verdict is None or row.refusal is None


HubMachine.TestCase.settings = settings(max_examples=count_examples(40), stateful_step_count=40, deadline=None)
TestHubMachine = HubMachine.TestCase
