"""Exporter: a torch module becomes one graph of functional ATen operations with a free batch axis (torch.export).

Rule: the graph is verified on a batch size that is not the example's; what cannot be traced is a `ForgeError` of one
line.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from models.forge.data.types import ForgeError
from models.graph.aten_operations import ALLOWED_OPERATIONS, OPERATIONS_PAGE
from models.graph.experts import compute_every_expert
from models.graph.module import MAX_BATCH, TORCH_ERRORS
from models.graph.selection import check_empty_masks, record_selections, resolve_selections

BATCH = "batch"
PROOF_BATCH = 5
_FREE_BATCH = "for the size of a batch use x.shape[0], not len(x)"
_DECOMPOSITIONS = 4  # rounds of them, each may need another
TOLERANCE = 1e-4
_ASSERTIONS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range", "_assert_async")
_ESCAPE_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VIEWS = ("aten.view.default", "aten._unsafe_view.default")
_DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")


def export_graph(module: nn.Module, example: tuple[Tensor, ...]) -> fx.GraphModule:
    """Export a module: `graph(*inputs)` equals `module(*inputs)` in evaluation mode.

    The output is one tensor or a flat tuple of them. `example`: one tensor per input, batch size 2 (a batch of 1 would
    be frozen in). Parameters are the module's own values. ForgeError, one line, for control flow that depends on data
    and whatever else torch.export cannot trace.
    """
    graph = _trace_graph(module, example, assume_any=True)
    with _silent_torch():
        check_empty_masks(module, example)
        _verify_graph(module, graph, example)
    return graph


def trace_graph(module: nn.Module, example: tuple[Tensor, ...]) -> fx.GraphModule:
    """Trace a module as `export_graph` does, without running it: its weights may hold no data (fake tensors).

    A weight of the graph is the very tensor of the module. ForgeError as `export_graph`.
    """
    return _trace_graph(module, example, assume_any=False)


def _trace_graph(module: nn.Module, example: tuple[Tensor, ...], *, assume_any: bool) -> fx.GraphModule:
    module.eval()
    with _silent_torch(), record_selections(assume_any=assume_any), compute_every_expert(module):
        try:
            graph = _strip_graph(_trace_module(module, example).module())
            resolve_selections(graph)
        except TORCH_ERRORS as error:
            raise ForgeError(_format_refusal(error)) from None
    return graph


@contextmanager
def _silent_torch() -> Iterator[None]:
    """No gradients, and none of torch's own deprecations: no caller can act on them."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def _trace_module(module: nn.Module, example: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    try:
        program = _export_program(module, example, Dim(BATCH, min=1, max=MAX_BATCH))
    except TORCH_ERRORS:  # mostly a bound of the model's own on the batch: let torch find it
        program = _export_program(module, example, Dim.AUTO)
    graph = program.graph_module
    _make_functional(graph)
    if not all(_is_functional(node) for node in graph.graph.nodes):
        program = program.run_decompositions({})  # in place, autocast: become plain
    return _decompose_refused(program)


def _decompose_refused(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Replace operations that a hub does not run by torch's own decompositions, if a hub runs all of these.

    What is computed from weights alone stays as it is: it can be computed once.
    """
    plain = program
    for _ in range(_DECOMPOSITIONS):
        refused = _list_refused(plain)
        if not refused:
            return plain
        table = torch.export.default_decompositions()
        known = {target: table[target] for target in refused if target in table}
        if not known:
            break
        plain = plain.run_decompositions(known)
    return program  # a refusal names what the model itself calls


def _list_refused(program: torch.export.ExportedProgram) -> set[Any]:
    """List the operations between a sample and the answer that a hub does not run."""
    nodes = program.graph_module.graph.nodes
    fed: set[fx.Node] = set()
    for node in nodes:
        if node.name in program.graph_signature.user_inputs or any(each in fed for each in node.all_input_nodes):
            fed.add(node)
    needed: set[fx.Node] = set()
    refused: set[Any] = set()
    for node in reversed(nodes):
        if node.op == "output" or any(user in needed for user in node.users):
            needed.add(node)
            if node.op == "call_function" and node in fed and not _is_known(node):
                refused.add(node.target)
    return refused


def _is_known(node: fx.Node) -> bool:
    name = str(node.target)
    return name in ALLOWED_OPERATIONS or not name.startswith("aten.") or _base_name(node) in _DROPOUTS


def _export_program(module: nn.Module, example: tuple[Tensor, ...], batch: Any) -> torch.export.ExportedProgram:
    own = tuple(given.clone() for given in example)  # one tensor given twice would become one input
    shapes: Any = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
    for given in own:
        shapes[given] = {0: batch}  # by tensor, not by place: `forward(*inputs)` nests its arguments
    return torch.export.export(module, own, dynamic_shapes=shapes, strict=False)


def _make_functional(graph: fx.GraphModule) -> None:
    """Replace in-place operations: `relu_(x)` is `relu(x)` where nobody else uses x.

    Cheaper than a decomposed graph, and layers stay whole.
    """
    for node in graph.graph.nodes:
        plain = _functional_overload(node)
        source = node.args[0] if node.args else None
        if plain is None or not isinstance(source, fx.Node) or len(source.users) != 1:
            continue
        if source.op == "call_function" and not _is_view(source.target):
            node.target = plain
    graph.recompile()


def _functional_overload(node: fx.Node) -> Any:
    base, _, overload = str(node.target).removeprefix("aten.").partition(".")
    if node.op != "call_function" or not base.endswith("_") or f"aten.{base[:-1]}.{overload}" not in ALLOWED_OPERATIONS:
        return None
    return getattr(getattr(torch.ops.aten, base[:-1]), overload)


def _is_view(target: Any) -> bool:
    """Tell whether the result of an operation may share memory with its argument."""
    schema = getattr(target, "_schema", None)
    composite = str(target) in ("aten.reshape.default", "aten.contiguous.default", "aten.flatten.using_ints")
    return composite or schema is None or any(result.alias_info is not None for result in schema.returns)


def _is_functional(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator):  # noqa: SLF001
        return False
    return schema is None or not schema.is_mutable or str(node.target).startswith("aten.batch_norm")


def _strip_graph(traced: fx.GraphModule) -> fx.GraphModule:
    """Copy the graph without guards, assertions and inactive dropouts, with a flat output.

    Views become reshapes: attention gives other strides here than where the graph will run.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in traced.graph.nodes:
        if node.op == "output":
            leaves = [copies[leaf] for leaf in tree_leaves(node.args[0]) if isinstance(leaf, fx.Node)]
            graph.output(leaves[0] if len(leaves) == 1 else tuple(leaves))
        elif _is_skipped(node):
            continue
        elif _is_idle(node):
            copies[node] = copies[node.args[0]]
        else:
            copies[node] = graph.node_copy(node, lambda source: copies[source])
            if str(node.target) in _VIEWS:
                copies[node].target = torch.ops.aten.reshape.default
    made = fx.GraphModule(traced, graph, class_name="Exported")
    # drawing a number counts as impure, and a layer that is dropped in training alone draws one for nothing
    made.graph.eliminate_dead_code(lambda node: node.op in {"placeholder", "output"})
    made.graph.lint()
    made.delete_all_unused_submodules()
    made.recompile()
    return made.eval()


def _is_skipped(node: fx.Node) -> bool:
    guard = node.op == "call_module" and node.target == "_guards_fn"
    return guard or (node.op == "call_function" and _base_name(node) in _ASSERTIONS)


def _is_idle(node: fx.Node) -> bool:
    return node.op == "call_function" and _base_name(node) in _DROPOUTS and list(node.args[2:3]) == [False]


def _base_name(node: fx.Node) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _verify_graph(module: nn.Module, graph: fx.GraphModule, example: tuple[Tensor, ...]) -> None:
    """Compare graph and module on two other batch sizes. ForgeError if they differ."""
    for size in (PROOF_BATCH, 1):
        inputs = [given.repeat(-(-size // len(given)), *[1] * (given.ndim - 1))[:size] for given in example]
        try:
            wanted, found = tree_leaves(module(*inputs)), tree_leaves(graph(*inputs))
        except TORCH_ERRORS as error:
            raise ForgeError(
                f"the model's graph does not run on a batch of {size}: {_first_line(error)}; {_FREE_BATCH}"
            ) from None
        if not _outputs_equal([value for value in wanted if isinstance(value, Tensor)], found):
            raise ForgeError(f"the model's graph is not the model on a batch of {size}: is it random in evaluation?")


def _outputs_equal(wanted: list[Tensor], found: list[Tensor]) -> bool:
    pairs = zip(wanted, found, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True) for a, b in pairs)


def _format_refusal(error: BaseException) -> str:
    advice = f"let tensors' values decide nothing (torch.where instead of if; see {OPERATIONS_PAGE})"
    return f"the model cannot be traced: {_first_line(error)}; {advice}"


def strip_escape_codes(text: str) -> str:
    """A text without the colours that torch's exporters write for a terminal."""
    return _ESCAPE_CODE.sub("", text)


def _first_line(error: BaseException) -> str:
    lines = strip_escape_codes(str(error)).splitlines()
    first = next((line.strip() for line in lines if line.strip()), type(error).__name__)
    return first[:200]
