"""Import of a Hugging Face checkpoint: a new version of a model with the checkpoint behind the edge part of an old one.

Rule: the edge part's files stay as they are, byte for byte, and the shards are linked as they are. What the former hub
model was measured to do does not hold for the new one: the manifest claims nothing of the pair until it is measured.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.bundle.bundle import Bundle, open_bundle
from models.bundle.hub_part import HubManifest, HubPart, open_hub_part
from models.bundle.manifest import FORMAT as BUNDLE_FORMAT
from models.bundle.manifest import HUB_GRAPH_FILE, NO_HUB, BundleError, Manifest, ParallelPlan, Provenance
from models.bundle.version import write_version
from models.forge.data.types import ForgeError
from models.graph.format import (
    FORMAT,
    GraphDocument,
    HubModelDocument,
    TensorSignature,
    decode_hub_model,
    encode_hub_model,
)
from models.graph.hub_model import TAIL, WHOLE, check_hub_document
from models.huggingface.checkpoint import Checkpoint, read_checkpoint
from models.huggingface.decoder import SampleDecoder, find_decoder, list_references, map_references
from models.huggingface.tracing import TracedCheckpoint, trace_checkpoint

CONSTANTS_FILE = "constants.safetensors"  # what no shard holds: tables of the decoder, positions, masks
SOURCE = "hf:"  # before a checkpoint's folder, where a model is named
_REHEARSED_BATCHES = (1, 2)


class ImportRequest(NamedTuple):
    """What to import: the `checkpoint` folder, behind the `edge` of a version's folder, to the folder `out`.

    Name "" and version 0 follow the edge's.
    """

    checkpoint: Path
    edge: Path
    out: Path
    name: str = ""
    version: int = 0


def import_checkpoint(asked: ImportRequest) -> Bundle:
    """Write the version and return its edge part. ForgeError or BundleError of one line; then nothing is written."""
    edge = open_bundle(asked.edge)
    part = open_hub_part(asked.edge, edge.manifest)
    decoder, tables = _read_decoder(part)
    checkpoint = read_checkpoint(asked.checkpoint)
    manifest = _renew_manifest(edge.manifest, asked)
    _check_labels(checkpoint, manifest)
    traced = trace_checkpoint(checkpoint, manifest.input)
    form, constants = compose_document(decoder, tables, traced)
    check_hub_document(form, manifest, _REHEARSED_BATCHES)
    files: dict[str, bytes | Path] = {file: checkpoint.folder / file for file in checkpoint.files}
    files |= {HUB_GRAPH_FILE: encode_hub_model(form)}
    files |= {CONSTANTS_FILE: safetensors.torch.save(constants)} if constants else {}
    weights = (*checkpoint.files, *((CONSTANTS_FILE,) if constants else ()))
    hub = HubManifest(
        name=manifest.name,
        version=manifest.version,
        graph=HUB_GRAPH_FILE,
        weights=weights,
        provenance=manifest.provenance,
    )
    return write_version(asked.out, manifest, _edge_contents(edge), hub, files)


def compose_document(
    decoder: SampleDecoder, tables: dict[str, Tensor], traced: TracedCheckpoint
) -> tuple[HubModelDocument, dict[str, Tensor]]:
    """Compose both graphs: `whole` as traced, `tail` the decoder and behind it the same.

    `tables`: the decoder's weights by their old names. Returns the document and the tensors that no shard holds.
    """
    renamed = {old: f"w{len(traced.weights) + at}" for at, old in enumerate(tables)}
    own = {renamed[old]: tensor.contiguous() for old, tensor in tables.items()}
    weights = traced.weights | {
        name: TensorSignature(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in own.items()
    }
    first = len(decoder.nodes)

    def decoded(ref: dict[str, Any]) -> dict[str, Any]:
        return {"weight": renamed[ref["weight"]]} if "weight" in ref else ref

    def behind(ref: dict[str, Any]) -> dict[str, Any]:
        if "node" in ref:
            return {"node": ref["node"] + first}
        return decoder.sample if "input" in ref else ref

    nodes = [map_references(node, decoded) for node in decoder.nodes]
    nodes += [map_references(node, behind) for node in traced.graph.nodes]
    outputs = [behind(ref) for ref in traced.graph.outputs]
    graphs = {TAIL: GraphDocument(decoder.inputs, nodes, outputs), WHOLE: traced.graph}
    return HubModelDocument(FORMAT, weights, graphs), traced.constants | own


def _read_decoder(part: HubPart) -> tuple[SampleDecoder, dict[str, Tensor]]:
    """Read the decoder of a hub part, and the weights that it needs, by name."""
    if part.manifest.whole:
        raise BundleError(f"{part.manifest.model}: its hub model is ONNX; name an edge whose hub model is graphs")
    form = decode_hub_model(part.read_file(part.manifest.graph))
    try:
        decoder = find_decoder(form, TAIL, WHOLE)
    except BundleError as error:
        raise BundleError(f"{part.manifest.model}: {error}") from None
    names = {ref["weight"] for node in decoder.nodes for ref in _node_references(node) if "weight" in ref}
    return decoder, _read_tensors(part, {name: form.weights[name].source or name for name in sorted(names)})


def _node_references(node: Any) -> list[dict[str, Any]]:
    return list(list_references([node.args, list(node.kwargs.values())]))


def _read_tensors(part: HubPart, sources: dict[str, str]) -> dict[str, Tensor]:
    """Read some weights of a hub part whose files were hashed."""
    found: dict[str, Tensor] = {}
    with part.open_weights() as files:
        files.verify()
        for descriptor in files.descriptors.values():
            found |= _read_file_tensors(f"/dev/fd/{descriptor}", sources)
    return found


def _read_file_tensors(file: str, sources: dict[str, str]) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            held = set(opened.keys())
            return {name: opened.get_tensor(stored) for name, stored in sources.items() if stored in held}
    except (SafetensorError, OSError) as error:
        raise BundleError(f"weights: {' '.join(str(error).split())[:200]}") from None


def _renew_manifest(old: Manifest, asked: ImportRequest) -> Manifest:
    """Return the manifest of the new version, with nothing in it that was measured with the former hub model."""
    figures = old.calibration
    claimed = msgspec.structs.replace(figures, pair=figures.edge, hub=figures.edge, oracle=figures.edge)
    return msgspec.structs.replace(
        old,
        format=BUNDLE_FORMAT,
        hub=NO_HUB,
        parallel=ParallelPlan(),
        name=asked.name or old.name,
        version=asked.version or old.version + 1,
        hub_temperature=1.0,
        gate=msgspec.structs.replace(old.gate, hub_domain=None),
        calibration=claimed,
        provenance=Provenance(f"{SOURCE}{asked.checkpoint.resolve().name}", old.provenance.data_digest),
    )


def _check_labels(checkpoint: Checkpoint, manifest: Manifest) -> None:
    """Refuse a checkpoint whose own labels are the edge's in another order: its answers would be misread."""
    told = checkpoint.config.get("id2label")
    if not isinstance(told, dict) or not manifest.labels:
        return
    names: Sequence[Any] = [told.get(str(at)) for at in range(len(told))]
    if set(names) == set(manifest.labels) and tuple(names) != manifest.labels:
        raise ForgeError(
            f"{checkpoint.folder}: its labels are the edge's in another order; order the edge's data as id2label"
        )


def _edge_contents(edge: Bundle) -> dict[str, bytes]:
    """Return the files of the edge part alone."""
    hub = set(edge.manifest.hub.files)
    return {name: edge.read_file(name) for name in edge.manifest.files if name not in hub}
