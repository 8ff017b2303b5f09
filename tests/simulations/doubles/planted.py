"""Planted defects: production cores and stores with one defect each, which the fuzzer must find."""

from collections.abc import Iterable, Mapping

import msgspec

from cloud_hub.core.commands import Command as HubCommand
from cloud_hub.core.commands import (
    LookUpQuestions,
    QuestionEnding,
    QuestionKey,
    QuestionRow,
    StoredQuestion,
    Stream,
)
from cloud_hub.core.core import HubCore
from cloud_hub.storage.jobs import ShardClaim
from edge_agent.question.commands import (
    Answer,
    Command,
    CoreSetup,
    CoreSnapshot,
    Correction,
    Finish,
    SampleAttributes,
    Transmit,
)
from edge_agent.question.decide import DeliveryQueue, EdgeCore
from edge_agent.question.permissions import PermissionCache
from edge_agent.question.questions import OpenQuestion
from edge_agent.question.seal import InboundVerifier, require_order
from edge_agent.update.machine import InstallMachine
from edge_agent.update.types import AssignmentReceived, InstallCommand, InstallEvent
from policies.decisions.budget import BudgetSpend
from policies.decisions.permit import Permit
from policies.model.policy import Policy
from policies.model.reasons import Denied
from simulations.nodes.device_disk import DeviceDisk, StoreWrite, Write
from simulations.nodes.hub_disk import HubDisk, Written
from simulations.scenario.conditions import DeviceClock
from wire.protocol import codec
from wire.protocol.messages import DenyAllNotice, Prediction, Seqs, Verdict
from wire.protocol.rollout import Assignment


class DropsACommit(DeviceDisk):
    """Every ninth step that ends a question never reaches the disk."""

    ends = 0

    def commit(self, writes: Iterable[Write], clock: DeviceClock, now_s: float) -> None:
        writes = list(writes)
        ends = any(type(write) is Finish for write in writes)
        self.ends += ends
        if not ends or self.ends % 9:
            super().commit(writes, clock, now_s)


class AnswersTwice(EdgeCore):
    """Says every verdict twice."""

    def on_verdict(self, seq: int, verdict: Verdict, now: float) -> list[Command]:
        said = super().on_verdict(seq, verdict, now)
        return [*said, *(each for each in said if isinstance(each, Answer | Correction))]


class ForgetsWhatItSaid(EdgeCore):
    """After a restart it no longer knows whom it has answered."""

    def restore(self, memory: CoreSnapshot, now: float) -> list[Command]:
        rows = tuple(msgspec.structs.replace(row, answered=False) for row in memory.rows)
        return super().restore(msgspec.structs.replace(memory, rows=rows), now)


class UncheckedDelivery(DeliveryQueue):
    def _send_question(self, question: OpenQuestion, now: float) -> list[Command]:
        self.questions.record_sent(question, now, self._limits)
        return [Transmit(question.seq, question.line)]


class SendsWithoutAsking(EdgeCore):
    """What was allowed when it was stored is sent, whatever the policy says by now."""

    def __init__(self, setup: CoreSetup, policy: Policy | None) -> None:
        super().__init__(setup, policy)
        self._delivery = UncheckedDelivery(self.permissions)


class TakesEveryClassForOpen(EdgeCore):
    """A label is lost on the way."""

    def on_prediction(
        self, local: Prediction, attributes: SampleAttributes, draws: object, now: float
    ) -> list[Command]:
        return super().on_prediction(local, msgspec.structs.replace(attributes, data_class="open"), draws, now)  # type: ignore[arg-type]


class IgnoresHowManyAreOpen(EdgeCore):
    def _permit_question(
        self, permissions: PermissionCache, terms: object, attributes: SampleAttributes, *, audit: bool
    ) -> Permit | Denied:
        del terms
        return permissions.permit_question(attributes.data_class, audit=audit, subject=attributes.subject)


class TakesAReceiptForAnEnd(EdgeCore):
    """What the hub has stored needs no row any more."""

    def on_receipt(self, seqs: Seqs, now: float, line: str = "") -> list[Command]:
        for seq in seqs:
            question = self.open_questions.get(seq)
            if question is not None:
                self.open_questions.end(question)
        return self._delivery.send_after([], now)


class FindsNothing(HubDisk):
    """The store holds the rows, a defect in the query finds none of them, and a question is written over its row."""

    def find_rows(self, find: LookUpQuestions) -> tuple[Mapping[QuestionKey, QuestionRow], Mapping[Stream, int]]:
        del find
        return {}, {}

    def store_question(self, question: StoredQuestion) -> Written:
        self.forget_question(question.key)
        return super().store_question(question)


class SaysItIsStored(HubDisk):
    """Every fifth verdict is reported as stored and is not."""

    endings = 0

    def store_ending(self, ending: QuestionEnding) -> Written:
        self.endings += 1
        return super().store_ending(ending) if self.endings % 5 else Written.DONE


class FencesNothing(HubDisk):
    """Whoever once served a shard may write about its devices for ever."""

    def holds(self, session: str, claim: ShardClaim) -> bool:
        del session, claim
        return True


class ForgetsNothing(HubCore):
    """Of shards that others serve it remembers everything, and says and writes it."""

    def on_lost(self, shards: Iterable[int], now: float) -> list[HubCommand]:
        del shards, now
        return []


class Raises(EdgeCore):
    """A case nobody thought of."""

    def on_receipt(self, seqs: Seqs, now: float, line: str = "") -> list[Command]:
        if len(seqs) > 1:
            raise KeyError(seqs[1])
        return super().on_receipt(seqs, now, line)


class ForgetsWhatItSpent(EdgeCore):
    """After a restart the budget is full again."""

    def restore(self, memory: CoreSnapshot, now: float) -> list[Command]:
        return super().restore(msgspec.structs.replace(memory, spend=BudgetSpend()), now)


class SpendsBeyondTheLimit(DeviceDisk):
    """The second guard is gone too: the statement that adds a charge looks at no limit."""

    def store_question(self, put: StoreWrite, now_s: float) -> bool:
        charges = tuple(msgspec.structs.replace(each, limit=2**62) for each in put.store.permit.charges)
        permit = msgspec.structs.replace(put.store.permit, charges=charges)
        store = msgspec.structs.replace(put.store, permit=permit)
        return super().store_question(msgspec.structs.replace(put, store=store), now_s)


class IgnoresTheCounter(InstallMachine):
    """Every assignment counts as the first."""

    def handle_event(self, event: InstallEvent, now_ms: int) -> list[InstallCommand]:
        if isinstance(event, AssignmentReceived):
            self._moves.set_fields(counter=0, newest=None)
        return super().handle_event(event, now_ms)


class IgnoresTheBinding(InboundVerifier):
    """What was signed for a key of an earlier enrolment is taken too."""

    def open_order(self, payload: bytes, line: str = "") -> DenyAllNotice | Assignment | None:
        return require_order(codec.decode_down_note(codec.split_frame(payload).body))
