"""Result types of a finished candidate: what ships as a bundle, and what its report shows."""

from typing import NamedTuple

import msgspec
from torch import nn

from models.forge.evaluation.metrics import PairEvaluation, PartAnswers
from models.forge.export.codec_choice import CodecChoice
from models.forge.export.device_work import DeviceWork
from models.forge.export.targets import TargetProfile
from models.forge.leakage.measure import LeakageMeasurement
from models.forge.partition.cuts import Cut
from models.forge.partition.select import BundleCost
from models.forge.routes.frontier import RoutePoint
from models.forge.training.code_path import CodePath
from wire.protocol.messages import FieldSpec


class CandidateSummary(msgspec.Struct, frozen=True):
    """One precision of the edge graph in the report; `why` it does not ship, "" for the one that does.

    `busy`: others had the processor while it was timed.
    """

    precision: str
    size_bytes: int
    p50_us: float | None
    rss_bytes: int
    accuracy: float | None
    why: str
    busy: bool = False


class EdgeResult(NamedTuple):
    """The edge graph that ships, and the candidates compared.

    `p50_us`: at batch 1, one thread, on this machine's CPU. `work`: against the given model's.
    """

    graph: bytes
    precision: str
    p50_us: float
    candidates: tuple[CandidateSummary, ...]
    work: DeviceWork = DeviceWork(0.0)

    @property
    def busy(self) -> bool:
        """Whether others had the processor while the graph that ships was timed."""
        return any(c.busy for c in self.candidates if c.precision == self.precision)


class ForgedBundle(NamedTuple):
    """Everything made of one cut: graphs, payload, evaluation, leakage and costs.

    `tail`: codes as floats -> outputs. `path`: what travels; `points`: the frontier that it was chosen from.
    """

    cut: Cut
    tail: nn.Module
    edge: EdgeResult
    feature: FieldSpec
    leaving: CodecChoice
    chosen_on: PartAnswers
    measured_on: PartAnswers
    judged: PairEvaluation
    leaked: LeakageMeasurement
    profile: TargetProfile
    shipped: BundleCost
    path: CodePath | None = None
    points: tuple[RoutePoint, ...] = ()
