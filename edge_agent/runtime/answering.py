"""Inference service of the device: answers samples with the serving model, and audits a candidate on trial.

Rule: an answer is the serving model's alone. What is audited of a model on trial goes to the hub as the *committed*
model's features, for its tail to judge: head and tail of one new version cannot vouch for each other.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

import msgspec

from edge_agent.core.commands import Answer, Dice, Setup, Store
from edge_agent.core.permissions import Ruled
from edge_agent.core.records import AnswerRecord, DisabledError, Sample, SampleOrigin, Timings
from edge_agent.inference.evaluation import Drawn, Trial
from edge_agent.inference.model import Model
from edge_agent.inference.requests import Subjects, check_words
from edge_agent.inference.threshold import Threshold
from edge_agent.runtime.executor import CommandExecutor
from edge_agent.runtime.maintenance import Upkeep
from edge_agent.uplink.sealing import EscalationSource, ModelFormat
from edge_agent.uplink.services import Parts
from models.runtime.runner import Inference, RunError, Runner, SampleError
from policies.model.policy import ASKING, Mode
from wire.protocol.messages import ModelRef, Prediction

_UNFIT = (SampleError, RunError)  # raised by the committed model on a sample that another answers: no audit
_LOTS = secrets.SystemRandom()  # nobody may foresee which samples a randomised rule sends


class Means(NamedTuple):
    """What the inference service works with. `setup`: what the core has to know of a model of this format.

    `inline_infer_s`: a model that is faster than so many seconds runs on the event loop itself.
    """

    executor: CommandExecutor
    subjects: Subjects
    upkeep: Upkeep
    setup: Callable[[ModelFormat], Setup]
    inline_infer_s: float


class Given(NamedTuple):
    """The models' outputs for one sample.

    `began`, `done`: seconds of the performance counter; `dice`: its random draws. `committed`: the committed model's
    output, if the sample is audited while another model is on trial.
    """

    inference: Inference
    began: float
    done: float
    dice: Dice
    committed: Inference | None = None


class Answering:
    """Answers samples and holds the models; used on the event loop only.

    `committed`: the model before the one that answers, while that one is on trial. `trial`: statistics of both.
    """

    def __init__(self, model: Model, parts: Parts, means: Means) -> None:
        self.model = model
        self.committed: Model | None = None
        self.trial = Trial()
        self.threshold: Threshold | None = None
        self._parts = parts
        self._means = means

    # Samples

    def now(self, sample: Sample) -> "AnswerRecord | asyncio.Future[AnswerRecord]":
        """Answer a sample on the event loop, without await and without disk.

        A confident answer comes back at once, others as a future. Raises SampleError, DisabledError, or RunError.
        """
        share = self._check(sample)
        began = perf_counter()
        try:
            inference = self.model.infer_one(sample.x)
        except RunError:
            self.trial.seen.failed()
            raise
        done, dice = perf_counter(), _dice()
        committed = None
        if self.committed is not None and dice.audit < share:
            with suppress(*_UNFIT):
                committed = self.committed.infer_one(sample.x)
        return self._decide(sample, Given(inference, began, done, dice, committed))

    async def later(self, sample: Sample) -> AnswerRecord:
        """Answer a sample; a slow model runs in a thread of its own."""
        answer = self.now(sample) if self.model.is_quick else self._decide(sample, await self._given(sample))
        return answer if type(answer) is AnswerRecord else await answer  # type: ignore[misc]

    async def _given(self, sample: Sample) -> Given:
        began, model, dice = perf_counter(), None, _dice()
        while model is not self.model:  # it may have been replaced while it ran
            share = self._check(sample)
            model, other, committed = self.model, self.committed, None
            try:
                inference = await model.infer_aside(sample)
            except RunError:
                self.trial.seen.failed()
                raise
            done = perf_counter()
            if other is not None and dice.audit < share:
                with suppress(*_UNFIT):
                    committed = await other.infer_aside(sample)
        return Given(inference, began, done, dice, committed if other is self.committed else None)

    def _check(self, sample: Sample) -> float:
        """The share of answers to samples of this class that is audited. Raises SampleError or DisabledError."""
        check_words(sample)
        ruled = self._parts.core.ruling.of(sample.data_class)
        if not isinstance(ruled, Ruled):
            return 0.0
        if ruled.terms.mode is Mode.DISABLED:
            raise DisabledError
        return ruled.terms.audit_share

    def _decide(self, sample: Sample, given: Given) -> "AnswerRecord | asyncio.Future[AnswerRecord]":
        parts, inference, dice = self._parts, given.inference, given.dice
        now = parts.clock.now()
        self.model.watch(inference, parts.clock)
        if self.threshold is not None and self.model.alarms():
            self.threshold.fail("drift")
        facts = self._means.upkeep.classes.of(sample.data_class)
        subject = self._means.subjects.of(sample.subject)
        if subject or self.committed is not None:
            facts = msgspec.structs.replace(facts, subject=subject.hex(), committed=given.committed is not None)
        commands = parts.core.on_prediction(inference.prediction, facts, dice, now)
        self._count(sample, given, commands[0])
        first = commands[0]
        spent_s = given.done - given.began
        if type(first) is Answer:
            return parts.journal.local(first, sample.trace, Timings(spent_s, perf_counter() - given.began), subject)
        answer = parts.journal.expect(dice.id)
        sent, form = (given.committed, self.committed.form) if given.committed and self.committed else (inference, None)
        origin = SampleOrigin(sample.trace, now - (perf_counter() - given.began), spent_s, subject)
        self._means.executor.execute(commands, EscalationSource(sent, origin, form))
        return answer

    # Statistics for trials and thresholds

    def _count(self, sample: Sample, given: Given, first: object) -> None:
        ruled = self._parts.core.ruling.of(sample.data_class)
        terms = ruled.terms if isinstance(ruled, Ruled) else None
        said = given.inference.prediction
        unsure = terms is not None and said.confidence < terms.threshold
        self.trial.seen.add(sample.data_class, said.confidence, given.done - given.began, unsure=unsure)
        if self.threshold is not None and isinstance(first, Store) and first.audit:
            self.threshold.audited(first.seq, said)
        if self.trial.assignment is not None:
            share = self.trial.share(terms.audit_share if terms and terms.mode in ASKING else 0.0)
            self._count_audit(sample, given, first, share)

    def _count_audit(self, sample: Sample, given: Given, first: object, share: float) -> None:
        """A model on trial is never judged by its own tail: without the committed model nothing is counted."""
        if share <= 0.0:
            self.trial.not_audited(sample.data_class)
        elif given.dice.audit >= share or (given.committed is None and self.trial.is_candidate):
            return
        elif isinstance(first, Store) and first.audit:
            self.trial.drawn(first.seq, first.id, self._drawn(sample, given, share))
        elif isinstance(first, Answer):
            self.trial.not_audited(sample.data_class)

    def _drawn(self, sample: Sample, given: Given, share: float) -> Drawn:
        committed = given.committed.prediction if given.committed else None
        return Drawn(sample.data_class, share, given.inference.prediction, committed, self.tolerance)

    def verdict(self, seq: int, said: Prediction) -> None:
        """A hub's verdict on an audited answer: count whether it agrees."""
        self.trial.verdict(seq, said)
        if self.threshold is not None:
            self.threshold.verdict(seq, said, self.tolerance)

    def calibrate(self, threshold: Threshold) -> None:
        """Let a calibrated threshold narrow the policy's, while it holds the error rate that it promises."""
        self.threshold = threshold
        threshold.attach(self._parts.core.ruling)
        threshold.serving(self.model.manifest.model)

    @property
    def tolerance(self) -> float:
        """The difference up to which two values of a regressor agree."""
        return self.model.manifest.gate.tolerance

    def judged(self, record: AnswerRecord, truth: float) -> None:
        """A user's true label or value for an answer of the serving model: count whether the answer agrees."""
        if record.prediction.model != self.model.manifest.model or self.trial.assignment is None:
            return
        ruled = self._parts.core.ruling.of(record.data_class)
        share = self.trial.share(ruled.terms.audit_share) if isinstance(ruled, Ruled) else 0.0
        served = Drawn(record.data_class, share, record.prediction, None, self.tolerance)
        self.trial.told(record.id, served, truth)

    # Which model serves

    async def use(self, runner: Runner | None) -> None:
        """Answer with this model from now on, or with none. Questions accepted before keep the model they name."""
        model = await self._measured(runner)
        self.close()
        self._serve(model, None)

    async def try_out(self, runner: Runner) -> None:
        """Answer with this model on trial; the one before stays loaded, for audits and for a rollback."""
        model = await self._measured(runner)
        self._serve(model, self.committed or (self.model if self.model.present else None))

    def beside(self, runner: Runner) -> None:
        """Before the agent runs: the serving model is on trial since an earlier process; this is the committed one."""
        self.committed = Model(runner, self._means.inline_infer_s)
        self._parts.core.on_trial(self._means.setup(self.committed.form))
        self._means.executor.introduce(self.refs())

    def settle(self) -> None:
        """The model on trial is committed: unload the one before."""
        if self.committed is not None:
            self.committed.close()
        self._serve(self.model, None)

    def go_back(self) -> bool:
        """Serve the committed model again at once. False if it is not loaded."""
        if self.committed is None:
            return False
        self.model.close()
        self._serve(self.committed, None)
        return True

    async def _measured(self, runner: Runner | None) -> Model:
        model = Model(runner, self._means.inline_infer_s)
        await asyncio.to_thread(model.measure)
        return model

    def _serve(self, model: Model, committed: Model | None) -> None:
        self.model, self.committed = model, committed
        if self.threshold is not None:
            self.threshold.serving(model.manifest.model)
        parts, setup = self._parts, self._means.setup
        parts.core.on_model(setup(model.form))
        parts.core.on_trial(setup(committed.form) if committed else None)
        parts.sealer.use(model.form)
        self._means.executor.introduce(self.refs())

    def refs(self) -> tuple[ModelRef, ...]:
        """The models that this device says it runs, in its hello."""
        return self.model.refs + (self.committed.refs if self.committed else ())

    def renew(self) -> None:
        """The hubs or their keys have changed: renew what the core knows of the committed model."""
        if self.committed is not None:
            self._parts.core.on_trial(self._means.setup(self.committed.form))

    def measure(self) -> None:
        """Measure how fast the models run, before they serve."""
        self.model.measure()
        if self.committed is not None:
            self.committed.measure()

    def close(self) -> None:
        """Unload the models."""
        self.model.close()
        if self.committed is not None:
            self.committed.close()


def _dice() -> Dice:
    return Dice(secrets.token_hex(16), _LOTS.random(), _LOTS.random())
