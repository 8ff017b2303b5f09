"""The hub's half of a bundle as data: graphs of allowed operations in JSON, their weights in safetensors.

Law: no code and no pickle; any bytes either decode to a module made of allowed operations whose sizes were checked, or
are a `BundleError` of one line. The same graphs give the same bytes; equal tensors are stored once.
"""

from collections.abc import Mapping, Sequence

from torch import fx

from models.bundle.manifest import BundleError
from models.forge.data.types import ForgeError
from models.graph.builder import build
from models.graph.exporter import exported
from models.graph.format import FORMAT, HubForm, from_bytes, to_bytes
from models.graph.module import Served
from models.graph.weights import Shelf, pack, shards, unpack
from models.graph.writer import write

__all__ = ["TAIL", "WHOLE", "Served", "decode_all", "decode_graphs", "encode_graphs", "exported", "shards"]

TAIL = "tail"  # codes as float32 -> outputs
WHOLE = "whole"  # raw input -> outputs
_REHEARSED = (1, 2)


def encode_graphs(graphs: Mapping[str, fx.GraphModule]) -> tuple[bytes, bytes]:
    """(JSON, safetensors) of graphs made by `exported`. ForgeError, one line, for what a hub would not run."""
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
    """One of the graphs, ready to run in evaluation mode without gradients. BundleError for anything else."""
    found = decode_all(graph, weights)
    if wanted not in found:
        raise BundleError(f"graphs: there is no {wanted!r}, only {', '.join(sorted(found))}")
    return found[wanted]


def decode_all(graph: bytes, weights: Sequence[bytes]) -> dict[str, Served]:
    """Every graph by name; they share the memory of weights they have in common."""
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
