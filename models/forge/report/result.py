"""All that was made of one cut: what ships as a bundle, and what its report tells."""

from typing import NamedTuple

import msgspec
from torch import nn

from models.forge.evaluation.metrics import Answered, Judged
from models.forge.export.codec_choice import Leaving
from models.forge.export.targets import Profile
from models.forge.leakage.measure import Measured
from models.forge.partition.cuts import Cut
from models.forge.partition.select import Shipped
from wire.protocol.messages import FieldSpec


class Candid(msgspec.Struct, frozen=True):
    """A candidate of the edge graph as the report tells of it; `why` it does not ship, "" for the one that does."""

    precision: str
    size_bytes: int
    p50_us: float | None
    rss_bytes: int
    accuracy: float | None
    why: str


class Edge(NamedTuple):
    """The graph that ships, and what was compared. `p50_us`: at batch 1, one thread, on this machine's processor."""

    graph: bytes
    precision: str
    p50_us: float
    candidates: tuple[Candid, ...]


class Made(NamedTuple):
    """Everything of one cut. `tail`: codes as floats -> outputs."""

    cut: Cut
    tail: nn.Module
    edge: Edge
    feature: FieldSpec
    leaving: Leaving
    chosen_on: Answered
    measured_on: Answered
    judged: Judged
    leaked: Measured
    profile: Profile
    shipped: Shipped
