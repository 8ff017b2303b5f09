"""Selections of rows by a mask: a mixture of experts that hands each expert its own tokens, as a graph of fixed shapes.

How many rows a mask selects is unknown before its values are: then nothing could be said of memory beforehand, and
neither ONNX for devices nor the division among ranks could take the graph. Here a selection has a row for every element
of its mask, and what is written back where the mask is false is left out. So every expert computes every token; the
answer is the same.

Rule: selections are `nonzero`, `torch.where(mask)`, `x[mask]` and `x[mask] = y`. Between reading rows and writing them
back each row may depend on the same row alone; anything else that is done with selected rows is a `ForgeError`.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from models.forge.data.types import ForgeError
from models.graph.aten_operations import OPERATIONS_PAGE, POINTWISE

_aten = torch.ops.aten
_SELECTED = "skerry.selected_rows.default"
_WRITE = "aten.index_put.default"
_ADVICE = f"compute each selected row from itself alone, and write it back by the same mask ({OPERATIONS_PAGE})"


def _overloads(names: str) -> tuple[str, ...]:
    return tuple(f"aten.{name}" if "." in name else f"aten.{name}.default" for name in names.split())


_SAME = frozenset(_overloads("to.dtype _to_copy clone alias detach contiguous"))
_RESHAPES = frozenset(
    _overloads("view reshape _unsafe_view flatten.using_ints unflatten.int unsqueeze squeeze squeeze.dim squeeze.dims")
)
_ORDERS = frozenset(_overloads("t transpose.int permute swapaxes"))
_READS = frozenset(_overloads("index.Tensor index_select embedding"))
_LAYERS = frozenset(_overloads("linear mm matmul rms_norm layer_norm"))  # along the last axes of their first tensor
_JOINS = frozenset(_overloads("cat stack"))
# Operations along axes, and which of their arguments names these.
_ALONG: Mapping[str, int] = {
    **dict.fromkeys(_overloads("softmax.int log_softmax.int _softmax sum.dim_IntList mean.dim amax amin argmax"), 1),
    **dict.fromkeys(
        _overloads("any.dim all.dim logsumexp cumsum max.dim min.dim select.int slice.Tensor unbind.int"), 1
    ),
    **dict.fromkeys(_overloads("glu narrow"), 1),
    **dict.fromkeys(_overloads("chunk split.Tensor split.sizes split_with_sizes topk"), 2),
}


@torch.library.custom_op("skerry::selected_rows", mutates_args=())
def selected_rows(mask: Tensor) -> Tensor:
    """Return the coordinates of every element of a mask, true or not: `[elements, axes]` int64."""
    return torch.ones_like(mask).nonzero()


@selected_rows.register_fake
def _shape_selected_rows(mask: Tensor) -> Tensor:
    return mask.new_empty((prod(mask.shape), mask.ndim), dtype=torch.int64)


@contextmanager
def record_selections(*, assume_any: bool) -> Iterator[None]:
    """While a module is traced below this, its selections are recorded as `selected_rows`.

    `assume_any`: `if mask.any():` counts as true; check it by `check_empty_masks`.
    """
    with _SelectionRecorder(assume_any=assume_any):
        yield


def check_empty_masks(module: nn.Module, example: tuple[Tensor, ...]) -> None:
    """Check that a module answers alike whether it skips what it does `if mask.any():` or does it with an empty mask.

    ForgeError if it does not: then the condition decides more than whether work can be saved.
    """
    with _MaskEmptier(answer=False) as emptied:
        skipped = tree_leaves(module(*example))
    if not emptied.count:
        return
    with _MaskEmptier(answer=True):
        found = tree_leaves(module(*example))
    for one, other in zip(skipped, found, strict=True):
        if isinstance(one, Tensor) and not torch.equal(one, other):
            raise ForgeError(
                "the model asks `if mask.any()`, and answers otherwise for an empty mask; leave out the if"
            )


class _ConditionMode(TorchFunctionMode):
    """Mode that knows the results of `mask.any()`."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[tuple[Tensor, Tensor]] = []  # results and their masks; they are compared by identity

    def find_mask(self, condition: Any) -> Tensor | None:
        """Return the mask whose `any()` this is."""
        return next((mask for result, mask in self.masks if result is condition), None)

    def call_noted(self, func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Call a function and note the mask if it is `any`."""
        result = func(*args, **given)
        if func in (torch.any, Tensor.any) and len(args) == 1 and not given and args[0].dtype is torch.bool:
            self.masks.append((result, args[0]))
        return result


class _MaskEmptier(_ConditionMode):
    """Mode that empties every mask whose `any()` is asked, and answers the same to each of these questions."""

    def __init__(self, *, answer: bool) -> None:
        super().__init__()
        self.count = 0
        self._answer = answer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        mask = self.find_mask(args[0]) if func in _CONDITIONS else None
        if mask is None:
            return self.call_noted(func, args, kwargs or {})
        self.count += 1
        mask.zero_()
        return self._answer


_CONDITIONS = (Tensor.__bool__, Tensor.item)


class _SelectionRecorder(_ConditionMode):
    """Mode that replaces operations whose result has a size that follows from values."""

    def __init__(self, *, assume_any: bool) -> None:
        super().__init__()
        self._assume_any = assume_any

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (torch.nonzero, Tensor.nonzero) and args and args[0].ndim:
            rows = _select_rows(args[0])
            return rows.unbind(1) if given.get("as_tuple") else rows
        if func is torch.where and len(args) == 1 and not given and args[0].ndim:
            return _select_rows(args[0]).unbind(1)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            return func(args[0], _replace_masks(args[1]), *args[2:])
        if func is torch.nn.functional.one_hot:
            return _mark_classes(func, *args, **given)
        if self._assume_any and func in _CONDITIONS and self.find_mask(args[0]) is not None:
            return True
        return self.call_noted(func, args, given)


def _select_rows(mask: Tensor) -> Tensor:
    rows: Tensor = selected_rows(mask if mask.dtype is torch.bool else mask.ne(0))
    return rows


def _replace_masks(index: Any) -> Any:
    """Replace each mask of an index by the coordinates of its elements."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_mask, parts)):
        return index
    return tuple(each for part in parts for each in (_select_rows(part).unbind(1) if _is_mask(part) else (part,)))


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype is torch.bool and part.ndim > 0


def _mark_classes(func: Any, classes: Tensor, num_classes: Any = -1) -> Tensor:
    """Compute `one_hot` so that the number of classes may be a size that is free."""
    if isinstance(num_classes, int) and num_classes < 0:
        return func(classes, num_classes)  # type: ignore[no-any-return]
    return (classes.unsqueeze(-1) == torch.arange(num_classes, device=classes.device)).long()


def resolve_selections(graph: fx.GraphModule) -> None:
    """Rewrite recorded selections as operations of fixed shapes, in place. ForgeError if an answer could change."""
    if not any(str(node.target) == _SELECTED for node in graph.graph.nodes):
        return
    numbers = _number_values(graph.graph)
    found: dict[int, fx.Node] = {}  # the first selection by each mask
    for node in graph.graph.nodes:
        if str(node.target) == _SELECTED and found.setdefault(numbers[node], node) is not node:
            node.replace_all_uses_with(found[numbers[node]])
    for node in found.values():
        _SelectionRewriter(graph.graph, node).run()
    graph.graph.eliminate_dead_code(lambda node: node.op in {"placeholder", "output"})
    graph.graph.lint()
    graph.recompile()


def _number_values(graph: fx.Graph) -> dict[fx.Node, int]:
    """Number the values of a graph of functional operations: the same operation of the same values has one number."""
    known: dict[str, int] = {}
    numbers: dict[fx.Node, int] = {}
    for node in graph.nodes:
        given = fx.map_arg((node.args, node.kwargs), lambda each: f"%{numbers[each]}")
        key = f"{node.op} {node.target} {given}" if node.op != "placeholder" else node.name
        numbers[node] = known.setdefault(key, len(known))
    return numbers


class _SelectionRewriter:
    """Rewriter of one selection: follows its rows from where they are read to where they are written back.

    `_axis`: of every value with a row for each element of the mask, which axis these lie along. `_columns`: those that
    are the coordinates along one axis of the mask.
    """

    def __init__(self, graph: fx.Graph, selection: fx.Node) -> None:
        self._graph = graph
        self._selection = selection
        self._mask: Any = selection.args[0]
        self._mask_shape = [str(side) for side in _value(self._mask).shape]
        self._elements = str(_value(selection).shape[0])
        self._axis: dict[fx.Node, int] = {selection: 0}
        self._columns: dict[fx.Node, int] = {}
        self._reads: list[fx.Node] = []
        self._lasts: list[fx.Node] = []
        self._writes: list[fx.Node] = []

    def run(self) -> None:
        """Check all that is done with the rows, then rewrite it."""
        for node in list(self._graph.nodes):
            if any(each in self._axis for each in node.all_input_nodes):
                self._follow(node)
        for node in self._writes:
            with self._graph.inserting_before(node):
                node.replace_all_uses_with(self._merge_rows(*self._parse_write(node), node))
        for node in self._lasts:
            with self._graph.inserting_before(node):
                node.replace_all_uses_with(self._pick_last(_arguments(node)[0]))
        if len(self._mask_shape) == 1:
            for node in self._reads:
                self._pass_all_rows(node)
        coordinates: dict[int, fx.Node] = {}
        for node, axis in self._columns.items():
            if axis not in coordinates:
                with self._graph.inserting_before(self._selection):
                    coordinates[axis] = self._number_elements(axis)
            node.replace_all_uses_with(coordinates[axis])

    # -- what is done with the rows

    def _follow(self, node: fx.Node) -> None:
        if node.op == "output":
            raise self._refuse(node)
        if str(node.target) == _WRITE:
            self._parse_write(node)
            self._writes.append(node)
            return
        if self._is_grid_of_lasts(node):
            self._lasts += node.users
            return
        column = self._find_column(node)
        if column is not None:
            self._columns[node] = column
        self._axis[node] = 0 if column is not None else self._find_axis(node)
        if str(node.target) in _READS:
            self._reads.append(node)

    def _find_column(self, node: fx.Node) -> int | None:
        """Return the axis whose coordinates a node is: `rows.unbind(1)[at]`, `rows[:, at]`; None for anything else."""
        source, name = _first(node), str(node.target)
        if source in self._columns and name in _SAME:
            return self._columns[source]
        if _is_getitem(node) and self._is_unbound(source):
            return int(str(node.args[1]))
        if source is not self._selection:
            return None
        if name == "aten.select.int" and node.args[1] in (1, -1):
            return int(str(node.args[2])) % len(self._mask_shape)
        return 0 if name in _RESHAPES and len(self._mask_shape) == 1 and _value(node).ndim == 1 else None

    def _is_unbound(self, node: fx.Node | None) -> bool:
        return node is not None and str(node.target) == "aten.unbind.int" and _first(node) is self._selection

    def _find_axis(self, node: fx.Node) -> int:
        """Return the axis of the rows in the result of an operation; ForgeError if it mixes rows."""
        results = _value(node) if isinstance(_value(node), list | tuple) else [_value(node)]
        if not all(isinstance(each, Tensor) for each in results) or not self._keeps_rows(node):
            raise self._refuse(node)
        axes = {
            axis for each in results for axis, side in enumerate(each.shape) if str(side) == self._elements
        }  # sizes that are free are told apart by name
        if len(axes) != 1 or not all(self._elements in map(str, each.shape) for each in results):
            raise self._refuse(node)
        return axes.pop()

    def _keeps_rows(self, node: fx.Node) -> bool:
        """Whether each row of the result depends on the same row alone."""
        name, source = str(node.target), _first(node)
        rows = [each for each in node.all_input_nodes if each in self._axis]
        if _is_getitem(node):
            return source in self._axis
        if name in POINTWISE:
            return self._is_aligned(node, rows)
        if name in _READS:
            return source not in self._axis and all(_value(each).ndim == 1 for each in rows)
        if name in _JOINS:
            return rows == node.all_input_nodes and self._is_off_axes(rows[0], _joined_axes(node))
        return source is not None and rows == [source] and self._keeps_rows_of(node, source)

    def _keeps_rows_of(self, node: fx.Node, source: fx.Node) -> bool:
        """As `_keeps_rows`, of an operation of which nothing but its first tensor is rows."""
        name, shape, axis = str(node.target), _value(source).shape, self._axis[source]
        if name in _RESHAPES:
            return any(prod(shape[:axis]) == prod(_value(node).shape[:at]) for at in self._places(node))
        if name in _LAYERS:
            worked = len(_arguments(node)[1]) if name == "aten.layer_norm.default" else 1
            return axis < len(shape) - worked
        if name in _ALONG:
            return self._is_off_axes(source, _worked_axes(node, _ALONG[name]))
        return name in _ORDERS or (name == "aten.batch_norm.default" and axis == 0)

    def _places(self, node: fx.Node) -> list[int]:
        return [axis for axis, side in enumerate(_value(node).shape) if str(side) == self._elements]

    def _is_grid_of_lasts(self, node: fx.Node) -> bool:
        """Whether a node is `x[mask].view(n, -1, width)`, of which nothing but `[:, -1]` is used.

        So transformers reads a text at its last end token. There all samples must select equally many rows.
        """
        source, shape = _first(node), getattr(_value(node), "shape", ())
        fits = str(node.target) in _RESHAPES and source in self._axis and len(shape) == 3 == len(self._mask_shape) + 1
        ends = [str(user.target) == "aten.select.int" and user.args[1:] == (1, -1) for user in node.users]
        return fits and list(map(str, shape[:2])) == self._mask_shape and all(ends)

    def _is_aligned(self, node: fx.Node, rows: Sequence[fx.Node]) -> bool:
        """Whether all rows of a pointwise operation lie along one axis, and nothing else has a size there."""
        ends = {self._axis[each] - _value(each).ndim for each in rows}
        if len(ends) != 1:
            return False
        end = ends.pop()
        others = [_value(each) for each in node.all_input_nodes if each not in self._axis]
        return all(not isinstance(each, Tensor) or each.ndim < -end or each.shape[end] is _ONE for each in others)

    def _is_off_axes(self, source: fx.Node, axes: Sequence[int] | None) -> bool:
        ndim = _value(source).ndim
        return axes is not None and self._axis[source] not in {axis % ndim for axis in axes}

    def _parse_write(self, node: fx.Node) -> tuple[Any, list[Any], Any, bool]:
        """Return what is written to, where, which values, and whether they are added. ForgeError if that is unsure."""
        target, indices, values, adds = (*_arguments(node), False)[:4]
        indices = list(indices)
        inner = _value(target).ndim - len(indices)
        fits = all(isinstance(each, fx.Node) and self._axis.get(each) == 0 for each in indices)
        if values in self._axis:
            fits = fits and self._axis[values] == 0 and _value(values).ndim == 1 + inner
        elif isinstance(values, fx.Node):
            fits = fits and (_value(values).ndim <= inner or _value(values).shape[0] is _ONE)
        if not fits or target in self._axis:
            raise self._refuse(node)
        if adds or {self._columns.get(each) for each in indices} == set(range(len(self._mask_shape))):
            return target, indices, values, bool(adds)
        added = self._find_added(values, target, indices)
        if added is None:
            raise self._refuse(node)
        return target, indices, added, True

    def _find_added(self, values: Any, target: fx.Node, indices: Sequence[Any]) -> Any:
        """Return what `x[rows] += more` adds, None if `values` is no such sum."""
        parts = list(_arguments(values)) if str(getattr(values, "target", "")) == "aten.add.Tensor" else []
        read = [
            each
            for each in parts
            if str(getattr(each, "target", "")) == "aten.index.Tensor"
            and _arguments(each)[0] is target
            and list(map(self._name_index, _arguments(each)[1])) == list(map(self._name_index, indices))
        ]
        rest = [each for each in parts if each not in read]
        return rest[0] if len(read) == len(rest) == 1 and rest[0] in self._axis else None

    def _name_index(self, index: Any) -> Any:
        return self._columns.get(index, index)

    # -- what stands in its place

    def _merge_rows(self, target: Any, indices: list[Any], values: Any, adds: bool, node: fx.Node) -> fx.Node:
        """Write rows so that those that were not selected change nothing."""
        inner = _value(target).ndim - len(indices)
        chosen = self._call(_aten.reshape.default, self._mask, [-1, *[1] * inner])
        direct = len(self._mask_shape) == 1 and [self._columns.get(each) for each in indices] == [0]
        if not direct:
            flat = self._call(_aten.reshape.default, self._mask, [-1])
            indices = [
                each if each in self._columns else self._call(_aten.where.ScalarOther, flat, each, 0)
                for each in indices
            ]
        if not adds:
            former = target if direct else self._call(_aten.index.Tensor, target, indices)
            values = self._call(_aten.where.self, chosen, values, former)
            made = values if direct else self._call(_aten.index_put.default, target, indices, values)
        else:
            values = self._call(_aten.where.ScalarOther, chosen, values, 0)
            made = (
                self._call(_aten.add.Tensor, target, values)
                if direct
                else self._call(_aten.index_put.default, target, indices, values, True)
            )
        made.meta = {**node.meta, "val": _value(target)}
        return made

    def _pick_last(self, grid: fx.Node) -> fx.Node:
        """Return the last selected row of each sample, of rows `[n, places, width]`; the first if none is selected."""
        places = self._call(_aten.sub.Scalar, self._count_elements(1), 1)
        last = self._call(_aten.amax.default, self._call(_aten.where.ScalarOther, self._mask, places, 0), [1])
        index = self._call(_aten.reshape.default, last, [-1, 1, 1])
        index = self._call(_aten.expand.default, index, [-1, -1, _value(grid).shape[2]])
        return self._call(_aten.select.int, self._call(_aten.gather.default, grid, 1, index), 1, 0)

    def _pass_all_rows(self, node: fx.Node) -> None:
        """Leave out the reading of rows by a mask of one axis: all of them, in order, are what they are read from."""
        source, *rest = _arguments(node)
        index = rest[-1] if str(node.target) == "aten.index_select.default" else rest[0]
        indices = list(index) if isinstance(index, list | tuple) else [index]
        by_first = str(node.target) == "aten.index.Tensor" or rest[0] == 0
        named = str(node.target) != "aten.embedding.default" and by_first and len(indices) == 1
        if named and indices[0] in self._columns and str(_value(source).shape[0]) == self._mask_shape[0]:
            node.replace_all_uses_with(source)

    def _number_elements(self, axis: int) -> fx.Node:
        """Return the coordinates of every element of the mask along an axis, `[elements]` int64."""
        return self._call(_aten.reshape.default, self._call(_aten.sub.Scalar, self._count_elements(axis), 1), [-1])

    def _count_elements(self, axis: int) -> fx.Node:
        """Number the elements of the mask along an axis from 1."""
        ones = self._call(_aten.ones_like.default, self._mask, dtype=torch.int64)
        return self._call(_aten.cumsum.default, ones, axis)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = self._graph.call_function(target, args, kwargs)
        made.meta["val"] = target(*fx.map_arg(args, _value), **kwargs)
        made.meta["nn_module_stack"] = self._selection.meta.get("nn_module_stack")
        return made

    def _refuse(self, node: fx.Node) -> ForgeError:
        what = "the answer" if node.op == "output" else str(node.target)
        return ForgeError(f"the model selects rows by a mask, and {what} needs to know which were selected; {_ADVICE}")


_ONE = 1


def _value(node: Any) -> Any:
    return node.meta.get("val")


def _arguments(node: fx.Node) -> Any:
    return node.args


def _first(node: fx.Node) -> fx.Node | None:
    return node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None


def _is_getitem(node: fx.Node) -> bool:
    return node.target is operator.getitem


def _worked_axes(node: fx.Node, place: int) -> Sequence[int] | None:
    """Return the axes that an operation works along; None if they are all, or not known before it runs."""
    given = _arguments(node)[place] if len(node.args) > place else node.kwargs.get("dim", 0)
    axes = [given] if isinstance(given, int) else given
    return axes if isinstance(axes, list | tuple) and axes and all(isinstance(axis, int) for axis in axes) else None


def _joined_axes(node: fx.Node) -> Sequence[int] | None:
    """Return the axis along which `cat` joins; for `stack`, whose axis is new, only the last is sure."""
    axes = _worked_axes(node, 1)
    return axes if str(node.target) == "aten.cat.default" or axes == [-1] else None
