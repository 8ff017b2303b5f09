"""Layout of a cut's tensors: image grid, sequence (channels first or last), or flat vector; and a canonical form.

Rule: one canonical form for whatever learns from features, `[n, channels, height, width]` (a sequence is one row) or
`[n, numbers]`, and an exact way back. Several tensors of one cut are always numbers.
"""

import math
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from models.forge.partition.cuts import Cut

_CHANNELS_FIRST = ("conv", "batch_norm", "pool", "group_norm")
_CHANNELS_LAST = ("linear", "layer_norm", "embedding", "matmul", "mm", "gru", "lstm", "attention", "rms_norm")


class AxisOrder(StrEnum):
    """Order of a feature tensor's axes."""

    GRID = "grid"  # [n, channels, height, width]
    CHANNELS_FIRST = "channels-first"  # [n, channels, length]
    CHANNELS_LAST = "channels-last"  # [n, length, channels]
    NUMBERS = "numbers"


class FeatureLayout(NamedTuple):
    """Axis order and shapes of a cut's tensors.

    `shapes`: as the model has them, without the batch; `shape`: of the canonical form.
    """

    order: AxisOrder
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]

    @property
    def spatial(self) -> bool:
        """True for a grid or a sequence."""
        return self.order is not AxisOrder.NUMBERS

    def to_canonical(self, *features: Tensor) -> Tensor:
        """A cut's tensors -> the canonical form."""
        if self.order is AxisOrder.GRID:
            return features[0]
        if self.order is AxisOrder.CHANNELS_FIRST:
            return features[0].unsqueeze(2)
        if self.order is AxisOrder.CHANNELS_LAST:
            return features[0].transpose(1, 2).unsqueeze(2)
        return torch.cat([feature.flatten(1).float() for feature in features], 1)

    def from_canonical(self, joined: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The canonical form -> a cut's tensor, or its tensors."""
        if self.order is AxisOrder.GRID:
            return joined
        if self.order is AxisOrder.CHANNELS_FIRST:
            return joined.squeeze(2)
        if self.order is AxisOrder.CHANNELS_LAST:
            return joined.squeeze(2).transpose(1, 2)
        parts = torch.split(joined, [math.prod(shape) for shape in self.shapes], 1)
        found = tuple(part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True))
        return found[0] if len(found) == 1 else found


def find_layout(graph: fx.GraphModule, cut: "Cut") -> FeatureLayout:
    """Layout of a cut's tensors in this graph. A sequence's order is that of the last layer that has one."""
    shapes = tuple(tuple(shape) for shape in cut.shapes)
    ranks = [len(shape) for shape in shapes]
    if ranks == [3]:
        return FeatureLayout(AxisOrder.GRID, shapes, shapes[0])
    if ranks == [2] and min(shapes[0]) > 1:
        if _sequence_order(graph, cut.nodes[0]) is AxisOrder.CHANNELS_FIRST:
            return FeatureLayout(AxisOrder.CHANNELS_FIRST, shapes, (shapes[0][0], 1, shapes[0][1]))
        return FeatureLayout(AxisOrder.CHANNELS_LAST, shapes, (shapes[0][1], 1, shapes[0][0]))
    return FeatureLayout(AxisOrder.NUMBERS, shapes, (sum(math.prod(shape) for shape in shapes),))


def _sequence_order(graph: fx.GraphModule, name: str) -> AxisOrder:
    node = next((node for node in graph.graph.nodes if node.name == name), None)
    while node is not None and node.op == "call_function":
        kind = str(node.target).lower()
        if any(word in kind for word in _CHANNELS_FIRST):
            return AxisOrder.CHANNELS_FIRST
        if any(word in kind for word in _CHANNELS_LAST):
            return AxisOrder.CHANNELS_LAST
        inputs = [value for value in node.all_input_nodes if value.op == "call_function"]
        node = inputs[0] if inputs else None
    return AxisOrder.CHANNELS_LAST
