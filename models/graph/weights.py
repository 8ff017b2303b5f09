"""Weights of the hub's graphs as they are written: safetensors, equal tensors once, in as many files as they need.

They are read by `models.graph.weight_reader`.
"""

import re
from collections.abc import Mapping
from hashlib import sha256

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from models.bundle.manifest import BundleError
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


def _load_safetensors(data: bytes) -> dict[str, Tensor]:
    try:
        return dict(safetensors.torch.load(data))
    except (SafetensorError, LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(f"weights: not a safetensors file: {' '.join(str(error).split())[:200]}") from None
