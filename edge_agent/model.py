"""Runs the model: in the event loop if it is quicker than a thread hop, else in the one thread that owns it.

Law: there may be none, at first or after a revocation; then nothing is guessed and `NoModel` is raised.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from edge_agent.commands import OutboxLimits, Setup
from edge_agent.desk import blank
from edge_agent.envelope import Envelopes
from edge_agent.records import NoModel, Sample
from models.manifest import Manifest
from models.runner import Inference, Runner, echo_manifest
from models.runner import Sample as Values
from policies import egress
from policies.locality import HubSite
from wire.messages import ModelRef

_PROBES = 3


class Absent:
    """Stands where a model will be. Its manifest describes nothing that could be asked."""

    manifest = echo_manifest(labels=1, version=0)

    def infer_one(self, _: Values) -> Inference:
        raise NoModel

    def infer(self, _: Values) -> list[Inference]:
        raise NoModel

    def close(self) -> None:
        """Nothing is held."""


class Model:
    """`hop_s`: what a thread hop costs (0.1 to 0.3 ms): only a model slower than that gets a thread of its own."""

    def __init__(self, runner: Runner | None, hop_s: float) -> None:
        self.present = runner is not None
        runner = runner or Absent()
        self.manifest = runner.manifest
        self.infer_one = runner.infer_one
        self._hop_s = hop_s
        self._thread: ThreadPoolExecutor | None = None

    def measure(self) -> None:
        """Run it a few times. Call it before the model serves."""
        if not self.present:
            return
        sample = blank(self.manifest)
        times_s = []
        for _ in range(_PROBES):
            began = perf_counter()
            self.infer_one(sample)
            times_s.append(perf_counter() - began)
        if min(times_s) > self._hop_s:
            self._thread = ThreadPoolExecutor(1, "agent-model")

    @property
    def refs(self) -> tuple[ModelRef, ...]:
        """What this device says it runs."""
        return (self.manifest.ref,) if self.present else ()

    @property
    def is_quick(self) -> bool:
        return self._thread is None

    async def infer_aside(self, sample: Sample) -> Inference:
        """In the model's own thread. SampleError if the sample does not fit."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.infer_one, sample.x)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)  # what runs in it ends by itself


def setup_of(manifest: Manifest, hubs: tuple[HubSite, ...], envelopes: Envelopes, limits: OutboxLimits) -> Setup:
    """What the core has to know of a model."""
    return Setup((*manifest.features, *egress.DERIVED), hubs, envelopes.frame_bytes(manifest.fixed_bytes), limits)
