"""Weight pieces of one rank: what it needs of a safetensors file is read, and nothing else of it.

Rule: no whole tensor is ever held where a piece is wanted. What is not there, of another type or shape, or not a
number, is a `BundleError` of one line.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from models.bundle.manifest import BundleError
from models.graph.aten_operations import DTYPES
from models.graph.format import TensorSignature
from models.graph.weights import WEIGHT_NAME, dtype_name
from models.sharding.split import WeightPiece, piece_attribute

# Elements looked at together when a piece is searched for NaN. Small on purpose: freed buffers of many MiB between the
# pieces stayed with the process, a fifth of its share.
_NAN_CHUNK_ELEMENTS = 1 << 18
_READ_ERRORS = (SafetensorError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class RankShare(NamedTuple):
    """Share of a rank: which (`at`) of how many (`ways`) equal parts of every divided weight."""

    at: int
    ways: int


def read_pieces(
    files: Sequence[str], ports: Mapping[str, TensorSignature], pieces: Iterable[WeightPiece], share: RankShare
) -> dict[str, Tensor]:
    """Read every piece under its attribute's name, on the CPU, in memory of its own.

    BundleError if one does not fit.
    """
    with ExitStack() as opened:
        try:
            places = _index_files([opened.enter_context(safe_open(file, framework="pt")) for file in files])
            found = {piece_attribute(piece): _read_piece(places, ports, piece, share) for piece in pieces}
        except _READ_ERRORS as error:
            raise BundleError(f"weights: {' '.join(str(error).split())[:200]}") from None
    return found


def count_piece_bytes(ports: Mapping[str, TensorSignature], pieces: Iterable[WeightPiece], ways: int) -> int:
    """Count the bytes of all pieces together, on one rank."""
    return sum(count_spec_bytes(ports[piece.name]) // (1 if piece.axis is None else ways) for piece in pieces)


def count_spec_bytes(port: TensorSignature) -> int:
    """Count the bytes of a weight of this type and shape; 0 for a type that is not allowed."""
    elements = 1
    for side in port.shape:
        elements *= side
    return elements * int(DTYPES[port.dtype].itemsize) if port.dtype in DTYPES else 0


def _index_files(files: Sequence[Any]) -> dict[str, Any]:
    places: dict[str, Any] = {}
    for file in files:
        for name in file.keys():  # noqa: SIM118 - not a dict
            if name in places:
                raise BundleError("weights: a name stands in two files")
            places[name] = file
    return places


def _read_piece(
    places: Mapping[str, Any], ports: Mapping[str, TensorSignature], piece: WeightPiece, share: RankShare
) -> Tensor:
    name, axis = piece
    stored = ports[name].source or name if name in ports else ""
    if stored not in places or not WEIGHT_NAME.fullmatch(name):
        raise BundleError(f"weights: missing or too many: {name[:20]}")
    source = places[stored].get_slice(stored)
    shape = tuple(source.get_shape())
    if shape != ports[name].shape:
        raise BundleError(f"weights: {name} is {list(shape)}, not {list(ports[name].shape)}")
    wanted = [slice(None)] * len(shape)
    if axis is not None:
        if axis >= len(shape) or shape[axis] % share.ways:
            raise BundleError(f"plan: {name} {list(shape)} cannot be divided in {share.ways} along axis {axis}")
        each = shape[axis] // share.ways
        wanted[axis] = slice(share.at * each, (share.at + 1) * each)
    # a clone: the file's pages stay the file's, so nobody can change what was read by changing the file
    tensor: Tensor = (source[tuple(wanted)] if shape else places[stored].get_tensor(stored)).clone(
        memory_format=torch.contiguous_format
    )
    if dtype_name(tensor) != ports[name].dtype:
        raise BundleError(f"weights: {name} is {tensor.dtype}, not {ports[name].dtype}")
    if tensor.is_floating_point() and _contains_nan(tensor):
        raise BundleError(f"weights: {name} holds NaN")
    return tensor


def _contains_nan(tensor: Tensor) -> bool:
    flat = tensor.reshape(-1)
    return any(
        bool(torch.isnan(flat[at : at + _NAN_CHUNK_ELEMENTS]).any()) for at in range(0, len(flat), _NAN_CHUNK_ELEMENTS)
    )
