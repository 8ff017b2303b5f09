"""The hub's half of a bundle: its graphs `tail` and `whole`, encoded for a bundle and opened from one.

Graphs of allowed operations are JSON, their weights safetensors.
Rule: no code and no pickle; any bytes either decode to a module made of allowed operations whose sizes were checked, or
are a `BundleError` of one line. The same graphs give the same bytes; equal tensors are stored once. A graph that takes
or gives anything but what the manifest says is a `BundleError`, before it ever runs.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor, fx

from models.bundle.bundle import Bundle
from models.bundle.folder import ByteCallback
from models.bundle.hub_part import HubPart, open_hub_part
from models.bundle.manifest import BundleError, Manifest
from models.forge.data.types import ForgeError
from models.graph.builder import build_graph
from models.graph.exporter import export_graph
from models.graph.format import FORMAT, HubModelDocument, decode_hub_model, encode_hub_model
from models.graph.module import HubGraphModule, InputSlot
from models.graph.shapes import build_meta_graph, make_blank_weights
from models.graph.weight_reader import check_weights, load_packed_weights, load_weights
from models.graph.weights import SignatureCollector, WeightCollector, pack_weights, split_weights
from models.graph.writer import write_graph
from models.runtime.feature_codec import NUMPY_DTYPES

__all__ = [
    "TAIL",
    "WHOLE",
    "HubGraphModule",
    "check_graph",
    "decode_all_graphs",
    "decode_graphs",
    "encode_graphs",
    "export_graph",
    "split_weights",
]

TAIL = "tail"  # codes as float32 -> outputs
WHOLE = "whole"  # raw input -> outputs
_REHEARSED_BATCHES = (1, 2)
_REFUSED_ADVICE = "write that part of the model with plainer operations or smaller tensors"


def encode_graphs(graphs: Mapping[str, fx.GraphModule]) -> tuple[bytes, bytes]:
    """Encode graphs made by `export_graph`: (JSON, safetensors). ForgeError, one line, for what a hub would not run."""
    shelf = WeightCollector()
    written = {name: write_graph(graphs[name], shelf) for name in sorted(graphs)}
    form = HubModelDocument(FORMAT, shelf.tensor_signatures(), written)
    encoded, weights = encode_hub_model(form), pack_weights(shelf.held)
    try:
        decode_all_graphs(encoded, [weights])
    except BundleError as error:
        raise ForgeError(f"the hub would refuse this model: {error}; {_REFUSED_ADVICE}") from None
    return encoded, weights


def check_graph(graph: fx.GraphModule) -> None:
    """Check that a hub would run a graph made by `export_graph`, without copying or computing anything.

    ForgeError, one line, as `encode_graphs` raises it for the same graph.
    """
    shelf = SignatureCollector()
    written = write_graph(graph, shelf)
    try:
        found = build_meta_graph(written, shelf.tensor_signatures())
        for batch in _REHEARSED_BATCHES:
            found.rehearse_batch(batch)
    except BundleError as error:
        raise ForgeError(f"the hub would refuse this model: {error}; {_REFUSED_ADVICE}") from None


def decode_graphs(graph: bytes, weights: Sequence[bytes], wanted: str) -> HubGraphModule:
    """Decode one of the graphs, ready to run in evaluation mode without gradients. BundleError for anything else."""
    found = decode_all_graphs(graph, weights)
    if wanted not in found:
        raise BundleError(f"graphs: there is no {wanted!r}, only {', '.join(sorted(found))}")
    return found[wanted]


def decode_all_graphs(graph: bytes, weights: Sequence[bytes]) -> dict[str, HubGraphModule]:
    """Decode every graph by name; they share the memory of weights they have in common."""
    form = decode_hub_model(graph)
    return _load_graphs(form, lambda: load_packed_weights(weights, form.weights))


def _load_graphs(form: HubModelDocument, load: Callable[[], Mapping[str, Tensor]]) -> dict[str, HubGraphModule]:
    """Build every graph, put the weights of `load` into it, and run it on one sample.

    The graphs are built and rehearsed while the weights are read: of a small model that is most of its start. What is
    wrong with the weights is said first.
    """
    with ThreadPoolExecutor(1) as thread:
        building = thread.submit(_build_graphs, form)
        held = load()
        found = building.result()
    with ThreadPoolExecutor(len(found)) as threads:  # each reads all weights once more: side by side
        for placed in [threads.submit(_place_weights, name, graph, held) for name, graph in found.items()]:
            placed.result()
    return found


def _place_weights(name: str, graph: HubGraphModule, held: Mapping[str, Tensor]) -> None:
    try:
        graph.place_weights(held)
        graph.run_zero_sample()
    except BundleError as error:
        raise BundleError(f"graph {name}: {error}") from None


def _build_graphs(form: HubModelDocument) -> dict[str, HubGraphModule]:
    """Build and rehearse every graph; its weights hold no data yet."""
    blanks = make_blank_weights(form.weights)
    found: dict[str, HubGraphModule] = {}
    used: set[str] = set()
    for name, written in form.graphs.items():
        try:
            found[name], names = build_graph(written, blanks)
            for batch in _REHEARSED_BATCHES:
                found[name].rehearse_batch(batch)
        except BundleError as error:
            raise BundleError(f"graph {name}: {error}") from None
        used |= names
    if used != blanks.keys():
        surplus = sorted(blanks.keys() - used)
        raise BundleError(f"weights: no graph uses {', '.join(surplus[:5])}")
    return found


class HubGraphs(NamedTuple):
    """The two graphs of a hub model; both give outputs `[n, outputs]` (`[n]` may stand for `[n, 1]`).

    `tail` takes codes as float32, one input per feature in the manifest's order; `whole` raw samples.
    """

    tail: HubGraphModule
    whole: HubGraphModule


def open_hub_graphs(bundle: Bundle) -> HubGraphs:
    """Open the two graphs of the hub part behind an edge part. BundleError as `load_hub_graphs`."""
    return load_hub_graphs(open_hub_part(bundle.path, bundle.manifest), bundle.manifest)


def load_hub_graphs(part: HubPart, manifest: Manifest) -> HubGraphs:
    """Load the two graphs of a hub part, checked against the edge part's manifest; its weights are read once.

    BundleError, one line, naming the model.
    """
    part.require_graphs()
    try:
        form = decode_hub_model(part.read_file(part.manifest.graph))
        with part.open_weights() as files:
            found = _load_graphs(form, lambda: load_weights(files, form.weights))
        _check_against_manifest(found, manifest)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None
    return HubGraphs(found[TAIL], found[WHOLE])


def check_hub_part(part: HubPart, manifest: Manifest, tick: ByteCallback | None = None) -> None:
    """Check the graphs and weights of a hub part as a hub that loads it does; no weight is kept in memory, none hashed.

    `tick`: told the bytes of weights as they are read. BundleError, one line, naming the model.
    """
    try:
        form = decode_hub_model(part.read_file(part.manifest.graph))
        with part.open_weights() as files:
            check_weights(files, form.weights, tick)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None
    check_hub_document(form, manifest, _REHEARSED_BATCHES)


def check_hub_document(form: HubModelDocument, manifest: Manifest, batches: Sequence[int]) -> None:
    """Check a document before any weight is read: it fits the manifest, and every batch size is within the limits."""
    try:
        found = {name: build_meta_graph(written, form.weights) for name, written in form.graphs.items()}
        for graph in found.values():
            for batch in batches:
                graph.rehearse_batch(batch)
        _check_against_manifest(found, manifest)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None


def _check_against_manifest(found: Mapping[str, HubGraphModule], manifest: Manifest) -> None:
    if found.keys() != {TAIL, WHOLE}:
        raise BundleError(f"graphs: {TAIL} and {WHOLE} are wanted, found {', '.join(sorted(found))}")
    _check_signature(
        TAIL, found[TAIL], tuple(InputSlot(torch.float32, field.shape) for field in manifest.features), manifest
    )
    _check_signature(WHOLE, found[WHOLE], (_sample_slot(manifest),), manifest)


def _sample_slot(manifest: Manifest) -> InputSlot:
    # torch calls its types as numpy does
    return InputSlot(getattr(torch, str(NUMPY_DTYPES[manifest.input.dtype])), manifest.input.shape)


def _check_signature(name: str, graph: HubGraphModule, slots: tuple[InputSlot, ...], manifest: Manifest) -> None:
    if graph.slots != slots:
        raise BundleError(f"graph {name}: takes {_format_slots(graph.slots)}, the manifest says {_format_slots(slots)}")
    wanted = {(manifest.outputs,)} | ({()} if manifest.outputs == 1 else set())
    if len(graph.outputs) != 1 or graph.outputs[0] not in wanted:
        raise BundleError(f"graph {name}: gives {list(graph.outputs)}, the manifest says {manifest.outputs} outputs")


def _format_slots(slots: tuple[InputSlot, ...]) -> str:
    return ", ".join(f"{str(slot.dtype).removeprefix('torch.')} {list(slot.shape)}" for slot in slots)
