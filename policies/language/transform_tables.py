"""Transforms in a policy document: the closed list of steps a field may go through before it leaves. Pure.

Each table compiles to a `TransformSpec`. "Narrower" says in which direction a parameter gives away less.
"""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from policies.decisions.egress import REDACTION_PATTERNS
from policies.language.values import LARGEST_WHOLE, ClosedTable, Name, Number, Positive, suggest_known
from policies.model.policy import TransformKind, TransformSpec

PositiveWhole = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Drop(ClosedTable):
    """The field stays on the device."""

    kind: Literal["drop"]

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.DROP)


class Clip(ClosedTable):
    """Clamp values to `low`..`high`. Narrower: a smaller interval."""

    kind: Literal["clip"]
    low: Number
    high: Number

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        return self

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.CLIP, low=self.low, high=self.high)


class ClipNorm(ClosedTable):
    """Shorten a vector that is longer than `norm` (Euclidean) to it. Narrower: smaller."""

    kind: Literal["clip_norm"]
    norm: Positive

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.CLIP_NORM, high=self.norm)


class Quantise(ClosedTable):
    """Round values to whole multiples of `step`. Narrower: a larger step."""

    kind: Literal["quantise"]
    step: Positive

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.QUANTISE, step=self.step)


class Coarsen(ClosedTable):
    """Round values down to a multiple of `factor`, counted from the field's low end. Narrower: larger."""

    kind: Literal["coarsen"]
    factor: Positive

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.COARSEN, step=self.factor)


class Bucketize(ClosedTable):
    """Replace values by the lower one of the rising `edges` they lie between. Narrower: fewer edges."""

    kind: Literal["bucketize"]
    edges: Annotated[list[Number], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _check_rising(self) -> Self:
        if any(low >= high for low, high in pairwise(self.edges)):
            raise ValueError("edges must rise")
        return self

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.BUCKETIZE, values=tuple(self.edges))


class KeyedHash(ClosedTable):
    """Hash whole numbers to others of so many `bits`, with this device's own key. Narrower: fewer."""

    kind: Literal["keyed_hash"]
    bits: Annotated[int, Field(ge=1, le=31)]

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.KEYED_HASH, step=float(self.bits))


class TopK(ClosedTable):
    """Keep the `k` greatest values; the others become the least of these. Narrower: smaller.

    With a `centre`: keep the `k` values farthest from it; the others become the centre.
    """

    kind: Literal["top_k"]
    k: PositiveWhole
    centre: Number | None = None

    def compile(self) -> TransformSpec:
        """The compiled step."""
        values = () if self.centre is None else (float(self.centre),)
        return TransformSpec(TransformKind.TOP_K, step=float(self.k), values=values)


class Pool(ClosedTable):
    """Replace each window of `size` neighbours by its mean. Narrower: larger."""

    kind: Literal["pool"]
    size: PositiveWhole

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.POOL, step=float(self.size))


class Project(ClosedTable):
    """Project values on `dim` directions drawn from `seed`; the rest is gone. Narrower: fewer."""

    kind: Literal["project"]
    seed: Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
    dim: PositiveWhole

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.PROJECT, low=float(self.seed), step=float(self.dim))


class Noise(ClosedTable):
    """Add discrete Gaussian noise of standard deviation `sigma` on a grid. Narrower: larger `sigma`."""

    kind: Literal["noise"]
    sigma: Positive
    grid: Annotated[float, Field(ge=0, le=LARGEST_WHOLE)] = 0.0  # 0 = the device picks one that fits the type

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.NOISE, step=self.sigma, high=self.grid)


class Redact(ClosedTable):
    """Replace text that one of these patterns finds by asterisks. Narrower: more patterns."""

    kind: Literal["redact"]
    patterns: Annotated[list[Name], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_patterns(self) -> Self:
        for name in self.patterns:
            if name not in REDACTION_PATTERNS:
                raise ValueError(f"no pattern is called {name!r}; {suggest_known(name, REDACTION_PATTERNS)}")
        return self

    def compile(self) -> TransformSpec:
        """The compiled step."""
        return TransformSpec(TransformKind.REDACT, words=tuple(self.patterns))


Transform = Annotated[
    Drop | Clip | ClipNorm | Quantise | Coarsen | Bucketize | KeyedHash | TopK | Pool | Project | Noise | Redact,
    Field(discriminator="kind"),
]
