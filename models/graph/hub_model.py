"""The hub's half of a bundle: its graphs `tail` and `whole`, encoded for a bundle and opened from one.

Graphs of allowed operations are JSON, their weights safetensors.
Rule: no code and no pickle; any bytes either decode to a module made of allowed operations whose sizes were checked, or
are a `BundleError` of one line. The same graphs give the same bytes; equal tensors are stored once. A graph that takes
or gives anything but what the manifest says is a `BundleError`, before it ever runs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import fx

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, Manifest
from models.forge.data.types import ForgeError
from models.graph.builder import build
from models.graph.exporter import exported
from models.graph.format import FORMAT, HubForm, from_bytes, to_bytes
from models.graph.module import Served, Slot
from models.graph.shapes import blank
from models.graph.weights import Shelf, pack, shards, unpack
from models.graph.writer import write
from models.runtime.codec import NUMPY_DTYPES

__all__ = ["TAIL", "WHOLE", "Served", "decode_all", "decode_graphs", "encode_graphs", "exported", "shards"]

TAIL = "tail"  # codes as float32 -> outputs
WHOLE = "whole"  # raw input -> outputs
_REHEARSED = (1, 2)


def encode_graphs(graphs: Mapping[str, fx.GraphModule]) -> tuple[bytes, bytes]:
    """Encode graphs made by `exported`: (JSON, safetensors). ForgeError, one line, for what a hub would not run."""
    shelf = Shelf()
    written = {name: write(graphs[name], shelf) for name in sorted(graphs)}
    form = HubForm(FORMAT, shelf.ports(), written)
    encoded, weights = to_bytes(form), pack(shelf.held)
    try:
        decode_all(encoded, [weights])
    except BundleError as error:
        raise ForgeError(f"the hub would refuse this model: {error}") from None
    return encoded, weights


def decode_graphs(graph: bytes, weights: Sequence[bytes], wanted: str) -> Served:
    """Decode one of the graphs, ready to run in evaluation mode without gradients. BundleError for anything else."""
    found = decode_all(graph, weights)
    if wanted not in found:
        raise BundleError(f"graphs: there is no {wanted!r}, only {', '.join(sorted(found))}")
    return found[wanted]


def decode_all(graph: bytes, weights: Sequence[bytes]) -> dict[str, Served]:
    """Decode every graph by name; they share the memory of weights they have in common."""
    form = from_bytes(graph)
    held = unpack(weights, form.weights)
    served: dict[str, Served] = {}
    used: set[str] = set()
    for name, written in form.graphs.items():
        try:
            served[name], names = build(written, held)
            for batch in _REHEARSED:
                served[name].rehearse(batch)
            served[name].try_out()
        except BundleError as error:
            raise BundleError(f"graph {name}: {error}") from None
        used |= names
    if used != held.keys():
        surplus = sorted(held.keys() - used)
        raise BundleError(f"weights: no graph uses {', '.join(surplus[:5])}")
    return served


class HubGraphs(NamedTuple):
    """The two graphs of a hub model; both give outputs `[n, outputs]` (`[n]` may stand for `[n, 1]`).

    `tail` takes codes as float32, one input per feature in the manifest's order; `whole` raw samples.
    """

    tail: Served
    whole: Served


def open_hub(bundle: Bundle) -> HubGraphs:
    """Open the two graphs of a bundle, checked against its manifest. BundleError, one line, naming the model."""
    manifest = bundle.manifest
    try:
        found = decode_all(bundle.read(manifest.hub.graph), [bundle.read(name) for name in manifest.hub.weights])
        _check_all(found, manifest)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None
    return HubGraphs(found[TAIL], found[WHOLE])


def check_blank(form: HubForm, manifest: Manifest, batches: Sequence[int]) -> None:
    """Check a document before any weight is read: it fits the manifest, and every batch size is within the limits."""
    try:
        found = {name: blank(written, form.weights) for name, written in form.graphs.items()}
        for graph in found.values():
            for batch in batches:
                graph.rehearse(batch)
        _check_all(found, manifest)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None


def _check_all(found: Mapping[str, Served], manifest: Manifest) -> None:
    if found.keys() != {TAIL, WHOLE}:
        raise BundleError(f"graphs: {TAIL} and {WHOLE} are wanted, found {', '.join(sorted(found))}")
    _check(TAIL, found[TAIL], tuple(Slot(torch.float32, field.shape) for field in manifest.features), manifest)
    _check(WHOLE, found[WHOLE], (_sample(manifest),), manifest)


def _sample(manifest: Manifest) -> Slot:
    # torch calls its types as numpy does
    return Slot(getattr(torch, str(NUMPY_DTYPES[manifest.input.dtype])), manifest.input.shape)


def _check(name: str, graph: Served, slots: tuple[Slot, ...], manifest: Manifest) -> None:
    if graph.slots != slots:
        raise BundleError(f"graph {name}: takes {_shown(graph.slots)}, the manifest says {_shown(slots)}")
    wanted = {(manifest.outputs,)} | ({()} if manifest.outputs == 1 else set())
    if len(graph.outputs) != 1 or graph.outputs[0] not in wanted:
        raise BundleError(f"graph {name}: gives {list(graph.outputs)}, the manifest says {manifest.outputs} outputs")


def _shown(slots: tuple[Slot, ...]) -> str:
    return ", ".join(f"{str(slot.dtype).removeprefix('torch.')} {list(slot.shape)}" for slot in slots)
