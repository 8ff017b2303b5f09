"""Code path: one way from a sample to the codes of a question, and from the codes to the hub's answer.

Rule: paths differ in nothing but what travels; head, trunk, early exit, gate and novelty of the device are the same for
all of them. A path of the sample itself carries the sample's own sensitivity label, all others the label of features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn

from wire.protocol.messages import SensitivityLevel


class Route(StrEnum):
    """What a question carries: the sample itself, coded; early features at few levels; codes that were learned."""

    SAMPLE = "sample"
    EARLY = "early"
    LEARNED = "learned"


@dataclass(frozen=True)
class CodePath:
    """One way that a question may take.

    - `coder(sample, features, hidden)`: codes as whole floats `[n, *shape]` in `0..levels - 1`. `features`: the tensors
      at the cut, a tuple; `hidden`: output of the encoder's trunk. It becomes a part of the edge graph.
    - `decoder(codes)`: what `tail` takes, one tensor or a tuple; `tail` answers `[n, outputs]`: the given model behind
      a cut, or the whole of it where the sample travels.
    - `level`: sensitivity label of the codes. `codec`: name of the feature codec and `tables` its file; "" if the forge
      chooses between packing and entropy coding.
    """

    name: str
    route: Route
    coder: nn.Module
    decoder: nn.Module
    tail: nn.Module
    shape: tuple[int, ...]
    levels: int
    level: SensitivityLevel = SensitivityLevel.P2
    codec: str = ""
    tables: bytes = b""

    @property
    def positions(self) -> int:
        """Number of codes of one sample."""
        return math.prod(self.shape)


class TrunkCoder(nn.Module):
    """Coder of a path that reads the encoder's trunk: `quantise` maps hidden features to codes."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, _sample: Tensor, _features: Sequence[Tensor], hidden: Tensor) -> Tensor:
        codes: Tensor = self.encoder.quantise(hidden)  # type: ignore[operator]  # a method of BottleneckEncoder
        return codes


class SampleCoder(nn.Module):
    """Coder of a path that reads the sample and nothing else."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, sample: Tensor, _features: Sequence[Tensor], _hidden: Tensor) -> Tensor:
        codes: Tensor = self.inner(sample)
        return codes
