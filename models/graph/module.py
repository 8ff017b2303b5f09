"""Running module of a decoded graph: checks its inputs and the memory they will take before it computes.

Rule: no batch of a size that was not rehearsed before is ever computed. A rehearsal runs the graph without data
(torch's "meta" device allocates nothing) and sees every tensor that would be made, inside composite operations too.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.bundle.manifest import BundleError
from models.graph.aten_operations import RECURRENT

MAX_BATCH = 4096
MAX_ELEMENTS = 2**25  # of one tensor, per sample: 128 MiB of float32
MAX_TOTAL_ELEMENTS = 2**34  # elements of all tensors together, per sample: what large encoders take, with room
MAX_STEPS = 200_000  # operations, those inside composite ones counted
MAX_PIECES = 4096  # tensors of one split
# What torch raises when arguments do not fit each other.
_WRONG_VALUES = (ArithmeticError, LookupError, TypeError, ValueError)
TORCH_ERRORS = (*_WRONG_VALUES, AssertionError, AttributeError, MemoryError, RuntimeError)


class InputSlot(NamedTuple):
    """Input of a graph: element type, and `shape` without the batch axis."""

    dtype: torch.dtype
    shape: tuple[int, ...]


class HubGraphModule(nn.Module):
    """Module of one graph: `[n, *shape]` per input -> a tensor if it has one output, else a tuple. Inference only.

    BundleError for inputs that do not fit and for batches whose tensors would be beyond the limits above.
    """

    def __init__(self, graph: fx.GraphModule, slots: Sequence[InputSlot]) -> None:
        super().__init__()
        self.graph = graph
        self.slots = tuple(slots)
        self.outputs: tuple[tuple[int, ...], ...] = ()  # their shapes without the batch axis, once rehearsed
        self._rehearsed: set[int] = set()
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, *inputs: Tensor) -> Any:
        """Run a batch: `[n, *shape]` per input, all of one batch size. BundleError if it does not fit."""
        self.check_inputs(inputs)
        with torch.inference_mode():
            return self.graph(*inputs)

    def check_inputs(self, inputs: Sequence[Tensor]) -> None:
        """Check that a batch fits the graph and its limits, wherever its tensors lie. BundleError if it does not."""
        self.rehearse_batch(self._batch_size(inputs))

    def place_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Put weights in the place of those that hold no data; `weights` has each by its name."""
        for name in self.graph.state_dict():
            self.graph.register_buffer(name, weights[name])

    def copy_without_weights(self) -> "HubGraphModule":
        """Return a copy that checks batches and cannot run them: its weights are on the "meta" device."""
        root = nn.Module()
        for name, tensor in self.graph.state_dict().items():
            root.register_buffer(name, torch.empty_like(tensor, device="meta"))
        found = HubGraphModule(fx.GraphModule(root, copy.deepcopy(self.graph.graph), class_name="HubGraph"), self.slots)
        found.outputs, found._rehearsed = self.outputs, set(self._rehearsed)
        return found

    def rehearse_batch(self, batch: int) -> None:
        """Check that a batch of this size is within the limits, once per size. BundleError if it is not."""
        if batch in self._rehearsed:
            return
        if not 1 <= batch <= MAX_BATCH:
            raise BundleError(f"a batch of {batch}, possible are 1 to {MAX_BATCH}")
        inputs = [torch.empty((batch, *slot.shape), dtype=slot.dtype, device="meta") for slot in self.slots]
        try:
            walk = _MetaInterpreter(self.graph)
            # not inference mode: that would hide composite operations' insides
            with torch.no_grad(), _any_algorithm(), _MemoryLimits(batch):
                made = walk.run(*inputs)
        except TORCH_ERRORS as error:
            raise BundleError(f"the graph does not fit together: {_format_error(error)}") from None
        self.outputs = _output_shapes(made if isinstance(made, tuple) else (made,), batch)
        self._rehearsed.add(batch)

    def run_zero_sample(self) -> None:
        """Run one sample of zeros with real data: a rehearsal does not see every clash of element types."""
        inputs = [torch.zeros((1, *slot.shape), dtype=slot.dtype) for slot in self.slots]
        try:
            self(*inputs)
        except IndexError:
            return  # zero need not be a valid index into a table of weights
        except TORCH_ERRORS as error:
            raise BundleError(f"the graph does not run: {_format_error(error)}") from None

    def _batch_size(self, inputs: Sequence[Tensor]) -> int:
        if len(inputs) != len(self.slots):
            raise BundleError(f"{len(inputs)} inputs, the graph takes {len(self.slots)}")
        sizes = {given.shape[0] if given.ndim else 0 for given in inputs}
        for given, slot in zip(inputs, self.slots, strict=True):
            if given.dtype is not slot.dtype or tuple(given.shape[1:]) != slot.shape:
                raise BundleError(f"an input {given.dtype} {list(given.shape)}, not {slot.dtype} [n, *{slot.shape}]")
        if len(sizes) != 1:
            raise BundleError("inputs of different batch sizes")
        return sizes.pop()


@contextmanager
def _any_algorithm() -> Iterator[None]:
    """Allow operations without a deterministic algorithm: nothing is computed, and a hub does not ask for one."""
    before = torch.are_deterministic_algorithms_enabled()
    if before:
        torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        if before:
            torch.use_deterministic_algorithms(mode=True)


class _MetaInterpreter(fx.Interpreter):
    """Interpreter that runs the graph on the "meta" device. Sizes are checked too: they could grow by squaring.

    Make it before `_MemoryLimits` counts: weights are not what a batch takes.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        names = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
        self._blanks = {
            name: torch.empty_like(super(_MetaInterpreter, self).fetch_attr(name), device="meta") for name in names
        }

    def fetch_attr(self, target: str) -> Any:
        return self._blanks[target]

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, int) and abs(result) > 2**62:
            raise OverflowError("a size is beyond all limits")
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if str(target) in RECURRENT and len(args) == 9 and isinstance(args[0], Tensor) and args[0].ndim == 3:
            return self._rehearse_recurrent(target, args)
        return super().call_function(target, args, kwargs)

    def _rehearse_recurrent(self, target: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Rehearse a recurrent layer for one step of time: every further one takes the same."""
        axis = 1 if args[8] else 0
        steps = args[0].shape[axis]
        first, *states = target(args[0].narrow(axis, 0, 1), *args[1:])
        shape = list(first.shape)
        shape[axis] = steps
        return (first.new_empty(shape), *states)


class _MemoryLimits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees every operation that torch carries out and adds up the elements it makes."""

    def __init__(self, batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._batch = batch
        self._steps = 0
        self._work = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _count_pieces(str(func), args, kwargs) > MAX_PIECES:
            raise OverflowError(f"{func} into more than {MAX_PIECES} pieces")
        result = func(*args, **kwargs)
        seen = _viewed_elements(func, args)
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.numel() > seen:
                self._count_elements(made)
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise OverflowError(f"more than {MAX_STEPS} operations")
        return result

    def _count_elements(self, made: Tensor) -> None:
        elements = made.numel()
        self._work += elements
        if elements > MAX_ELEMENTS * self._batch or self._work > MAX_TOTAL_ELEMENTS * self._batch:
            raise OverflowError(f"a tensor of shape {tuple(made.shape)} is beyond the memory allowed for one sample")


def _viewed_elements(func: Any, args: tuple[Any, ...]) -> int:
    """Return the elements of what a view looks at: a view no larger takes no memory. -1 for any other operation."""
    if any(result.alias_info is None for result in func._schema.returns):  # noqa: SLF001 - torch offers no other way
        return -1
    return max((each.numel() for each in tree_leaves(args) if isinstance(each, Tensor)), default=-1)


def _output_shapes(made: Sequence[Tensor], batch: int) -> tuple[tuple[int, ...], ...]:
    shapes = [tuple(output.shape) for output in made]
    if any(shape[:1] != (batch,) for shape in shapes):
        raise BundleError(f"for a batch of {batch} it gives shapes {shapes}")
    return tuple(shape[1:] for shape in shapes)


def _count_pieces(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Count how many tensors a split would give at most, before it gives them."""
    if name not in ("aten.split.Tensor", "aten.unbind.int", "aten.chunk.default"):
        return 0
    source = args[0]
    axis = kwargs.get("dim", args[-1] if len(args) > (1 if name == "aten.unbind.int" else 2) else 0)
    if not -source.ndim <= axis < source.ndim:
        return 0  # torch refuses it
    each = args[1] if name == "aten.split.Tensor" and len(args) > 1 else 1
    return math.ceil(int(source.shape[axis]) / max(1, int(each)))


def _format_error(error: BaseException) -> str:
    said = str(error).partition("While executing")[0]  # what follows is fx's dump of the node
    return " ".join(said.split())[:300] or type(error).__name__
