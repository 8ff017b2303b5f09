"""Result types of a finished candidate: what ships as a bundle, and what its report shows."""

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
    """One precision of the edge graph in the report; `why` it does not ship, "" for the one that does."""

    precision: str
    size_bytes: int
    p50_us: float | None
    rss_bytes: int
    accuracy: float | None
    why: str


class Edge(NamedTuple):
    """The edge graph that ships, and the candidates compared.

    `p50_us`: at batch 1, one thread, on this machine's CPU.
    """

    graph: bytes
    precision: str
    p50_us: float
    candidates: tuple[Candid, ...]


class Made(NamedTuple):
    """Everything made of one cut: graphs, payload, evaluation, leakage and costs.

    `tail`: codes as floats -> outputs.
    """

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
