"""The hub's registry: which architectures a manifest may name, and how one is built and filled with weights.

Law: a manifest names, it never describes. Only a name found here is built; weights are safetensors, never unpickled.
"""

from collections.abc import Callable
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from models.manifest import BundleError, Manifest
from models.zoo import digits


class Halves(NamedTuple):
    head: nn.Module
    tail: nn.Module


Builder = Callable[[Manifest], Halves]


def _digits(manifest: Manifest) -> Halves:
    sizes = digits.sizes_of(manifest)
    return Halves(digits.DigitsHead(sizes), digits.DigitsTail(sizes))


ARCHITECTURES: dict[str, Builder] = {"zoo/digits": _digits}


def build_tail(manifest: Manifest, weights: bytes) -> nn.Module:
    """Codes as floats `[n, *features[0].shape]` -> logits `[n, labels]`, in evaluation mode. BundleError if unfit."""
    return _filled(manifest, weights).tail


def build_whole(manifest: Manifest, weights: bytes) -> nn.Module:
    """Raw input `[n, *input.shape]` -> the tail's logits `[n, labels]`: the hub alone. BundleError if unfit."""
    return digits.Whole(*_filled(manifest, weights)).eval()


def pack_weights(halves: Halves) -> bytes:
    """`head.*` and `tail.*` in one safetensors file: the same weights give the same bytes."""
    named = {f"{part}.{key}": value for part, half in halves._asdict().items() for key, value in _state(half).items()}
    return safetensors.torch.save(named)


def _filled(manifest: Manifest, weights: bytes) -> Halves:
    name = manifest.hub.architecture
    if name not in ARCHITECTURES:
        raise BundleError(f"{manifest.model}: architecture {name!r} is not known; known: {', '.join(ARCHITECTURES)}")
    halves = ARCHITECTURES[name](manifest)
    try:
        named = safetensors.torch.load(weights)
        for part, half in halves._asdict().items():
            half.load_state_dict(_taken(named, f"{part}."))
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise BundleError(f"{manifest.model}: weights do not fit {name}: {' '.join(str(error).split())}") from None
    if named:
        raise BundleError(f"{manifest.model}: weights of neither half: {', '.join(sorted(named))}")
    for half in halves:
        _freeze(manifest, half)
    return halves


def _taken(named: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The values whose names begin with `prefix`, without it; they are removed from `named`."""
    return {key.removeprefix(prefix): named.pop(key) for key in list(named) if key.startswith(prefix)}


def _freeze(manifest: Manifest, half: nn.Module) -> None:
    if not all(bool(torch.isfinite(value).all()) for value in half.state_dict().values()):
        raise BundleError(f"{manifest.model}: weights hold NaN or infinite values")
    half.eval().requires_grad_(False)


def _state(half: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.detach().contiguous() for key, value in half.state_dict().items()}
