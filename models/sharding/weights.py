"""Weights of one rank: the pieces that it reads of the files, and their sizes.

Rule: no whole tensor is ever held where a piece is wanted.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from models.graph.aten_operations import DTYPES
from models.graph.format import TensorSignature
from models.graph.weight_reader import TensorSlice, load_slices
from models.sharding.split import WeightPiece, piece_attribute


class RankShare(NamedTuple):
    """Share of a rank: which (`at`) of how many (`ways`) equal parts of every divided weight."""

    at: int
    ways: int


def read_pieces(
    files: Iterable[int], ports: Mapping[str, TensorSignature], pieces: Iterable[WeightPiece], share: RankShare
) -> dict[str, Tensor]:
    """Read every piece under its attribute's name, on the CPU, in memory of its own.

    `files`: descriptors of all files with weights, hashed before. BundleError if a piece does not fit.
    """
    return load_slices(files, ports, {piece_attribute(piece): TensorSlice(*piece, *share) for piece in pieces})


def count_piece_bytes(ports: Mapping[str, TensorSignature], pieces: Iterable[WeightPiece], ways: int) -> int:
    """Count the bytes of all pieces together, on one rank."""
    return sum(count_spec_bytes(ports[piece.name]) // (1 if piece.axis is None else ways) for piece in pieces)


def count_spec_bytes(port: TensorSignature) -> int:
    """Count the bytes of a weight of this type and shape; 0 for a type that is not allowed."""
    elements = 1
    for side in port.shape:
        elements *= side
    return elements * int(DTYPES[port.dtype].itemsize) if port.dtype in DTYPES else 0
