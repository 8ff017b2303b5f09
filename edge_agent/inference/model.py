"""Runs the model on the device, on the event loop or in a thread of its own, and watches its inputs for drift.

A model faster than a thread hop runs on the event loop. Rule: without a model (none downloaded yet, or revoked) nothing
is guessed: `NoModelError` is raised.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any

from edge_agent.question.commands import CoreSetup
from edge_agent.question.records import NoModelError, Sample
from edge_agent.question.seal import Envelopes, ModelFormat, blank_sample
from edge_agent.system.clock import HubClock
from edge_agent.system.settings import AgentSettings
from models.bundle.manifest import ModelKind
from models.runtime.chain import digest_sent_chain
from models.runtime.feature_codec import build_codec
from models.runtime.runner import Inference, Runner, echo_manifest
from models.runtime.runner import Sample as Values
from policies.decisions import egress
from policies.decisions.leakage import LeakageEvidence
from policies.decisions.routing import HubSite
from policies.monitoring.drift import CalibrationDeciles, DriftMonitor, observe_answer
from wire.process.logging import JsonLog, safe_name, safe_text
from wire.protocol.messages import Escalation, FieldSpec, ModelRef, Tensor, TensorDType

_PROBES = 3
_TRACE_CHARS = 55  # a W3C traceparent
_SUBJECT_BYTES = 32


class AbsentRunner:
    """Stands in for the runner while there is no model: every inference raises NoModelError."""

    manifest = echo_manifest(labels=1, version=0)
    codec = build_codec(manifest.codec, manifest.features)
    notes: tuple[str, ...] = ()

    def infer_one(self, _: Values) -> Inference:
        raise NoModelError

    def infer(self, _: Values) -> list[Inference]:
        raise NoModelError

    def close(self) -> None:
        """Nothing to release."""


class ServingModel:
    """The loaded model with its drift monitor.

    `hop_s`: cost of a thread hop in seconds (0.1 to 0.3 ms); only a slower model gets a thread.
    """

    def __init__(self, runner: Runner | None, hop_s: float) -> None:
        self.present = runner is not None
        self.runner = runner = runner or AbsentRunner()
        self.manifest = runner.manifest
        self.form = ModelFormat(runner.manifest, runner.codec)
        self.infer_one = runner.infer_one
        self._notes = runner.notes
        gate = runner.manifest.gate
        self._calibrated = CalibrationDeciles(gate.novelty_deciles, gate.confidence_deciles)
        self._drift = DriftMonitor()
        self._drifting_since_ms = 0
        self._hop_s = hop_s
        self._thread: ThreadPoolExecutor | None = None

    def measure_speed(self) -> None:
        """Time a few inferences and choose the thread; call it before the model serves."""
        if not self.present:
            return
        for note in self._notes:
            JsonLog().warning("runner_note", about=safe_name(note.split()[0]), reason=safe_text(note))
        sample = blank_sample(self.manifest)
        times_s = []
        for _ in range(_PROBES):
            began = perf_counter()
            self.infer_one(sample)
            times_s.append(perf_counter() - began)
        if min(times_s) > self._hop_s:
            self._thread = ThreadPoolExecutor(1, "agent-model")

    @property
    def refs(self) -> tuple[ModelRef, ...]:
        """The models that this device reports to run."""
        return (self.manifest.ref,) if self.present else ()

    @property
    def is_quick(self) -> bool:
        """Whether inference runs on the event loop."""
        return self._thread is None

    def observe_answer(self, inference: Inference, clock: HubClock) -> None:
        """Update the drift monitor with one answer, to see whether samples still look like the calibration data."""
        if any(self._calibrated):
            before = self._drift.alarm
            self._drift = observe_answer(
                self._drift, self._calibrated, inference.novelty, inference.prediction.confidence
            )
            if self._drift.alarm and not before:
                self._drifting_since_ms = clock.hub_ms()

    def status_fields(self) -> dict[str, Any]:
        """Fields of the status: runner notes and drift. From `drift.level` 1 on the drift is significant."""
        facts: dict[str, Any] = {"notes": list(self._notes)} if self._notes else {}
        if any(self._calibrated):
            told = {"level": round(self._drift.statistic, 3), "samples": self._drift.samples}
            facts["drift"] = told | ({"since_ms": self._drifting_since_ms} if self._drift.alarm else {})
        return facts

    def alarms(self) -> set[str]:
        """`drift` while samples no longer look like the calibration data."""
        return {"drift"} if self._drift.alarm else set()

    async def infer_in_thread(self, sample: Sample) -> Inference:
        """Run the model in its thread. SampleError if the sample does not fit its input."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.infer_one, sample.x)

    def close(self) -> None:
        """Stop the thread without waiting for it."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)  # a running inference ends by itself


def make_core_setup(
    form: ModelFormat, hubs: tuple[HubSite, ...], envelopes: Envelopes, settings: AgentSettings
) -> CoreSetup:
    """The core's configuration for this model: schema, hubs, frame size, measured leakage, limits, energy."""
    manifest = form.manifest
    derived = egress.list_derived_fields(regressor=manifest.kind is ModelKind.REGRESSOR)
    evidence = LeakageEvidence(manifest.leakage, partial(digest_sent_chain, manifest.cut, manifest.codec))
    frame_bytes = envelopes.frame_bytes(manifest.fixed_bytes)
    region = max((hub.region for hub in hubs), key=len, default="")
    schema, longest = (*manifest.features, *derived), _make_longest(form, derived, region)
    return CoreSetup(
        schema=schema, hubs=hubs, frame_bytes=frame_bytes, limits=settings.outbox, evidence=evidence,
        lines=envelopes.lines, padded_bytes=manifest.fixed_bytes, longest=longest, link_energy=settings.energy.link,
    )  # fmt: skip


def _make_longest(form: ModelFormat, derived: tuple[FieldSpec, ...], region: str) -> Escalation:
    """A question with every field filled, which gives the padded size; names from the policy are added later."""
    manifest = form.manifest
    fields = {spec.name: Tensor(spec.dtype, spec.shape, bytes(egress.count_raw_bytes(spec))) for spec in derived}
    for spec in manifest.features:
        size = form.codec.payload_bytes(spec.name)
        fields[spec.name] = Tensor(TensorDType.UINT8, (size,), bytes(size))
    return Escalation(
        id="f" * 32, model=manifest.ref, policy="f" * 32, region=region, fields=fields, budget_s=1e9, audit=True,
        trace="0" * _TRACE_CHARS, subject=bytes(_SUBJECT_BYTES),
    )  # fmt: skip
