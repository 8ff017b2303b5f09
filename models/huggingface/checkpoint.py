"""A checkpoint folder of Hugging Face: its configuration, and which safetensors file holds which tensor.

Rule: headers alone are read, and nothing is ever unpickled. What cannot be used is a `ForgeError` of one line.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from models.bundle.manifest import FILE_NAME, BundleError
from models.forge.data.types import ForgeError
from models.graph.weight_reader import read_header
from models.graph.weight_source import FileSource

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_JSON_BYTES = 64 << 20
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint: the file it lies in, its element type as torch names it, its shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]


class Checkpoint(NamedTuple):
    """A checkpoint: `config` as JSON values, its safetensors `files` in order, `tensors` by their names there."""

    folder: Path
    config: dict[str, Any]
    files: tuple[str, ...]
    tensors: dict[str, CheckpointTensor]


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the headers of a checkpoint folder. ForgeError if it is none, is pickled, or names files it lacks."""
    config = read_json(folder / CONFIG_FILE)
    files = _list_shards(folder)
    tensors: dict[str, CheckpointTensor] = {}
    for file in files:
        for name, tensor in _read_header(folder, file).items():
            if name in tensors:
                raise ForgeError(f"{folder}: {name[:80]} stands in two files: {tensors[name].file} and {file}")
            tensors[name] = tensor
    return Checkpoint(folder, config, files, tensors)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. ForgeError if there is none."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ForgeError(f"{path}: bigger than {MAX_JSON_BYTES} bytes")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ForgeError(f"{path}: {error.strerror}; name a folder as `save_pretrained` writes it") from None
    except (ValueError, RecursionError):
        raise ForgeError(f"{path}: is not JSON") from None
    if not isinstance(found, dict):
        raise ForgeError(f"{path}: is not a JSON object")
    return found


def _list_shards(folder: Path) -> tuple[str, ...]:
    """List the safetensors files that the index names, or the single one."""
    if (folder / SINGLE_FILE).exists():  # before an index, as transformers has it
        files: tuple[str, ...] = (SINGLE_FILE,)
    elif (folder / INDEX_FILE).exists():
        placed = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(placed, dict) or not placed or not all(isinstance(name, str) for name in placed.values()):
            raise ForgeError(f"{folder / INDEX_FILE}: has no weight_map")
        files = tuple(sorted(set(placed.values())))
    else:
        raise ForgeError(_explain_missing(folder))
    for file in files:
        if not FILE_NAME.fullmatch(file):
            raise ForgeError(f"{folder}: {file[:80]!r} is no plain file name of lower-case letters")
        if not (folder / file).is_file():
            raise ForgeError(f"{folder}: the shard {file} is missing")
    return files


def _explain_missing(folder: Path) -> str:
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder}: {pickled[0]} is not safetensors, and pickled weights are never opened; "
            "write them anew with model.save_pretrained(FOLDER)"
        )
    return f"{folder}: has neither {SINGLE_FILE} nor {INDEX_FILE}"


def _read_header(folder: Path, file: str) -> dict[str, CheckpointTensor]:
    try:
        with (folder / file).open("rb") as opened:
            header = read_header(FileSource(opened.fileno(), file))
    except OSError as error:
        raise ForgeError(f"{folder / file}: {error.strerror}") from None
    except BundleError as error:
        raise ForgeError(f"{folder}: {error}") from None
    return {name: CheckpointTensor(file, found.dtype, found.shape) for name, found in header.tensors.items()}
