"""Command `skerry models layout`: a bundle's ONNX hub graphs as the model repository of an inference server.

Rule: every model is written beside its place and renamed, so a server that polls the folder never sees half of one.
"""

import math
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from models.bundle.bundle import open_bundle
from models.bundle.hub_part import HubKind, open_hub_part
from models.bundle.manifest import BundleError
from models.verification.lint import lint_graph
from models.verification.onnx_reader import Value, read_onnx_model
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.terminal import open_console, require_path

# TensorProto.DataType -> the name of the type in config.pbtxt
_TRITON_TYPES = {
    1: "TYPE_FP32", 2: "TYPE_UINT8", 3: "TYPE_INT8", 4: "TYPE_UINT16", 5: "TYPE_INT16", 6: "TYPE_INT32",
    7: "TYPE_INT64", 9: "TYPE_BOOL", 10: "TYPE_FP16", 11: "TYPE_FP64", 12: "TYPE_UINT32", 13: "TYPE_UINT64",
}  # fmt: skip


class LayoutServer(StrEnum):
    """Servers whose model repository can be written."""

    TRITON = "triton"


class _RepositoryModel(NamedTuple):
    """One model of the repository: its folder's name, its configuration, its graph."""

    name: str
    config: str
    graph: bytes


def layout(
    bundle: Annotated[
        Path, typer.Argument(callback=require_path, help="A bundle whose hub part is ONNX.", show_default=False)
    ],
    out: Annotated[Path, typer.Argument(help="The model repository, a folder.", show_default=False)],
    *,
    server: Annotated[LayoutServer, typer.Option("--for", help="The server that reads it.", show_default=False)],
    max_batch: Annotated[int, typer.Option(help="Most rows of one request: as [hub] max_batch.", min=1)] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of TOML.")] = False,
) -> None:
    """Write both graphs of the hub's half as models that a Triton server loads, and print the [[remote]] table for it.

    Models that are there already are not touched: exit code 2. Exit code 12 if the bundle is unsound, or its hub half
    is not ONNX.

    Example: skerry models layout digits models --for triton
    """
    del server  # there is one
    name, made = _list_models(bundle, max_batch)
    try:
        for model in made:
            _write_model(out, model)
    except OSError as error:
        raise ExitError(
            ExitCode.DISK, f"{error.filename or out}: {error.strerror}; choose another folder or make room"
        ) from None
    tail, whole = (model.name for model in made)
    told = {"model": name, "url": "http://127.0.0.1:8000", "tail": tail, "whole": whole}
    if as_json:
        open_console().print_json(data=told)
    else:
        table = "\n".join(["[[remote]]", *(f'{key} = "{value}"' for key, value in told.items())])
        open_console().print(table, markup=False, highlight=False)


def _list_models(path: Path, max_batch: int) -> tuple[str, tuple[_RepositoryModel, ...]]:
    """Return the version's name and its two models. ExitError(MODEL) if there are none."""
    try:
        manifest = open_bundle(path).manifest
        part = open_hub_part(path, manifest)
        if part.manifest.kind is HubKind.ONNX:
            parts = (("tail", part.manifest.graph), ("whole", part.manifest.whole))
            names = [(f"{manifest.name}-{manifest.version}-{graph}", part.read_file(file)) for graph, file in parts]
            return manifest.model, tuple(
                _RepositoryModel(name, write_triton_config(name, data, max_batch), data) for name, data in names
            )
    except BundleError as error:
        raise ExitError(ExitCode.MODEL, str(error)) from None
    raise ExitError(
        ExitCode.MODEL,
        f"{manifest.model}: its hub half is graphs of this project, not ONNX: only its own engines run it",
    )


def write_triton_config(name: str, graph: bytes, max_batch: int) -> str:
    """Return the text of config.pbtxt for an ONNX graph. BundleError if the graph may not be loaded or has no batch."""
    lint_graph(graph)
    found = read_onnx_model(graph).graph
    if found is None:
        raise BundleError(f"{name}: no graph in it")
    weights = {tensor.name for tensor in found.initializers}
    inputs = [value for value in found.inputs if value.name not in weights]
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', f"max_batch_size: {max_batch}"]
    lines += [_format_tensor(name, "input", value) for value in inputs]
    lines += [_format_tensor(name, "output", value) for value in found.outputs]
    return "\n".join(lines) + "\n"


def _format_tensor(name: str, kind: str, value: Value) -> str:
    """Format one input or output, without its batch axis."""
    tensor = value.type.tensor if value.type else None
    shape = tensor.shape if tensor else None
    if tensor is None or shape is None or not shape.dims or tensor.element not in _TRITON_TYPES:
        raise BundleError(f"{name}: {kind} {value.name!r} has no shape or type that a server takes")
    if shape.dims[0].value is not None:
        raise BundleError(f"{name}: {kind} {value.name!r} takes batches of {shape.dims[0].value} alone")
    sizes = [-1 if each.value is None else each.value for each in shape.dims[1:]]
    dims = ", ".join(str(size) for size in sizes)
    if not sizes or math.prod(sizes) == 0:
        raise BundleError(f"{name}: {kind} {value.name!r} has no elements beside its batch")
    quoted = value.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'{kind} [{{ name: "{quoted}" data_type: {_TRITON_TYPES[tensor.element]} dims: [ {dims} ] }}]'


def _write_model(out: Path, model: _RepositoryModel) -> None:
    """Write one model's folder in one step. ExitError(USAGE) if it is there already."""
    place = out / model.name
    if place.exists():
        raise ExitError(ExitCode.USAGE, f"{place} is there already: remove it, or choose another folder")
    fresh = out / f".{model.name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "1").mkdir(parents=True)
    (fresh / "1" / "model.onnx").write_bytes(model.graph)
    (fresh / "config.pbtxt").write_text(model.config, encoding="utf-8")
    fresh.rename(place)
