"""A bundle's hub model: its two graphs, decoded and held against the manifest.

Law: a graph that takes or gives anything but what the manifest says is a `BundleError`, before it ever runs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from models.bundle.bundle import Bundle
from models.bundle.manifest import BundleError, Manifest
from models.graph.format import HubForm
from models.graph.merging_hub_model_graph import TAIL, WHOLE, decode_all
from models.graph.module import Served, Slot
from models.graph.shapes import blank
from models.runtime.codec import NUMPY_DTYPES


class HubGraphs(NamedTuple):
    """Both -> outputs `[n, outputs]` (`[n]` may stand for `[n, 1]`).

    `tail` takes codes as float32, one input per feature in the manifest's order; `whole` raw samples.
    """

    tail: Served
    whole: Served


def open_hub(bundle: Bundle) -> HubGraphs:
    """BundleError, one line, naming the model."""
    manifest = bundle.manifest
    try:
        found = decode_all(bundle.read(manifest.hub.graph), [bundle.read(name) for name in manifest.hub.weights])
        _check_all(found, manifest)
    except BundleError as error:
        raise BundleError(f"{manifest.model}: {error}") from None
    return HubGraphs(found[TAIL], found[WHOLE])


def check_blank(form: HubForm, manifest: Manifest, batches: Sequence[int]) -> None:
    """The same checks, before any weight is read: it fits the manifest, and every batch has its limits."""
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
