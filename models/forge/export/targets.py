"""The machines a bundle can be made for: which execution providers run it there, and which precisions are tried.

Law: only a profile whose first provider is on this machine is measured; for every other the graph is converted and
scored, and what is said of its speed is that nobody has looked. No torch, no onnx: the table is plain values.
"""

import platform
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import onnxruntime as ort

from models.bundle.manifest import Precision
from models.forge.data.types import ForgeError

__all__ = [
    "CPU",
    "PROFILES",
    "Activation",
    "Picked",
    "Precision",
    "Profile",
    "here",
    "measured_here",
    "pick",
    "profile_named",
]

CPU = "CPUExecutionProvider"
ANY_MACHINE = "any"
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


class Activation(StrEnum):
    """Form of eight-bit activations: x86 multiplies unsigned by signed, ARM signed by signed, TensorRT wants 0 = 0."""

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    SYMMETRIC = "symmetric"


class Profile(NamedTuple):
    """`machine` as `platform.machine()` says it, or "any". `providers` of ONNX Runtime, the wanted one first."""

    name: str
    machine: str
    providers: tuple[str, ...]
    activation: Activation
    precisions: tuple[Precision, ...]


class Picked(NamedTuple):
    """`providers` that are there, in the order wanted; `note` is empty, or one line that tells what is missing."""

    providers: tuple[str, ...]
    note: str


_F32, _S8, _D8 = Precision.FLOAT32, Precision.INT8, Precision.INT8_DYNAMIC
_W8, _F16 = Precision.INT8_WEIGHTS, Precision.FLOAT16
_ON_CPU = (_F32, _S8, _D8, _W8)
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("x86", "x86_64", (CPU,), Activation.UNSIGNED, _ON_CPU),
        Profile("arm64", "aarch64", (CPU,), Activation.SIGNED, _ON_CPU),
        Profile("cuda", ANY_MACHINE, ("CUDAExecutionProvider", CPU), Activation.SYMMETRIC, (_F32, _W8, _F16)),
        Profile(
            "tensorrt",
            ANY_MACHINE,
            ("TensorrtExecutionProvider", "CUDAExecutionProvider", CPU),
            Activation.SYMMETRIC,
            (_F32, _S8, _W8, _F16),
        ),
        Profile("openvino", "x86_64", ("OpenVINOExecutionProvider", CPU), Activation.UNSIGNED, (_F32, _S8, _W8, _F16)),
        Profile("coreml", "aarch64", ("CoreMLExecutionProvider", CPU), Activation.SIGNED, (_F32, _W8, _F16)),
    )
}


def profile_named(name: str) -> Profile:
    """ForgeError, naming what there is, for a target nobody has described; "" is this machine's processor."""
    if not name:
        return here()
    if name not in PROFILES:
        raise ForgeError(f"target {name!r} is not known; try one of {', '.join(PROFILES)}")
    return PROFILES[name]


def here() -> Profile:
    """The profile of the processor we run on."""
    found = _machine(platform.machine())
    for profile in PROFILES.values():
        if profile.machine == found and profile.providers == (CPU,):
            return profile
    raise ForgeError(f"no target describes this processor ({found}); name one with --target: {', '.join(PROFILES)}")


def measured_here(profile: Profile, available: Sequence[str] | None = None) -> bool:
    """Whether its speed can be measured on this machine: right processor, and the first provider is installed."""
    there = ort.get_available_providers() if available is None else available
    return profile.machine in {ANY_MACHINE, _machine(platform.machine())} and profile.providers[0] in there


def pick(wanted: Sequence[str], available: Sequence[str] | None = None) -> Picked:
    """The wanted providers that are installed, the processor last whatever is wanted; and what is said of the rest."""
    there = ort.get_available_providers() if available is None else available
    kept = tuple(dict.fromkeys([name for name in wanted if name in there] + [CPU]))
    missing = [name for name in wanted if name not in kept]
    if not missing:
        return Picked(kept, "")
    return Picked(kept, f"{', '.join(missing)} not installed here: it runs on {kept[0]}")


def _machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())
