"""Rewrites of a traced graph that change none of its answers: computed weights folded, views made safe to export again.

Rule: a rewrite is exact up to rounding, and a graph that needs none is left as it is. Whoever calls these compares the
graph with the model afterwards.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from models.graph.aten_operations import ALLOWED_OPERATIONS

_ATEN = torch.ops.aten
_PARAMETRISED = ".parametrizations."  # of a module's path: torch.nn.utils.parametrize keeps its layers there
_VIEWS = frozenset(("view", "_unsafe_view", "reshape", "flatten", "contiguous"))
# Their result has strides of its own, or those of its source.
_STRIDED = frozenset(
    (
        *("transpose", "permute", "t", "movedim", "swapaxes", "expand", "expand_as", "unfold", "diagonal"),
        *("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "squeeze", "unsqueeze"),
        *("alias", "detach"),
    )
)


def rewrite_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """The graph with computed weights folded and views made safe, changed in place and compiled again."""
    fold_weights(gm)
    separate_views(gm)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()
    return gm


def fold_weights(gm: fx.GraphModule) -> None:
    """Compute once what a model computes from its weights alone: normalised, orthogonal and other parametrised weights.

    Only where an operation is one that the hub does not run, or belongs to a parametrisation: a table of positions that
    is computed from a smaller one stays so, and can be trained further as it was meant.
    """
    constant: dict[fx.Node, bool] = {}  # node that depends on weights alone: whether it has to be folded
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            constant[node] = False
        elif node.op == "call_function" and all(parent in constant for parent in node.all_input_nodes):
            constant[node] = _must_fold(node) or any(constant[parent] for parent in node.all_input_nodes)
    folded = dict.fromkeys(node for node, must in constant.items() if must)  # in the order of the graph
    ends = [node for node in folded if _is_tensor(node) and any(user not in folded for user in node.users)]
    for number, (node, value) in enumerate(_compute_values(gm, ends).items()):
        _replace_by_weight(gm, node, f"_folded_{number}", value)


def separate_views(gm: fx.GraphModule) -> None:
    """Put a contiguous copy before each view or reshape of a tensor that may be laid out in another order.

    Export makes a view of a reshape if the strides allow it. Attention gives such strides here, and others where it is
    decomposed for ONNX: then the view is impossible and the export fails.
    """
    for node in list(gm.graph.nodes):
        source = node.args[0] if node.args else None
        if operator_name(node) not in _VIEWS or not isinstance(source, fx.Node) or not _has_own_strides(source):
            continue
        with gm.graph.inserting_before(node):
            copy = gm.graph.call_function(_ATEN.clone.default, (source,), {"memory_format": torch.contiguous_format})
        copy.meta = dict(source.meta)
        value = source.meta.get("val")
        if isinstance(value, Tensor):
            copy.meta["val"] = value.clone(memory_format=torch.contiguous_format)
        node.replace_input_with(source, copy)


def _must_fold(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload) and str(node.target) not in ALLOWED_OPERATIONS:  # noqa: SLF001
        return True
    stack: Any = node.meta.get("nn_module_stack") or {}
    return any(_PARAMETRISED in f".{entry[0]}." for entry in stack.values())


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _compute_values(gm: fx.GraphModule, ends: list[fx.Node]) -> dict[fx.Node, Tensor]:
    """Values of nodes that depend on weights alone; every node on their way is run once."""
    stack, needed = list(ends), set(ends)
    while stack:
        fresh = [parent for parent in stack.pop().all_input_nodes if parent not in needed]
        needed.update(fresh)
        stack += fresh
    run = fx.Interpreter(gm)
    with torch.no_grad():
        for node in gm.graph.nodes:
            if node in needed:
                run.env[node] = run.run_node(node)
    return {node: run.env[node].detach().clone() for node in ends}


def _replace_by_weight(gm: fx.GraphModule, node: fx.Node, name: str, value: Tensor) -> None:
    if value.is_floating_point():
        gm.register_parameter(name, nn.Parameter(value))
    else:
        gm.register_buffer(name, value)
    with gm.graph.inserting_before(node):
        weight = gm.graph.get_attr(name)
    weight.meta = dict(node.meta)
    node.replace_all_uses_with(weight)


def _has_own_strides(node: fx.Node) -> bool:
    """Whether a tensor is, behind views and one of several pieces, laid out in another order than it was computed."""
    while node.op == "call_function" and node.all_input_nodes:
        name = operator_name(node)
        if name in _STRIDED:
            return True
        if name not in _VIEWS and node.target is not operator.getitem:
            return False
        node = node.all_input_nodes[0]
    return False


def operator_name(node: fx.Node) -> str:
    """Name of a node's ATen operator without its overload, as in "linear"; "" for any other node."""
    target = node.target
    return str(target.overloadpacket.__name__) if isinstance(target, torch._ops.OpOverload) else ""  # noqa: SLF001
