"""Model splitting: a traced model as two graphs, a head that makes the features and a tail that answers from them.

Rule: tail(head(x)) is the model, checked at a batch size that is not the example's. Both have weights of their own, so
that the tail may be trained further. They stay evaluation graphs: batch normalisation keeps its statistics and dropout
is gone, whatever mode they are put in.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from models.forge.data.types import ForgeError
from models.forge.partition.cuts import Cut, TracedModel
from models.forge.partition.trace import outputs_match, resize_batch

_ATEN = torch.ops.aten
_ADD, _MUL = operator.add, operator.mul


class SplitModel(NamedTuple):
    """Head and tail of a model.

    `head(x)`: one float tensor, or a tuple of 2 or 3 (a mask as 0.0, 1.0); `tail(*features)`: `[n, outputs]`.
    """

    head: fx.GraphModule
    tail: fx.GraphModule


def split_model(traced: TracedModel, cut: Cut) -> SplitModel:
    """Split a model into halves with weights of their own. Raises ForgeError if together they are not the model."""
    shared = split_shared(traced, cut)
    return SplitModel(_own_weights(shared.head), _own_weights(shared.tail))


def split_shared(traced: TracedModel, cut: Cut) -> SplitModel:
    """As `split_model`, sharing the model's weights: to measure with, not to train."""
    known = {node.name: node for node in traced.gm.graph.nodes}
    missing = [name for name in cut.nodes if name not in known]
    if missing:
        raise ForgeError(f"cut {cut.name}: this model has no {missing[0]}; find its cuts again")
    nodes = [known[name] for name in cut.nodes]
    found = SplitModel(extract_head(traced.gm, nodes), _extract_tail(traced.gm, nodes))
    _verify_split(traced, cut, found)
    return found


def copy_model(traced: TracedModel) -> fx.GraphModule:
    """The whole traced model with weights of its own, to be trained further."""
    return _own_weights(fx.GraphModule(traced.gm, traced.gm.graph))


def run_head(head: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Features that a head makes of `x`, always as a tuple."""
    found: Any = head(x)
    return found if isinstance(found, tuple) else (found,)


def _verify_split(traced: TracedModel, cut: Cut, found: SplitModel) -> None:
    x = resize_batch(traced.example)
    with torch.no_grad():
        if not outputs_match(traced.gm(x), found.tail(*run_head(found.head, x))):
            raise ForgeError(f"cut {cut.name}: its halves do not answer as the whole does; choose another cut")


def extract_head(gm: fx.GraphModule, cut: Sequence[fx.Node]) -> fx.GraphModule:
    """Graph from the input to these nodes, as float: one tensor, or a tuple in this order."""
    needed, graph = _find_dependencies(cut, stop=()), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    sent = tuple(_as_float(graph, copies[node]) for node in cut)
    graph.output(sent if len(sent) > 1 else sent[0])
    return _build_module(gm, graph)


def _extract_tail(gm: fx.GraphModule, cut: Sequence[fx.Node]) -> fx.GraphModule:
    """Graph from the features to the output.

    Copied back from the output, so that only what the features do not carry (positions, constants) is made again.
    """
    graph, end = fx.Graph(), next(node for node in gm.graph.nodes if node.op == "output")
    arrived = [graph.placeholder(f"features_{i}" if i else "features") for i in range(len(cut))]
    copies = {node: _restore_mask(graph, at, node) for node, at in zip(cut, arrived, strict=True)}
    batch = graph.call_function(_ATEN.sym_size.int, (arrived[0], 0))
    free = cut[0].meta["val"].shape[0].node.expr
    needed = _find_dependencies([end], stop=cut, free=free)
    for node in gm.graph.nodes:
        size = _linear_size(node, free)
        if node in copies or node not in needed or node is end:
            continue
        if node.op == "placeholder":
            raise ForgeError("cut: the rest of the model needs its input again; find its cuts again")
        copies[node] = graph.node_copy(node, copies.__getitem__) if size is None else _insert_size(graph, batch, size)
    graph.output(fx.node.map_arg(end.args[0], copies.__getitem__))
    answer = graph.output_node().args[0]
    if isinstance(answer, tuple | list):  # an exported program answers with a tuple
        graph.output_node().args = (answer[0],)
    return _build_module(gm, graph)


class _BatchSize(NamedTuple):
    """A size as a multiple of the batch and a constant."""

    times: int
    plus: int


def _linear_size(node: fx.Node, free: Any) -> _BatchSize | None:
    """A size that depends on the batch alone, as multiple and constant; None for any other node.

    It is made anew from the features: not every such size is the batch itself.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.SymInt):
        return None
    expression = value.node.expr
    plus = expression.subs(free, 0)
    times = expression.coeff(free)
    plain = expression == times * free + plus and times.is_Integer and plus.is_Integer
    return _BatchSize(int(times), int(plus)) if plain else None


def _insert_size(graph: fx.Graph, batch: fx.Node, size: _BatchSize) -> Any:
    many = batch if size.times == 1 else graph.call_function(_MUL, (batch, size.times))
    return many if not size.plus else graph.call_function(_ADD, (many, size.plus))


def _find_dependencies(ends: Sequence[fx.Node], stop: Sequence[fx.Node], free: Any = None) -> set[fx.Node]:
    """All that `ends` are made of, not looking behind `stop` nor behind sizes that are made anew."""
    stack, seen = list(ends), set(ends)
    while stack:
        node = stack.pop()
        if node in stop or (free is not None and _linear_size(node, free) is not None):
            continue
        fresh = [parent for parent in node.all_input_nodes if parent not in seen]
        seen.update(fresh)
        stack += fresh
    return seen


def _as_float(graph: fx.Graph, node: fx.Node) -> fx.Node:
    if node.meta["val"].is_floating_point():
        return node
    return graph.call_function(_ATEN._to_copy.default, (node,), {"dtype": torch.float32})  # noqa: SLF001


def _restore_mask(graph: fx.Graph, node: fx.Node, original: fx.Node) -> fx.Node:
    """A mask comes back as it was, even if a codec moved it a little."""
    dtype = original.meta["val"].dtype
    if dtype.is_floating_point:
        return node
    if dtype == torch.bool:
        return graph.call_function(_ATEN.gt.Scalar, (node, 0.5))
    nearest = graph.call_function(_ATEN.round.default, (node,))
    return graph.call_function(_ATEN._to_copy.default, (nearest,), {"dtype": dtype})  # noqa: SLF001


def _build_module(gm: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    module = fx.GraphModule(gm, graph)
    module.graph.eliminate_dead_code()  # not before: a graph without a module cannot
    module.graph.lint()
    module.delete_all_unused_submodules()
    module.recompile()
    return module


def _own_weights(module: fx.GraphModule) -> fx.GraphModule:
    for name, weight in list(module.named_parameters(remove_duplicate=False)):
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, nn.Parameter(weight.detach().clone()))
    for name, kept in list(module.named_buffers(remove_duplicate=False)):
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, kept.detach().clone())
    return module
