"""Axis rules: how an operation passes on the axis that a tensor is divided along, from arguments and shapes alone.

Rule: a rule that is not sure says `None`; the tensor is then gathered and the operation runs whole on every rank,
which is always right. The batch axis is never divided.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from models.graph.aten_operations import OPERATION_GROUPS
from models.graph.shapes import node_shape

RuleArguments = tuple[Any, ...]
AxisResult = tuple[RuleArguments, int]  # the arguments as one rank gives them, and the axis of the result
AxisRule = Callable[[fx.Node, int, int], AxisResult | None]  # (node, axis of its first argument, ranks)


def node_arguments(node: fx.Node) -> Any:
    """Return a node's arguments. Their type is a union of all that torch knows; the schema was checked on building."""
    return node.args


def propagate_axis(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    """Apply the axis rule of an operation of one tensor (and plain arguments): None if it has none or is not sure."""
    rule = AXIS_RULES.get(str(node.target))
    return rule(node, axis, ways) if rule else None


def _reshaped_axis(node: fx.Node, axis: int, ways: int) -> int | None:
    """Return the axis of the result that is divided as `axis` of the source is: equally many parts before it."""
    before, after = node_shape(node_arguments(node)[0]), node_shape(node)
    ahead = math.prod(before[:axis])
    places = [at for at in range(len(after)) if math.prod(after[:at]) == ahead and after[at] > 1]
    fits = bool(places) and after[places[0]] % ways == 0 and before[axis] % ways == 0
    return places[0] if fits else None


def _view_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    at, sizes = _reshaped_axis(node, axis, ways), node_arguments(node)[1]
    if at is None or not isinstance(sizes, Sequence) or not isinstance(sizes[at], int):
        return None
    own = [size // ways if place == at and size > 0 else size for place, size in enumerate(sizes)]
    return (node_arguments(node)[0], own), at


def _unflatten_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    at, dim, sizes = _reshaped_axis(node, axis, ways), node_arguments(node)[1], node_arguments(node)[2]
    if at is None or not isinstance(sizes, Sequence) or not isinstance(dim, int):
        return None
    start = dim % len(node_shape(node_arguments(node)[0]))
    if not start <= at < start + len(sizes):
        return (*node_arguments(node),), at
    size = sizes[at - start]
    if not isinstance(size, int):
        return None
    own = [*sizes[: at - start], size // ways if size > 0 else size, *sizes[at - start + 1 :]]
    return (node_arguments(node)[0], dim, own), at


def _reshape_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    at = _reshaped_axis(node, axis, ways)
    return None if at is None else ((*node_arguments(node),), at)


def _transpose_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    del ways
    order = list(range(len(node_shape(node))))
    first, second = (
        (node_arguments(node)[1], node_arguments(node)[2]) if len(node_arguments(node)) == 3 else (0, len(order) - 1)
    )
    order[first], order[second] = order[second], order[first]
    return (*node_arguments(node),), order.index(axis)


def _permute_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    del ways
    dims = [dim % len(node_shape(node)) for dim in node_arguments(node)[1]]
    return (*node_arguments(node),), dims.index(axis)


def _working_axis(node: fx.Node, axis: int) -> int | None:
    """Return the axis that an operation works along, or None if that is the divided one."""
    given = node_arguments(node)[1] if len(node_arguments(node)) > 1 else node.kwargs.get("dim", 0)
    dim = given % len(node_shape(node_arguments(node)[0])) if isinstance(given, int) else axis
    return None if dim == axis else dim


def _kept_axis_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    """Rule of `slice`, `softmax` and the like: they leave the other axes alone."""
    del ways
    return None if _working_axis(node, axis) is None else ((*node_arguments(node),), axis)


def _select_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    """Rule of `select`: one axis goes."""
    del ways
    dim = _working_axis(node, axis)
    return None if dim is None else ((*node_arguments(node),), axis - (dim < axis))


def _split_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    """Rule of `split(x, sizes, dim)` and `chunk(x, n, dim)`."""
    del ways
    given = node_arguments(node)[2] if len(node_arguments(node)) > 2 else node.kwargs.get("dim", 0)
    dim = given % len(node_shape(node_arguments(node)[0])) if isinstance(given, int) else axis
    return None if dim == axis else ((*node_arguments(node),), axis)


def _reduction_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    del ways
    ndim = len(node_shape(node_arguments(node)[0]))
    given = node_arguments(node)[1] if len(node_arguments(node)) > 1 else None
    dims = {dim % ndim for dim in ([given] if isinstance(given, int) else given or range(ndim))}
    if axis in dims:
        return None
    kept = len(node_shape(node)) == ndim
    return (*node_arguments(node),), axis if kept else axis - sum(dim < axis for dim in dims)


def _pooling_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    """Rule of pooling on pictures `[n, channels, ...]`: it works on what comes after the channels."""
    del ways
    return ((*node_arguments(node),), axis) if axis == 1 else None


def _layer_norm_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    """Rule of `layer_norm` over the last axes."""
    del ways
    over = len(node_arguments(node)[1])
    return ((*node_arguments(node),), axis) if axis < len(node_shape(node)) - over else None


def _expand_rule(node: fx.Node, axis: int, ways: int) -> AxisResult | None:
    sizes = node_arguments(node)[1]
    at = axis + len(node_shape(node)) - len(node_shape(node_arguments(node)[0]))
    if not isinstance(sizes, Sequence) or not isinstance(sizes[at], int):
        return None
    own = [size // ways if place == at and size > 0 else size for place, size in enumerate(sizes)]
    return (node_arguments(node)[0], own, *node_arguments(node)[2:]), at


def _rules_for(words: str, rule: AxisRule) -> dict[str, AxisRule]:
    return {f"aten.{word if '.' in word else word + '.default'}": rule for word in words.split()}


_POOLING_NAMES = " ".join(name for name in OPERATION_GROUPS["pooling"].split() if "indices" not in name)
AXIS_RULES: dict[str, AxisRule] = {
    **_rules_for("view reshape _unsafe_view", _view_rule),
    **_rules_for("unflatten.int", _unflatten_rule),
    **_rules_for("flatten.using_ints unsqueeze squeeze squeeze.dim squeeze.dims", _reshape_rule),
    **_rules_for("transpose.int t swapaxes", _transpose_rule),
    **_rules_for("permute", _permute_rule),
    **_rules_for("slice.Tensor narrow softmax.int log_softmax.int", _kept_axis_rule),
    **_rules_for("select.int unbind.int", _select_rule),
    **_rules_for("split.Tensor split.sizes split_with_sizes chunk", _split_rule),
    **_rules_for("sum.dim_IntList mean.dim amax amin", _reduction_rule),
    **_rules_for("layer_norm", _layer_norm_rule),
    **_rules_for("expand", _expand_rule),
    **_rules_for(_POOLING_NAMES, _pooling_rule),
}
