"""Inference service of the device: answers samples with the serving model, and audits a candidate on trial.

Rule: an answer is the serving model's alone. What is audited of a model on trial goes to the hub as the *committed*
model's features, for its tail to judge: head and tail of one new version cannot vouch for each other.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import NamedTuple

import msgspec

from edge_agent.inference.class_threshold import CalibratedThreshold
from edge_agent.inference.evaluation import AuditedAnswer, CandidateEvaluation
from edge_agent.inference.model import ServingModel
from edge_agent.inference.requests import SubjectHasher, check_sample_texts
from edge_agent.question.commands import Answer, CoreSetup, RandomDraws, Store
from edge_agent.question.permissions import ClassPermissions
from edge_agent.question.records import AnswerRecord, DisabledError, Sample, SampleOrigin, Timings
from edge_agent.question.seal import EscalationSource, ModelFormat
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.runtime.maintenance import Maintenance
from edge_agent.uplink.services import AgentServices
from models.bundle.manifest import InputSpec
from models.runtime.runner import Inference, Runner, RunnerError, SampleError, check_sample
from policies.model.policy import ASKING_MODES, EscalationMode
from policies.model.reasons import Denied
from wire.protocol.messages import ModelRef, Prediction

_AUDIT_ERRORS = (SampleError, RunnerError)  # raised by the committed model on a sample that another answers: no audit
_ID_BYTES, _DRAW_BYTES = 12, 7
_UNIT = 2.0**-53  # of the 53 bits that a float in [0, 1) has


class InferenceDependencies(NamedTuple):
    """What the inference service works with. `setup`: what the core has to know of a model of this format.

    `inline_infer_s`: a model that is faster than so many seconds runs on the event loop itself.
    """

    executor: CommandExecutor
    subjects: SubjectHasher
    upkeep: Maintenance
    setup: Callable[[ModelFormat], CoreSetup]
    inline_infer_s: float


class ModelOutputs(msgspec.Struct, frozen=True, gc=False):
    """The models' outputs for one sample.

    `began`, `done`: seconds of the performance counter; `dice`: its random draws. `committed`: the committed model's
    output, if the sample is audited while another model is on trial.
    """

    inference: Inference
    began: float
    done: float
    dice: RandomDraws
    committed: Inference | None = None


class InferenceService:
    """Answers samples and holds the models; used on the event loop only.

    `committed`: the model before the one that answers, while that one is on trial. `trial`: statistics of both.
    """

    def __init__(self, model: ServingModel, parts: AgentServices, means: InferenceDependencies) -> None:
        self.model = model
        self.committed: ServingModel | None = None
        self.trial = CandidateEvaluation()
        self.threshold: CalibratedThreshold | None = None
        self._parts = parts
        self._means = means

    def listen(self, listener: Callable[[AnswerRecord], None]) -> None:
        """Call `listener` with every answer and correction of a question from now on."""
        self._parts.journal.listen(listener)

    def check_output(self, data_class: str) -> Denied | None:
        """Why an answer to a sample of this class may not be handed to another machine now; None if it may."""
        return self._parts.core.permissions.check_output(data_class, self._parts.clock.hub_day())

    def hub_ms(self) -> int:
        """Hub time in milliseconds since 1970."""
        return self._parts.clock.hub_ms()

    # Samples

    def answer_now(self, sample: Sample) -> "AnswerRecord | asyncio.Future[AnswerRecord]":
        """Answer a sample on the event loop, without await and without disk.

        A confident answer comes back at once, others as a future. Raises SampleError, DisabledError, or RunnerError.
        """
        share = self._check_sample(sample)
        began = perf_counter()
        try:
            inference = self.model.infer_one(sample.x)
        except RunnerError:
            self.trial.seen.add_failure()
            raise
        except SampleError:
            self.on_sample_refused(partial(check_sample, sample.x))
            raise
        done, dice = perf_counter(), draw_dice(self._parts.clock.hub_ms())
        committed = None
        if self.committed is not None and dice.audit < share:
            with suppress(*_AUDIT_ERRORS):
                committed = self.committed.infer_one(sample.x)
        return self._decide_answer(sample, ModelOutputs(inference, began, done, dice, committed))

    async def answer_async(self, sample: Sample) -> AnswerRecord:
        """Answer a sample; a slow model runs in a thread of its own."""
        answer = (
            self.answer_now(sample)
            if self.model.is_quick
            else self._decide_answer(sample, await self._run_models(sample))
        )
        return answer if type(answer) is AnswerRecord else await answer  # type: ignore[misc]

    async def _run_models(self, sample: Sample) -> ModelOutputs:
        began, model, dice = perf_counter(), None, draw_dice(self._parts.clock.hub_ms())
        while model is not self.model:  # it may have been replaced while it ran
            share = self._check_sample(sample)
            model, other, committed = self.model, self.committed, None
            try:
                inference = await model.infer_in_thread(sample)
            except RunnerError:
                self.trial.seen.add_failure()
                raise
            except SampleError:
                self.on_sample_refused(partial(check_sample, sample.x))
                raise
            done = perf_counter()
            if other is not None and dice.audit < share:
                with suppress(*_AUDIT_ERRORS):
                    committed = await other.infer_in_thread(sample)
        return ModelOutputs(inference, began, done, dice, committed if other is self.committed else None)

    def on_sample_refused(self, parse: Callable[[InputSpec], object]) -> None:
        """A caller's sample does not fit the serving model: an error of a candidate, if the committed one takes it.

        `parse`: reads it as the input of another model; raises SampleError if it does not fit there either.
        """
        if self.committed is not None:
            with suppress(SampleError):
                parse(self.committed.manifest.input)
                self.trial.seen.add_failure()

    def _check_sample(self, sample: Sample) -> float:
        """The share of answers to samples of this class that is audited. Raises SampleError or DisabledError."""
        check_sample_texts(sample)
        class_permissions = self._parts.core.permissions.for_class(sample.data_class)
        if not isinstance(class_permissions, ClassPermissions):
            return 0.0
        if class_permissions.terms.mode is EscalationMode.DISABLED:
            raise DisabledError
        return class_permissions.terms.audit_share

    def _decide_answer(self, sample: Sample, given: ModelOutputs) -> "AnswerRecord | asyncio.Future[AnswerRecord]":
        parts, inference, dice = self._parts, given.inference, given.dice
        now = parts.clock.now()
        self.model.observe_answer(inference, parts.clock)
        if self.threshold is not None and self.model.alarms():
            self.threshold.fail_threshold("drift")
        facts = self._means.upkeep.classes.attributes_for(sample.data_class)
        subject = self._means.subjects.hash_subject(sample.subject)
        if subject or self.committed is not None:
            facts = msgspec.structs.replace(facts, subject=subject.hex(), committed=given.committed is not None)
        commands = parts.core.on_prediction(inference.prediction, facts, dice, now)
        self._count_answer(sample, given, commands[0])
        first = commands[0]
        spent_s = given.done - given.began
        energy_j = parts.energy.watts * spent_s
        if type(first) is Answer:
            return parts.journal.record_local(
                first, sample.trace, Timings(spent_s, perf_counter() - given.began), subject, energy_j
            )
        answer = parts.journal.expect_answer(dice.id)
        sent, form = (given.committed, self.committed.form) if given.committed and self.committed else (inference, None)
        origin = SampleOrigin(sample.trace, now - (perf_counter() - given.began), spent_s, subject, energy_j)
        self._means.executor.execute(commands, EscalationSource(sent, origin, form))
        return answer

    # Statistics for trials and thresholds

    def _count_answer(self, sample: Sample, given: ModelOutputs, first: object) -> None:
        permissions = self._parts.core.permissions
        class_permissions = permissions.for_class(sample.data_class)
        terms = class_permissions.terms if isinstance(class_permissions, ClassPermissions) else None
        said, spent_s = given.inference.prediction, given.done - given.began
        asked_mj = permissions.question_mj if isinstance(first, Store) else 0
        self._parts.energy.count_answer(terms.rules if terms else (), spent_s, asked_mj)
        unsure = terms is not None and said.confidence < terms.threshold
        self.trial.seen.add_answer(sample.data_class, said.confidence, spent_s, unsure=unsure)
        if self.threshold is not None and isinstance(first, Store) and first.audit:
            self.threshold.on_audit_stored(first.seq, said)
        if self.trial.assignment is not None:
            share = self.trial.limit_audit_share(terms.audit_share if terms and terms.mode in ASKING_MODES else 0.0)
            self._count_audit(sample, given, first, share)

    def _count_audit(self, sample: Sample, given: ModelOutputs, first: object, share: float) -> None:
        """A model on trial is never judged by its own tail: without the committed model nothing is counted."""
        if share <= 0.0:
            self.trial.on_audit_denied(sample.data_class)
        elif given.dice.audit >= share or (given.committed is None and self.trial.is_candidate):
            return
        elif isinstance(first, Store) and first.audit:
            self.trial.on_audit_stored(first.seq, first.id, self._audited_answer(sample, given, share))
        elif isinstance(first, Answer):
            self.trial.on_audit_denied(sample.data_class)

    def _audited_answer(self, sample: Sample, given: ModelOutputs, share: float) -> AuditedAnswer:
        committed = given.committed.prediction if given.committed else None
        return AuditedAnswer(sample.data_class, share, given.inference.prediction, committed, self.tolerance)

    def on_verdict(self, seq: int, said: Prediction) -> None:
        """A hub's verdict on an audited answer: count whether it agrees."""
        self.trial.on_verdict(seq, said)
        if self.threshold is not None:
            self.threshold.on_verdict(seq, said, self.tolerance)

    def set_threshold(self, threshold: CalibratedThreshold) -> None:
        """Let a calibrated threshold narrow the policy's, while it holds the error rate that it promises."""
        self.threshold = threshold
        threshold.attach_permissions(self._parts.core.permissions)
        threshold.on_model(self.model.manifest.model)

    @property
    def tolerance(self) -> float:
        """The difference up to which two values of a regressor agree."""
        return self.model.manifest.gate.tolerance

    def on_feedback(self, record: AnswerRecord, truth: float) -> None:
        """A user's true label or value for an answer of the serving model: count whether the answer agrees."""
        if record.prediction.model != self.model.manifest.model or self.trial.assignment is None:
            return
        class_permissions = self._parts.core.permissions.for_class(record.data_class)
        share = (
            self.trial.limit_audit_share(class_permissions.terms.audit_share)
            if isinstance(class_permissions, ClassPermissions)
            else 0.0
        )
        served = AuditedAnswer(record.data_class, share, record.prediction, None, self.tolerance)
        self.trial.on_feedback(record.id, served, truth)

    # Which model serves

    async def set_model(self, runner: Runner | None) -> None:
        """Answer with this model from now on, or with none. Questions accepted before keep the model they name."""
        model = await self._load_model(runner)
        self.close()
        self._serve_models(model, None)

    async def start_trial(self, runner: Runner) -> None:
        """Answer with this model on trial; the one before stays loaded, for audits and for a rollback."""
        model = await self._load_model(runner)
        self._serve_models(model, self.committed or (self.model if self.model.present else None))

    def restore_trial(self, runner: Runner) -> None:
        """Before the agent runs: the serving model is on trial since an earlier process; this is the committed one."""
        self.committed = ServingModel(runner, self._means.inline_infer_s)
        self._parts.core.on_candidate(self._means.setup(self.committed.form))
        self._means.executor.announce_models(self.model_refs())

    def commit_trial(self) -> None:
        """The model on trial is committed: unload the one before."""
        if self.committed is not None:
            self.committed.close()
        self._serve_models(self.model, None)

    def revert_trial(self) -> bool:
        """Serve the committed model again at once. False if it is not loaded."""
        if self.committed is None:
            return False
        self.model.close()
        self._serve_models(self.committed, None)
        return True

    async def _load_model(self, runner: Runner | None) -> ServingModel:
        model = ServingModel(runner, self._means.inline_infer_s)
        await asyncio.to_thread(model.measure_speed)
        return model

    def _serve_models(self, model: ServingModel, committed: ServingModel | None) -> None:
        self.model, self.committed = model, committed
        if self.threshold is not None:
            self.threshold.on_model(model.manifest.model)
        parts, setup = self._parts, self._means.setup
        parts.core.on_model(setup(model.form))
        parts.core.on_candidate(setup(committed.form) if committed else None)
        parts.sealer.set_format(model.form)
        self._means.executor.announce_models(self.model_refs())

    def model_refs(self) -> tuple[ModelRef, ...]:
        """The models that this device says it runs, in its hello."""
        return self.model.refs + (self.committed.refs if self.committed else ())

    def refresh_setup(self) -> None:
        """The hubs or their keys have changed: renew what the core knows of the committed model."""
        if self.committed is not None:
            self._parts.core.on_candidate(self._means.setup(self.committed.form))

    def measure_models(self) -> None:
        """Measure how fast the models run, before they serve."""
        self.model.measure_speed()
        if self.committed is not None:
            self.committed.measure_speed()

    def close(self) -> None:
        """Unload the models."""
        self.model.close()
        if self.committed is not None:
            self.committed.close()


def draw_dice(hub_ms: int) -> RandomDraws:
    """The random numbers of one answer. `hub_ms`: hub time, milliseconds since 1970.

    The id is 8 digits of time, in seconds, and 24 random ones: ids of one minute stand on one page of agent.db's
    indexes, where wholly random ones would each rewrite a page of their own. All comes from the system's secure source,
    in one call: nobody may foresee which samples a randomised rule sends.
    """
    drawn = os.urandom(_ID_BYTES + 2 * _DRAW_BYTES)
    audit, jitter = drawn[_ID_BYTES:-_DRAW_BYTES], drawn[-_DRAW_BYTES:]
    return RandomDraws(
        f"{hub_ms // 1000 & 0xFFFFFFFF:08x}{drawn[:_ID_BYTES].hex()}",
        (int.from_bytes(audit, "big") >> 3) * _UNIT,
        (int.from_bytes(jitter, "big") >> 3) * _UNIT,
    )
