"""Multiply-accumulates per node of an exported graph, counted from shapes without running it.

Rule: only what multiplies a tensor by weights or by another tensor counts (convolution, linear, matrix product,
attention, recurrence); everything else is counted as free.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import fx

_NodeCounter = Callable[[fx.Node], int]


def tensor_shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's tensor as it was for the example; () for what is no tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(concrete_size(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()


def concrete_size(size: Any) -> int:
    """A symbolic size as it was for the example. `int(size)` would add a guard to the graph."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def count_node_macs(node: fx.Node) -> int:
    """Multiply-accumulates of a node for the whole example batch."""
    if node.op != "call_function":
        return 0
    target = node.target
    name = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else ""  # noqa: SLF001
    count = _COUNTS.get(name)
    return count(node) if count else 0


def _count_convolution(node: fx.Node) -> int:
    weight = tensor_shape(node.args[1])
    transposed = len(node.args) > 6 and node.args[6] is True
    return prod(tensor_shape(node.args[0] if transposed else node)) * prod(weight[1:])


def _count_transposed(node: fx.Node) -> int:
    return prod(tensor_shape(node.args[0])) * prod(tensor_shape(node.args[1])[1:])


def _count_linear(node: fx.Node) -> int:
    return prod(tensor_shape(node)) * tensor_shape(node.args[1])[-1]


def _product_counter(first: int) -> _NodeCounter:
    return lambda node: prod(tensor_shape(node)) * tensor_shape(node.args[first])[-1]


def _count_attention(node: fx.Node) -> int:
    query, key = tensor_shape(node.args[0]), tensor_shape(node.args[1])
    return (prod(query) + prod(tensor_shape(node.args[2])[-1:]) * prod(query[:-1])) * key[-2]


def _count_recurrence(node: fx.Node) -> int:
    """Every step multiplies by every matrix once; the matrices are in a list among the arguments."""
    shape = tensor_shape(node.args[0])
    lists = [argument for argument in node.args if isinstance(argument, Sequence) and not isinstance(argument, str)]
    matrices = max(lists, key=len, default=())
    return prod(shape[:-1]) * sum(prod(tensor_shape(matrix)) for matrix in matrices if len(tensor_shape(matrix)) == 2)


def _count_einsum(node: fx.Node) -> int:
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or not isinstance(operands, Sequence) or "." in equation:
        return prod(tensor_shape(node))
    known: dict[str, int] = {}
    for letters, operand in zip(equation.replace(" ", "").split("->")[0].split(","), operands, strict=True):
        known |= dict(zip(letters, tensor_shape(operand), strict=True))
    return prod(known.values())


_COUNTS: dict[str, _NodeCounter] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _count_convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _count_transposed),
    "linear": _count_linear,
    **dict.fromkeys(("mm", "bmm", "matmul", "mv"), _product_counter(0)),
    **dict.fromkeys(("addmm", "baddbmm"), _product_counter(1)),
    "scaled_dot_product_attention": _count_attention,
    **dict.fromkeys(("gru", "lstm", "rnn_tanh", "rnn_relu"), _count_recurrence),
    "einsum": _count_einsum,
}
