"""Stateful test of EdgeCore: in any order of hub messages, link changes, restarts and clocks each id ends once.

The machine plays event loop, disk and hub at once. The disk is a dict: what is not in it at a restart is lost.
"""

from dataclasses import dataclass

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_agent.question.commands import (
    Answer,
    Command,
    CoreSetup,
    CoreSnapshot,
    Correction,
    Finish,
    MarkState,
    OutboxState,
    RandomDraws,
    Reseal,
    SampleAttributes,
    Store,
    StoredQuestion,
    Transmit,
    WakeAt,
)
from edge_agent.question.decide import EdgeCore
from edge_agent.question.limits import OutboxLimits
from edge_agent.question.records import Outcome
from policies.decisions.budget import BudgetSpend
from policies.model.reasons import DecisionReason
from tests.edge_agent.doubles.hub_double import policy
from tests.edge_agent.question.test_decide import SETUP, SURE, UNSURE, VERDICT
from tests.examples import count_examples
from wire.protocol.messages import Receipt, Refusal, RefusalReason, StatusReply

EPOCH = 7
LIMITS = OutboxLimits(max_rows=12, window=3, max_age_s=500.0)
POLICIES = [
    policy(mode=mode, audit=0.3, budget_s=5.0, version=version, level=level)
    for version, (mode, level) in enumerate(
        [("answer_now", "P2"), ("wait", "P2"), ("hub_first", "P2"), ("local_only", "P2"), ("wait", "P0")], 1
    )
]


@dataclass
class Disk:
    row: StoredQuestion
    digest: bytes


class Machine(RuleBasedStateMachine):
    @initialize(rule_book=st.sampled_from(POLICIES[:3]))
    def start(self, rule_book) -> None:
        self.now = 0.0
        self.serial = 0
        self.rule_book = rule_book
        self.disk: dict[int, Disk] = {}
        self.pending: dict[int, Store] = {}
        self.resealing: set[int] = set()
        self.wake_at = float("inf")
        self.up = False
        self.accepted: dict[str, int] = {}
        self.ends: dict[str, Outcome] = {}
        self.answers: dict[str, int] = {}
        self.corrections: dict[str, int] = {}
        self.asked_ids: set[str] = set()
        self.seqs_used: set[int] = set()
        self.boot()

    def boot(self) -> None:
        self.core = EdgeCore(replace_limits(), self.rule_book)
        self.pending.clear()
        self.resealing.clear()
        rows = tuple(d.row for d in self.disk.values())
        next_seq = max(self.seqs_used, default=0) + 1
        self.obey(self.core.restore(CoreSnapshot(EPOCH, next_seq, BudgetSpend(), rows), self.now))
        self.up = False

    def obey(self, commands: list[Command]) -> None:
        assert self.core.open_questions.sent <= LIMITS.window
        for command in commands:
            getattr(self, f"do_{type(command).__name__.lower()}")(command)

    def do_answer(self, said: Answer) -> None:
        assert said.id not in self.answers
        self.answers[said.id] = 1
        disk = self.disk.get(said.seq or 0)
        if disk is not None:
            disk.row = replace_row(disk.row, answered=True)

    def do_correction(self, said: Correction) -> None:
        assert said.id in self.answers
        assert said.id not in self.corrections
        self.corrections[said.id] = 1

    def do_store(self, store: Store) -> None:
        assert store.seq not in self.seqs_used
        self.seqs_used.add(store.seq)
        self.pending[store.seq] = store

    def do_transmit(self, send: Transmit) -> None:
        assert self.up
        assert send.seq in self.disk  # nothing leaves that is not on record

    def do_reseal(self, reseal: Reseal) -> None:
        assert reseal.seq in self.disk
        self.resealing.add(reseal.seq)

    def do_markstate(self, mark: MarkState) -> None:
        disk = self.disk[mark.seq]
        disk.row = replace_row(disk.row, state=mark.state, not_before=mark.not_before, attempts=mark.attempts)

    def do_finish(self, end: Finish) -> None:
        assert end.id not in self.ends
        assert end.id in self.answers  # who asked has heard something by now
        self.ends[end.id] = end.outcome
        del self.disk[end.seq]
        self.resealing.discard(end.seq)

    def do_sendhello(self, _: object) -> None:
        assert self.up

    def do_sendask(self, asked) -> None:
        assert self.up
        assert asked.seqs

    def do_wakeat(self, wake: WakeAt) -> None:
        self.wake_at = min(self.wake_at, wake.when)

    @rule(
        local=st.sampled_from([UNSURE, UNSURE, SURE]), audit=st.floats(0, 0.99), jitter=st.floats(0, 0.99),
        fate=st.sampled_from(["good", "good", "good", "later", "bad"]),
    )  # fmt: skip
    def sample(self, local, audit, jitter, fate) -> None:
        self.serial += 1
        dice = RandomDraws(f"{self.serial:032x}", audit, jitter)
        self.asked_ids.add(dice.id)
        commands = self.core.on_prediction(local, SampleAttributes("open"), dice, self.now)
        assert isinstance(commands[0], Answer | Store)
        self.obey(commands)
        if isinstance(commands[0], Store) and fate != "later":
            self.report(commands[0].seq, good=fate == "good")

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), good=st.booleans())
    def disk_reports(self, data, good) -> None:
        self.report(data.draw(st.sampled_from(sorted(self.pending))), good=good)

    def report(self, seq: int, *, good: bool) -> None:
        store = self.pending.pop(seq)
        if not good:
            self.obey(self.core.on_store_failed(store.seq, DecisionReason.NO_DISK, self.now))
            return
        digest = store.seq.to_bytes(32, "big")
        answered = store.id in self.answers
        row = StoredQuestion(
            store.seq, store.id, OutboxState.SEALED, store.local, answered, store.permit.policy, store.data_class,
            store.permit.egress, store.permit.targets[0], digest, store.charge_bytes, self.now + LIMITS.max_age_s,
            0.0, 0, store.jitter,
        )  # fmt: skip
        self.disk[store.seq] = Disk(row, digest)
        self.accepted[store.id] = store.seq
        self.obey(self.core.on_stored(store.seq, digest, self.now))

    @precondition(lambda self: self.resealing)
    @rule(data=st.data(), good=st.booleans())
    def sealed_anew(self, data, good) -> None:
        seq = data.draw(st.sampled_from(sorted(self.resealing)))
        self.resealing.discard(seq)
        if not good:
            self.obey(self.core.on_store_failed(seq, DecisionReason.NO_DISK, self.now))
            return
        disk = self.disk[seq]
        disk.digest = bytes(reversed(disk.digest)) + b"x"
        disk.row = replace_row(disk.row, digest=disk.digest, state=OutboxState.SEALED)
        self.obey(self.core.on_stored(seq, disk.digest, self.now))

    @rule(up=st.sampled_from([True, True, False]))
    def link(self, up) -> None:
        self.up = up
        self.obey(self.core.on_link(up, self.now))

    def some(self, data) -> tuple[int, ...]:
        """Question numbers of any age, and one that never existed."""
        return tuple(data.draw(st.lists(st.sampled_from([*sorted(self.seqs_used)[-14:], 99]), max_size=4)))

    @rule(data=st.data())
    def receipt(self, data) -> None:
        self.obey(self.core.on_note(Receipt(EPOCH, self.some(data)), self.now))

    @rule(data=st.data())
    def statuses(self, data) -> None:
        self.obey(self.core.on_note(StatusReply(EPOCH, self.some(data), self.some(data)), self.now))

    @rule(data=st.data(), again=st.booleans())
    def verdict(self, data, again) -> None:
        seq = data.draw(st.sampled_from([*sorted(self.seqs_used)[-14:], 99]))
        for _ in range(1 + again):
            self.obey(self.core.on_verdict(seq, VERDICT, self.now))

    @precondition(lambda self: self.disk)
    @rule(
        data=st.data(),
        reason=st.sampled_from(RefusalReason),
        wait_s=st.floats(0, 50),
        final=st.booleans(),
        ours=st.booleans(),
    )
    def refusal(self, data, reason, wait_s, final, ours) -> None:
        seq = data.draw(st.sampled_from(sorted(self.disk)))
        digest = self.disk[seq].digest if ours else b"other"
        self.obey(self.core.on_note(Refusal(EPOCH, seq, digest, reason, wait_s, final), self.now))

    @rule(rule_book=st.sampled_from(POLICIES))
    def new_policy(self, rule_book) -> None:
        self.rule_book = rule_book
        self.obey(self.core.on_policy(rule_book, self.now))

    @rule(seconds=st.floats(0, 120))
    def time_passes(self, seconds) -> None:
        self.now += seconds
        if self.now >= self.wake_at:
            self.wake()

    @rule()
    def wake(self) -> None:
        self.wake_at = float("inf")
        self.obey(self.core.on_wake(self.now))

    @rule(luck=st.integers(0, 5))
    def restart(self, luck) -> None:
        if luck:
            return
        for store in self.pending.values():  # not committed: their callers are gone with the process
            self.asked_ids.discard(store.id)
        self.boot()

    @invariant()
    def the_disk_and_the_core_agree(self) -> None:
        if not hasattr(self, "core"):
            return
        on_record = {q.seq for q in self.core.open_questions if q.digest}
        assert on_record == set(self.disk)
        assert self.core.open_questions.sent == sum(q.state is OutboxState.SENT for q in self.core.open_questions)
        assert self.core.open_questions.receipted == sum(
            q.state is OutboxState.RECEIPTED for q in self.core.open_questions
        )
        assert set(self.accepted) - set(self.ends) == {d.row.id for d in self.disk.values()}
        assert self.core.open_questions.sent <= LIMITS.window

    def teardown(self) -> None:
        """A patient hub and a good disk bring every question to its end."""
        if not hasattr(self, "core"):
            return
        for seq in sorted(self.pending):
            self.obey(self.core.on_store_failed(seq, DecisionReason.NO_DISK, self.now))
        self.pending.clear()
        for seq in sorted(self.resealing):
            self.resealing.discard(seq)
            self.obey(self.core.on_store_failed(seq, DecisionReason.NO_DISK, self.now))
        self.link(up=True)
        for _ in range(60):
            self.now = max(self.now + 10, self.wake_at)
            if self.now == float("inf"):
                break
            self.wake()
        assert not self.disk, "an accepted question has no outcome after its age limit"
        assert set(self.ends) == set(self.accepted)
        assert self.asked_ids <= set(self.answers)


def replace_limits() -> CoreSetup:
    return msgspec.structs.replace(SETUP, limits=LIMITS)


def replace_row(row: StoredQuestion, **changes: object) -> StoredQuestion:
    return msgspec.structs.replace(row, **changes)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=count_examples(100),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
