"""Graphs in other numbers than they are stored in: bfloat16 and float16 by autocast, linear layers in int8.

Rule: shapes, operations and results keep their meaning; only how products are computed changes. Weights that several
graphs share are converted once and stay shared, one after the other, so that little more than one copy is ever held.

int8: symmetric, one scale for each output channel of a weight. On a CPU activations are quantised too, by row as they
come ("dynamic", W8A8), and multiplied in int8 (`torch._int_mm`, oneDNN); on a card weights alone are int8 and widened
for each product. Convolutions and products of two activations stay as they are.
"""

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from models.graph.module import HubGraphModule

_aten = torch.ops.aten
_LINEAR = _aten.linear.default
_PRODUCTS = frozenset(
    {
        _LINEAR, _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.matmul.default, _aten.baddbmm.default,
        _aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default, _aten.convolution.default,
        _aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding, _aten.embedding.default,
    }
)  # fmt: skip
_VIEWS = frozenset(
    {
        _aten.t.default, _aten.transpose.int, _aten.permute.default, _aten.view.default, _aten.reshape.default,
        _aten.expand.default, _aten.unsqueeze.default,
    }
)  # fmt: skip
_LEAST_SIDE = 16  # of a weight that is worth int8
INT8_STEPS = 127


class GraphNumbers(NamedTuple):
    """Where graphs compute and in which numbers.

    `narrow`: element type of products and their weights, None = as stored; `int8`: linear layers in int8.
    """

    device: torch.device
    narrow: torch.dtype | None = None
    int8: bool = False


class QuantizedWeight(NamedTuple):
    """Weight in int8, `[outputs, inputs]`, and its scale for each output channel, `[outputs]` float32."""

    values: Tensor
    scales: Tensor


def quantize_weight(weight: Tensor) -> QuantizedWeight:
    """Quantise a weight `[outputs, inputs]` by output channel, symmetric, to -127..127; zero channels get scale 1."""
    scales = weight.abs().amax(1).float() / INT8_STEPS
    scales = torch.where(scales > 0, scales, 1.0)
    return QuantizedWeight((weight / scales[:, None]).round_().to(torch.int8), scales)


class DynamicInt8Linear(nn.Module):
    """Linear layer for a CPU: int8 weights, and activations quantised by row as they come, `[..., inputs]` float32.

    ValueError for a layer of one input: `torch._int_mm` gives wrong numbers for it (torch 2.13 on x86).
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        super().__init__()
        if weight.values.shape[1] < 2:
            raise ValueError("a layer of one input is not computed in int8")
        self.register_buffer("values", weight.values.t())  # a view: oneDNN reads it as it lies
        self.register_buffer("scales", weight.scales)
        self.register_buffer("bias", bias)

    values: Tensor
    scales: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias`, of the element type of `x`."""
        rows = x.reshape(-1, x.shape[-1]).float()
        steps = rows.abs().amax(1, keepdim=True) / INT8_STEPS
        steps = torch.where(steps > 0, steps, 1.0)
        product = torch._int_mm((rows / steps).round_().to(torch.int8), self.values)  # noqa: SLF001 - torch has no other
        made = product.float().mul_(steps).mul_(self.scales)
        made = made if self.bias is None else made.add_(self.bias)
        return made.reshape(*x.shape[:-1], -1).to(x.dtype)


class WeightOnlyInt8Linear(nn.Module):
    """Linear layer for a card: int8 weights, widened for each product; activations keep their type."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("values", weight.values)
        self.register_buffer("scales", weight.scales)
        self.register_buffer("bias", bias)

    values: Tensor
    scales: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias`. The scale follows the product: one multiplication for each output."""
        made = nn.functional.linear(x, self.values.to(x.dtype)) * self.scales
        return made if self.bias is None else made + self.bias


def convert_graphs(
    graphs: Mapping[str, HubGraphModule], numbers: GraphNumbers, *, consume: bool
) -> dict[str, fx.GraphModule]:
    """Return the graphs with their weights on a device, in these numbers; `consume` frees the given weights on the way.

    The result checks no inputs (`HubGraphModule.rehearse_batch` does); run it below `compute_in`.
    """
    return _GraphConverter(graphs, numbers, consume=consume).convert()


def compute_in(numbers: GraphNumbers) -> torch.autocast:
    """Context in which converted graphs run: products in the narrow type, the rest as it comes."""
    kind = numbers.device.type
    return torch.autocast(kind, numbers.narrow, enabled=numbers.narrow is not None, cache_enabled=False)


def count_weight_bytes(graphs: Mapping[str, fx.GraphModule]) -> int:
    """Count the bytes of all weights that graphs hold; what they share counts once."""
    held = {tensor.data_ptr(): tensor.nbytes for graph in graphs.values() for tensor in graph.state_dict().values()}
    return sum(held.values())


class _GraphConverter:
    """Conversion of graphs of one document: their weights of one name are one tensor."""

    def __init__(self, graphs: Mapping[str, HubGraphModule], numbers: GraphNumbers, *, consume: bool) -> None:
        self._sources = {name: given.graph for name, given in graphs.items()}
        self._numbers = numbers
        self._consume = consume
        self._copies = {name: copy.deepcopy(source.graph) for name, source in self._sources.items()}
        self._roots = {name: nn.Module() for name in graphs}

    def convert(self) -> dict[str, fx.GraphModule]:
        """Convert linear layers first: what then no other node uses is left out. ValueError if int8 finds none."""
        if self._numbers.int8:
            self._convert_linears()
        users = [self._find_users(copied) for copied in self._copies.values()]
        for weight in sorted(set().union(*users)):
            nodes = [node for found in users for node in found.get(weight, ())]
            moved = self._move_weight(self._weight(weight), narrow=all(map(_feeds_products, nodes)))
            for name, found in zip(self._copies, users, strict=True):
                if weight in found:
                    self._roots[name].register_buffer(weight, moved)
            self._release(weight)
        return {
            name: fx.GraphModule(self._roots[name], copied, class_name="ConvertedGraph").eval()
            for name, copied in self._copies.items()
        }

    def _find_users(self, graph: fx.Graph) -> dict[str, list[fx.Node]]:
        found: dict[str, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op == "get_attr":
                found.setdefault(node.target, []).append(node)
        return found

    def _move_weight(self, tensor: Tensor, *, narrow: bool) -> Tensor:
        narrowed = narrow and tensor.dtype is torch.float32 and self._numbers.narrow is not None
        return tensor.to(self._numbers.device, self._numbers.narrow if narrowed else tensor.dtype)

    def _weight(self, name: str) -> Tensor:
        found: Tensor = next(getattr(each, name) for each in self._sources.values() if hasattr(each, name))
        return found

    def _release(self, name: str) -> None:
        for source in self._sources.values():
            if self._consume and hasattr(source, name):
                delattr(source, name)

    def _convert_linears(self) -> None:
        """Replace linear layers by int8 ones; a weight of several layers is quantised once."""
        made: dict[tuple[str, str], nn.Module] = {}
        for name, copied in self._copies.items():
            for node in [each for each in copied.nodes if each.target is _LINEAR]:
                key = self._linear_weights(node)
                if key is None:
                    continue
                made[key] = made.get(key) or self._make_linear(*key)
                self._replace_linear(name, node, "_".join(("int8", *filter(None, key))), made[key])
        if not made:
            raise ValueError(f"no linear layer of at least {_LEAST_SIDE} inputs and outputs")
        for copied in self._copies.values():
            for node in [each for each in copied.nodes if each.op == "get_attr" and not each.users]:
                copied.erase_node(node)
        still = set().union(*(self._find_users(copied) for copied in self._copies.values()))
        for weight in {name for key in made for name in key if name} - still:
            self._release(weight)

    def _linear_weights(self, node: fx.Node) -> tuple[str, str] | None:
        """Return the names of a layer's weight and bias ("" = none); None if it is not worth or not made for int8."""
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
        if not isinstance(weight, fx.Node) or weight.op != "get_attr":
            return None
        if bias is not None and (not isinstance(bias, fx.Node) or bias.op != "get_attr"):
            return None
        tensor = self._weight(str(weight.target))
        if tensor.dtype is not torch.float32 or tensor.ndim != 2 or min(tensor.shape) < _LEAST_SIDE:
            return None
        return str(weight.target), "" if bias is None else str(bias.target)

    def _make_linear(self, weight: str, bias: str) -> nn.Module:
        device = self._numbers.device
        found = QuantizedWeight(*(part.to(device) for part in quantize_weight(self._weight(weight))))
        added = self._weight(bias).to(device) if bias else None
        return (DynamicInt8Linear if device.type == "cpu" else WeightOnlyInt8Linear)(found, added)

    def _replace_linear(self, name: str, node: fx.Node, target: str, layer: nn.Module) -> None:
        self._roots[name].add_module(target, layer)
        with self._copies[name].inserting_before(node):
            made = self._copies[name].call_module(target, (node.args[0],))
        node.replace_all_uses_with(made)
        self._copies[name].erase_node(node)


def _feeds_products(weight: fx.Node) -> bool:
    """Whether a weight, or a view of it, is used by products alone: then their narrow type loses nothing else."""
    return all(
        user.target in _PRODUCTS or (user.target in _VIEWS and _feeds_products(user)) for user in weight.users
    ) and bool(weight.users)
