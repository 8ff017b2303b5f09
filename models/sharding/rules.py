"""Axis rules: how an operation passes on the axis that a tensor is divided along, from arguments and shapes alone.

Rule: a rule that is not sure says `None`; the tensor is then gathered and the operation runs whole on every rank,
which is always right. The batch axis is never divided.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from models.graph.operations import GROUPS
from models.graph.shapes import shape

Args = tuple[Any, ...]
Passed = tuple[Args, int]  # the arguments as one rank gives them, and the axis of the result
Rule = Callable[[fx.Node, int, int], Passed | None]  # (node, axis of its first argument, ranks)


def _names(group: str, without: str = "") -> set[str]:
    return {name if "." in name else f"{name}.default" for name in GROUPS[group].split()} - set(without.split())


def arguments(node: fx.Node) -> Any:
    """Return a node's arguments. Their type is a union of all that torch knows; the schema was checked on building."""
    return node.args


POINTWISE = frozenset(
    f"aten.{name}"
    for name in (
        *_names("arithmetic", "cumsum.default cumprod.default cosine_similarity.default"),
        *_names(
            "activation",
            "softmax.int _softmax.default log_softmax.int _log_softmax.default prelu.default _prelu_kernel.default "
            "glu.default rrelu.default dropout.default feature_dropout.default alpha_dropout.default "
            "feature_alpha_dropout.default",
        ),
        *_names("logic", "any.default any.dim all.default all.dim"),
        *_names("cast", "lift_fresh_copy.default"),
        *("zeros_like.default", "ones_like.default", "full_like.default", "contiguous.default"),
    )
)


def passed(node: fx.Node, axis: int, ways: int) -> Passed | None:
    """Apply the axis rule of an operation of one tensor (and plain arguments): None if it has none or is not sure."""
    rule = _RULES.get(str(node.target))
    return rule(node, axis, ways) if rule else None


def _reshaped(node: fx.Node, axis: int, ways: int) -> int | None:
    """Return the axis of the result that is divided as `axis` of the source is: equally many parts before it."""
    before, after = shape(arguments(node)[0]), shape(node)
    ahead = math.prod(before[:axis])
    places = [at for at in range(len(after)) if math.prod(after[:at]) == ahead and after[at] > 1]
    fits = bool(places) and after[places[0]] % ways == 0 and before[axis] % ways == 0
    return places[0] if fits else None


def _view(node: fx.Node, axis: int, ways: int) -> Passed | None:
    at, sizes = _reshaped(node, axis, ways), arguments(node)[1]
    if at is None or not isinstance(sizes, Sequence) or not isinstance(sizes[at], int):
        return None
    own = [size // ways if place == at and size > 0 else size for place, size in enumerate(sizes)]
    return (arguments(node)[0], own), at


def _unflatten(node: fx.Node, axis: int, ways: int) -> Passed | None:
    at, dim, sizes = _reshaped(node, axis, ways), arguments(node)[1], arguments(node)[2]
    if at is None or not isinstance(sizes, Sequence) or not isinstance(dim, int):
        return None
    start = dim % len(shape(arguments(node)[0]))
    if not start <= at < start + len(sizes):
        return (*arguments(node),), at
    size = sizes[at - start]
    if not isinstance(size, int):
        return None
    own = [*sizes[: at - start], size // ways if size > 0 else size, *sizes[at - start + 1 :]]
    return (arguments(node)[0], dim, own), at


def _same_words(node: fx.Node, axis: int, ways: int) -> Passed | None:
    at = _reshaped(node, axis, ways)
    return None if at is None else ((*arguments(node),), at)


def _transpose(node: fx.Node, axis: int, ways: int) -> Passed | None:
    del ways
    order = list(range(len(shape(node))))
    first, second = (arguments(node)[1], arguments(node)[2]) if len(arguments(node)) == 3 else (0, len(order) - 1)
    order[first], order[second] = order[second], order[first]
    return (*arguments(node),), order.index(axis)


def _permute(node: fx.Node, axis: int, ways: int) -> Passed | None:
    del ways
    dims = [dim % len(shape(node)) for dim in arguments(node)[1]]
    return (*arguments(node),), dims.index(axis)


def _along(node: fx.Node, axis: int) -> int | None:
    """Return the axis that an operation works along, or None if that is the divided one."""
    given = arguments(node)[1] if len(arguments(node)) > 1 else node.kwargs.get("dim", 0)
    dim = given % len(shape(arguments(node)[0])) if isinstance(given, int) else axis
    return None if dim == axis else dim


def _kept(node: fx.Node, axis: int, ways: int) -> Passed | None:
    """Rule of `slice`, `softmax` and the like: they leave the other axes alone."""
    del ways
    return None if _along(node, axis) is None else ((*arguments(node),), axis)


def _dropped(node: fx.Node, axis: int, ways: int) -> Passed | None:
    """Rule of `select`: one axis goes."""
    del ways
    dim = _along(node, axis)
    return None if dim is None else ((*arguments(node),), axis - (dim < axis))


def _split(node: fx.Node, axis: int, ways: int) -> Passed | None:
    """Rule of `split(x, sizes, dim)` and `chunk(x, n, dim)`."""
    del ways
    given = arguments(node)[2] if len(arguments(node)) > 2 else node.kwargs.get("dim", 0)
    dim = given % len(shape(arguments(node)[0])) if isinstance(given, int) else axis
    return None if dim == axis else ((*arguments(node),), axis)


def _reduced(node: fx.Node, axis: int, ways: int) -> Passed | None:
    del ways
    ndim = len(shape(arguments(node)[0]))
    given = arguments(node)[1] if len(arguments(node)) > 1 else None
    dims = {dim % ndim for dim in ([given] if isinstance(given, int) else given or range(ndim))}
    if axis in dims:
        return None
    kept = len(shape(node)) == ndim
    return (*arguments(node),), axis if kept else axis - sum(dim < axis for dim in dims)


def _pooled(node: fx.Node, axis: int, ways: int) -> Passed | None:
    """Rule of pooling on pictures `[n, channels, ...]`: it works on what comes after the channels."""
    del ways
    return ((*arguments(node),), axis) if axis == 1 else None


def _normed(node: fx.Node, axis: int, ways: int) -> Passed | None:
    """Rule of `layer_norm` over the last axes."""
    del ways
    over = len(arguments(node)[1])
    return ((*arguments(node),), axis) if axis < len(shape(node)) - over else None


def _expanded(node: fx.Node, axis: int, ways: int) -> Passed | None:
    sizes = arguments(node)[1]
    at = axis + len(shape(node)) - len(shape(arguments(node)[0]))
    if not isinstance(sizes, Sequence) or not isinstance(sizes[at], int):
        return None
    own = [size // ways if place == at and size > 0 else size for place, size in enumerate(sizes)]
    return (arguments(node)[0], own, *arguments(node)[2:]), at


def _table(words: str, rule: Rule) -> dict[str, Rule]:
    return {f"aten.{word if '.' in word else word + '.default'}": rule for word in words.split()}


_POOLS = " ".join(name for name in GROUPS["pooling"].split() if "indices" not in name)
_RULES: dict[str, Rule] = {
    **_table("view reshape _unsafe_view", _view),
    **_table("unflatten.int", _unflatten),
    **_table("flatten.using_ints unsqueeze squeeze squeeze.dim squeeze.dims", _same_words),
    **_table("transpose.int t swapaxes", _transpose),
    **_table("permute", _permute),
    **_table("slice.Tensor narrow softmax.int log_softmax.int", _kept),
    **_table("select.int unbind.int", _dropped),
    **_table("split.Tensor split.sizes split_with_sizes chunk", _split),
    **_table("sum.dim_IntList mean.dim amax amin", _reduced),
    **_table("layer_norm", _normed),
    **_table("expand", _expanded),
    **_table(_POOLS, _pooled),
}
