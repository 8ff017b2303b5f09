"""Tracing of a checkpoint: from its configuration to one graph of allowed operations that names tensors of its files.

Rule: no weight is read or held; shapes and types are those of the files. A tied weight stands in the document once.
What transformers would compute on loading (fused or converted weights) is refused: a hub reads files as they lie.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from models.bundle.manifest import InputSpec
from models.forge.data.types import ForgeError
from models.graph.aten_operations import DTYPES
from models.graph.exporter import trace_graph
from models.graph.format import GraphDocument, TensorSignature
from models.graph.weights import WeightCollector
from models.graph.writer import write_graph
from models.huggingface.architecture import build_blank_network, wrap_network
from models.huggingface.checkpoint import Checkpoint
from models.runtime.feature_codec import NUMPY_DTYPES

_SHOWN = 3  # names in an error


class TracedCheckpoint(NamedTuple):
    """Graph of a whole model, raw samples to logits, with what it needs.

    `weights`: every weight by name, those of the files with their `source`; `constants`: the values of the others.
    """

    graph: GraphDocument
    weights: dict[str, TensorSignature]
    constants: dict[str, Tensor]


def trace_checkpoint(checkpoint: Checkpoint, spec: InputSpec) -> TracedCheckpoint:
    """Trace the network of a checkpoint on samples of `spec`. ForgeError if it cannot be used, in one line."""
    net = build_blank_network(checkpoint)
    sources = _match_tensors(net, checkpoint)
    held = {name: getattr(torch, checkpoint.tensors[source].dtype, None) for name, source in sources.items()}
    odd = [f"{sources[name]} ({dtype})" for name, dtype in held.items() if str(dtype).partition(".")[2] not in DTYPES]
    if odd:
        raise ForgeError(f"{checkpoint.folder}: tensors of a type that a hub does not run: {_shorten(odd)}")
    floating = {dtype for dtype in held.values() if dtype is not None and dtype.is_floating_point}
    if len(floating) > 1:
        kinds = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in floating))
        raise ForgeError(f"{checkpoint.folder}: its weights are of several types ({kinds}); save them in one")
    dtype = next(iter(floating), torch.float32)
    wrapped = wrap_network(net, checkpoint, spec, dtype)  # its own tables hold values: they are constants
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        names = _fill_with_fakes(net, sources, checkpoint)
        sample = mode.from_tensor(torch.zeros((2, *spec.shape), dtype=getattr(torch, str(NUMPY_DTYPES[spec.dtype]))))
        graph = trace_graph(wrapped, (sample,))
    shelf = _SourceCollector(names)
    document = write_graph(graph, shelf)
    constants = {name: tensor.detach() for name, tensor in shelf.held.items() if name not in shelf.sources}
    return TracedCheckpoint(document, shelf.tensor_signatures(), constants)


class _SourceCollector(WeightCollector):
    """Collector that knows which tensor of the files each weight stands for; everything else is a constant."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._sources_by_id = names
        self._taken: dict[int, str] = {}  # by identity: `held` keeps the tensors alive
        self.sources: dict[str, str] = {}

    def name_for(self, tensor: Tensor) -> str:
        """Return the name of a tensor; a new one is collected."""
        if id(tensor) not in self._taken:
            name, source = f"w{len(self.held)}", self._sources_by_id.get(id(tensor))
            if source is not None:
                self.sources[name] = source
            elif isinstance(tensor, FakeTensor):
                raise ForgeError("the network makes a weight of its own on loading, which no file holds")
            self.held[name] = tensor
            self._taken[id(tensor)] = name
        return self._taken[id(tensor)]

    def tensor_signatures(self) -> dict[str, TensorSignature]:
        """Return type, shape and source of every collected weight by name."""
        found = super().tensor_signatures()
        return {
            name: TensorSignature(port.dtype, port.shape, self.sources.get(name, "")) for name, port in found.items()
        }


def _match_tensors(net: Any, checkpoint: Checkpoint) -> dict[str, str]:
    """Match every parameter to a tensor of the files, under the names that transformers itself accepts for it.

    Buffers are matched where a file has them. Returns names in the files by names in the network.
    """
    parameters = dict(net.named_parameters(remove_duplicate=False))
    buffers = dict(net.named_buffers(remove_duplicate=False))
    found: dict[str, str] = {}
    converted = []
    for source, name, is_converted in _rename_tensors(net, checkpoint, {**parameters, **buffers}):
        if is_converted and name in parameters:
            converted.append(source)
        elif name in parameters or name in buffers:
            found[name] = source
    _share_tied(net, found)
    missing = [name for name in parameters if name not in found]
    if converted:
        raise ForgeError(f"{checkpoint.folder}: transformers converts {_shorten(converted)} on loading; {_SAVE_ANEW}")
    if missing:
        raise ForgeError(f"{checkpoint.folder}: no file holds {_shorten(missing)}; is it a fine-tuned classifier?")
    _check_shapes({**buffers, **parameters}, found, checkpoint)
    return found


_SAVE_ANEW = "forge it instead (skerry models forge hf:FOLDER), which loads it by transformers"


def _rename_tensors(net: Any, checkpoint: Checkpoint, known: Mapping[str, Tensor]) -> list[tuple[str, str, bool]]:
    """List (name in the files, name in the network, whether its value is converted), by the rules of transformers."""
    from transformers.conversion_mapping import get_model_conversion_mapping  # noqa: PLC0415 - an extra
    from transformers.core_model_loading import WeightRenaming, rename_source_key  # noqa: PLC0415

    rules = get_model_conversion_mapping(net)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters: list[Any] = [rule for rule in rules if not isinstance(rule, WeightRenaming)]
    rows = []
    for source in checkpoint.tensors:
        name, pattern = rename_source_key(source, renamings, converters, net.base_model_prefix, dict(known))
        rows.append((source, name, pattern is not None))
    return rows


def _share_tied(net: Any, found: dict[str, str]) -> None:
    """Give tied parameters the tensor of the one that a file holds."""
    tied = getattr(net, "all_tied_weights_keys", None) or {}
    for name, other in tied.items():
        if name not in found and other in found:
            found[name] = found[other]
        elif other not in found and name in found:
            found[other] = found[name]


def _check_shapes(known: Mapping[str, Tensor], found: Mapping[str, str], checkpoint: Checkpoint) -> None:
    for name, source in found.items():
        wanted, stored = tuple(known[name].shape), checkpoint.tensors[source].shape
        if wanted != stored:
            raise ForgeError(f"{checkpoint.folder}: {source} is {list(stored)}, config.json says {list(wanted)}")


def _fill_with_fakes(net: nn.Module, sources: Mapping[str, str], checkpoint: Checkpoint) -> dict[int, str]:
    """Replace what the files hold by tensors without data, of the files' types. Returns sources by identity."""
    made: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for name, source in sources.items():
        stored = checkpoint.tensors[source]
        if source not in made:
            blank = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
            made[source] = nn.Parameter(blank, requires_grad=False)
            names[id(made[source])] = source
        path, _, attribute = name.rpartition(".")
        owner = net.get_submodule(path)
        if attribute in owner._parameters:  # noqa: SLF001 - what torch itself writes to
            owner._parameters[attribute] = made[source]  # type: ignore[assignment]  # noqa: SLF001
        else:
            owner._buffers[attribute] = made[source]  # noqa: SLF001
    return names


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:80] for name in names[:_SHOWN]) + more
