"""Weights of the hub's graphs: safetensors in and out, equal tensors once, in as many files as their size asks for.

Rule: never unpickled. A name of another form, a type that is not allowed or a NaN is a `BundleError` of one line.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from models.bundle.manifest import BundleError
from models.graph.aten_operations import DTYPES
from models.graph.format import TensorSignature

MAX_SHARD_BYTES = 1 << 29
WEIGHT_NAME = re.compile(r"w[0-9]{1,6}")


class WeightCollector:
    """Collector of tensors under names of its own (`w0`, `w1`, ...); an equal tensor gets the name it has already."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}
        self._names: dict[tuple[torch.dtype, tuple[int, ...], bytes], str] = {}

    def tensor_signatures(self) -> dict[str, TensorSignature]:
        """Return type and shape of every collected weight by name, as the graph document lists them."""
        return {name: TensorSignature(dtype_name(tensor), tuple(tensor.shape)) for name, tensor in self.held.items()}

    def name_for(self, tensor: Tensor) -> str:
        """Return the name of a tensor; a new one is collected."""
        plain = tensor.detach().cpu().contiguous()
        key = (plain.dtype, tuple(plain.shape), _hash_tensor(plain))
        if key not in self._names:
            self._names[key] = f"w{len(self._names)}"
            self.held[self._names[key]] = plain.clone()  # safetensors refuses tensors that share memory
        return self._names[key]


class SignatureCollector(WeightCollector):
    """Collector of types and shapes alone, to check a graph: no tensor is copied, and equal ones are not looked for."""

    def name_for(self, tensor: Tensor) -> str:
        """Return a new name for every call."""
        name = f"w{len(self.held)}"
        self.held[name] = tensor
        return name


def dtype_name(tensor: Tensor) -> str:
    """Return the element type of a tensor without `torch.`, as in "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def _hash_tensor(tensor: Tensor) -> bytes:
    return sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).digest() if tensor.numel() else b""


def pack_weights(tensors: Mapping[str, Tensor]) -> bytes:
    """Encode tensors as a safetensors file."""
    data: bytes = safetensors.torch.save(dict(tensors))
    return data


def split_weights(weights: bytes, max_bytes: int = MAX_SHARD_BYTES) -> tuple[bytes, ...]:
    """Split weights into files of about `max_bytes`, filled in the order of names. One file if that is enough."""
    if len(weights) <= max_bytes:
        return (weights,)
    parts: list[dict[str, Tensor]] = [{}]
    room = max_bytes
    for name, tensor in sorted(_load_safetensors(weights).items(), key=lambda item: (len(item[0]), item[0])):
        if parts[-1] and tensor.nbytes > room:
            parts.append({})
            room = max_bytes
        parts[-1][name] = tensor
        room -= tensor.nbytes
    return tuple(pack_weights(part) for part in parts)


def unpack_weights(files: Sequence[bytes], wanted: Mapping[str, TensorSignature]) -> dict[str, Tensor]:
    """Decode all weights by name, of the type and shape that `wanted` says.

    BundleError for missing or additional ones.
    """
    held: dict[str, Tensor] = {}
    for data in files:
        part = _load_safetensors(data)
        if part.keys() & held.keys():
            raise BundleError("weights: a name stands in two files")
        held |= part
    if held.keys() != wanted.keys():
        odd = sorted(held.keys() ^ wanted.keys())
        raise BundleError(f"weights: missing or too many: {', '.join(name[:20] for name in odd[:5])}")
    for name, tensor in held.items():
        _check_weight(name, tensor, wanted[name])
    return held


def _load_safetensors(data: bytes) -> dict[str, Tensor]:
    try:
        return dict(safetensors.torch.load(data))
    except (SafetensorError, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"weights: not a safetensors file: {' '.join(str(error).split())[:200]}") from None


def _check_weight(name: str, tensor: Tensor, wanted: TensorSignature) -> None:
    if not WEIGHT_NAME.fullmatch(name):
        raise BundleError(f"weights: {name[:40]!r} is not a valid weight name")
    if tensor.dtype is not DTYPES.get(wanted.dtype) or tuple(tensor.shape) != wanted.shape:
        raise BundleError(
            f"weights: {name} is {tensor.dtype} {list(tensor.shape)}, not {wanted.dtype} {list(wanted.shape)}"
        )
    if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
        raise BundleError(f"weights: {name} holds NaN")
