"""Sessions, signed questions, restarts, takeovers and releases, in any mixture: each question is answered once."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cloud_hub.doubles.bench import Bench, owed
from tests.cloud_hub.doubles.devices import SimDevice
from wire.protocol.codec import SESSION_VERSION, split_frame
from wire.protocol.messages import CipherSuite, Refusal, RefusalReason
from wire.protocol.sealing import hash_frame
from wire.protocol.session_notes import SessionAccept

STEPS = (
    "ask", "ask", "ask", "resend", "replay", "open session", "device restarts", "hub restarts", "hub takes over",
    "release before takes over", "release of now takes over", "commit", "flush", "infer", "read", "clock back",
    "clock on", "hours pass",
)  # fmt: skip
histories = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=60)


class Site:
    """A device that goes by the agent's rules, and the hub that serves it now; all hubs share one store.

    `old`: that hub is of the release before, which drops frames of version 2 without a word.
    """

    def __init__(self) -> None:
        self.device = SimDevice()
        self.bench = Bench(self.device, session_classes=frozenset(("*",)), device_rate_per_s=1e6, device_burst=1e6)
        self.old = False
        self.open: dict[int, bytes] = {}  # the present frame of each question without a verdict
        self.answers: dict[int, list[object]] = {}
        self.sent: list[bytes] = []
        self.asked = 0

    def say(self, frame: bytes) -> None:
        self.sent.append(frame)
        if not (self.old and frame[0] == SESSION_VERSION):
            self.bench.say(self.device.up, frame)

    def ask(self) -> None:
        self.asked += 1
        self.seal(self.asked)

    def seal(self, seq: int) -> None:
        self.open[seq] = self.device.question(seq, self.bench.now)
        self.say(self.open[seq])

    def resend(self, which: int) -> None:
        if self.open:
            self.say(self.open[sorted(self.open)[which % len(self.open)]])

    def replay(self, which: int) -> None:
        if self.sent:
            self.say(self.sent[which % len(self.sent)])

    def open_session(self) -> None:
        if not self.old:
            self.bench.say(self.device.ask_topic, self.device.offer(self.bench.now, anew=True))

    def read(self) -> None:
        for reply in self.bench.replies(self.device):
            if isinstance(reply, SessionAccept):
                self.device.take_accept(reply)
            elif isinstance(reply, tuple):
                self.answers.setdefault(reply[0], []).append(reply[1].prediction)
                self.open.pop(reply[0], None)
            elif isinstance(reply, Refusal) and reply.reason is RefusalReason.KEY_EXPIRED:
                self.on_expired(reply)

    def on_expired(self, refusal: Refusal) -> None:
        frame = self.open.get(refusal.seq)
        if frame is None or hash_frame(frame) != refusal.digest:
            return
        if self.device.session and split_frame(frame).header.key_id == self.device.session.id:
            self.device.session = None
        self.seal(refusal.seq)

    def hand_over(self, *, old: bool) -> None:
        """Another hub serves the device from now on: what it cannot open of the store is deleted there."""
        self.old = old
        if old:
            stored = self.bench.store.read_unanswered()
            self.bench.job.forgets += [each.key for each in stored if each.sealed[0] == SESSION_VERSION]
            self.bench.commit()
        self.bench.restart()

    def play(self, step: str, which: int) -> None:
        match step:
            case "ask":
                self.ask()
            case "resend":
                self.resend(which)
            case "replay":
                self.replay(which)
            case "open session":
                self.open_session()
            case "device restarts":
                self.device.session = None
            case "hub restarts" | "hub takes over":
                self.hand_over(old=self.old)
            case "release before takes over" | "release of now takes over":
                self.hand_over(old="before" in step)
            case "read":
                self.read()
            case "clock back" | "clock on":
                self.bench.now += -20.0 if "back" in step else 20.0
            case "hours pass":
                self.bench.wait(3600.0 * (which + 1) / 2)
            case "commit" | "flush" | "infer":
                getattr(self.bench, step)()

    def finish(self) -> None:
        """The device sends what is open until it is answered; in a session that nobody answers, without it."""
        for turn in range(6):
            self.bench.settle()
            self.read()
            if turn == 2:
                self.device.session = None
            for seq in sorted(self.open):
                if turn >= 2 and self.open[seq][0] == SESSION_VERSION:
                    self.seal(seq)
                else:
                    self.say(self.open[seq])
        self.bench.settle()
        self.read()


@settings(max_examples=150, deadline=None)
@given(histories)
def test_every_question_is_answered_once_in_any_history(history: list[tuple[str, int]]) -> None:
    site = Site()
    for step, which in history:
        site.play(step, which)
    site.finish()
    assert not site.open
    assert not owed(site.bench)
    assert set(site.answers) == set(range(1, site.asked + 1))
    assert all(len(set(map(msgspec.json.encode, said))) == 1 for said in site.answers.values())
    assert not site.bench.core.counts["defects"]


@settings(max_examples=60, deadline=None)
@given(histories)
def test_no_two_frames_of_hub_and_device_share_a_session_and_salt(history: list[tuple[str, int]]) -> None:
    site, verdicts = Site(), set[bytes]()
    for step, which in [("open session", 0), ("read", 0), *history]:
        site.play(step, which)
        verdicts |= {f for f in site.bench.sent[site.device.id] if f[1] == CipherSuite.SESSION_SIGNED}
    split = [split_frame(frame) for frame in {*site.sent, *verdicts} if frame[0] == SESSION_VERSION]
    assert len({(frame.header.key_id, frame.body[:16]) for frame in split}) == len(split)
