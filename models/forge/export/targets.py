"""Device profiles: per target its ONNX Runtime execution providers, activation type and the precisions that are tried.

Rule: only a profile whose first provider is on this machine is timed; for every other the graph is converted and
scored, and its speed is reported as unknown. No torch, no onnx: the table is plain values.
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
    "ActivationType",
    "Precision",
    "ProviderSelection",
    "TargetProfile",
    "find_profile",
    "is_measurable",
    "local_profile",
    "pick_providers",
]

CPU = "CPUExecutionProvider"
ANY_MACHINE = "any"
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


class ActivationType(StrEnum):
    """Form of eight-bit activations that a processor multiplies fastest.

    x86 multiplies unsigned by signed, ARM signed by signed; TensorRT needs zero at code 0.
    """

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    SYMMETRIC = "symmetric"


class TargetProfile(NamedTuple):
    """Execution environment of a target.

    `machine` as `platform.machine()` names it, or "any". `providers` of ONNX Runtime, the preferred one first.
    """

    name: str
    machine: str
    providers: tuple[str, ...]
    activation: ActivationType
    precisions: tuple[Precision, ...]


class ProviderSelection(NamedTuple):
    """`providers` that are installed, in the preferred order.

    `note` is empty, or one line that names what is missing.
    """

    providers: tuple[str, ...]
    note: str


_F32, _S8, _D8 = Precision.FLOAT32, Precision.INT8, Precision.INT8_DYNAMIC
_W8, _F16 = Precision.INT8_WEIGHTS, Precision.FLOAT16
_ON_CPU = (_F32, _S8, _D8, _W8)
PROFILES = {
    profile.name: profile
    for profile in (
        TargetProfile("x86", "x86_64", (CPU,), ActivationType.UNSIGNED, _ON_CPU),
        TargetProfile("arm64", "aarch64", (CPU,), ActivationType.SIGNED, _ON_CPU),
        TargetProfile("cuda", ANY_MACHINE, ("CUDAExecutionProvider", CPU), ActivationType.SYMMETRIC, (_F32, _W8, _F16)),
        TargetProfile(
            "tensorrt",
            ANY_MACHINE,
            ("TensorrtExecutionProvider", "CUDAExecutionProvider", CPU),
            ActivationType.SYMMETRIC,
            (_F32, _S8, _W8, _F16),
        ),
        TargetProfile(
            "openvino", "x86_64", ("OpenVINOExecutionProvider", CPU), ActivationType.UNSIGNED, (_F32, _S8, _W8, _F16)
        ),
        TargetProfile("coreml", "aarch64", ("CoreMLExecutionProvider", CPU), ActivationType.SIGNED, (_F32, _W8, _F16)),
    )
}


def find_profile(name: str) -> TargetProfile:
    """Profile of a target by name; "" is this machine's processor. Raises ForgeError, listing the names, if unknown."""
    if not name:
        return local_profile()
    if name not in PROFILES:
        raise ForgeError(f"target {name!r} is not known; try one of {', '.join(PROFILES)}")
    return PROFILES[name]


def local_profile() -> TargetProfile:
    """The profile of this machine's processor. Raises ForgeError if none describes it."""
    found = _normalise_machine(platform.machine())
    for profile in PROFILES.values():
        if profile.machine == found and profile.providers == (CPU,):
            return profile
    raise ForgeError(f"no target describes this processor ({found}); name one with --target: {', '.join(PROFILES)}")


def is_measurable(profile: TargetProfile, available: Sequence[str] | None = None) -> bool:
    """Whether a profile's speed can be measured here: the processor fits, and the first provider is installed."""
    there = ort.get_available_providers() if available is None else available
    return profile.machine in {ANY_MACHINE, _normalise_machine(platform.machine())} and profile.providers[0] in there


def pick_providers(wanted: Sequence[str], available: Sequence[str] | None = None) -> ProviderSelection:
    """The preferred providers that are installed, the CPU always last, and a note about the rest."""
    there = ort.get_available_providers() if available is None else available
    kept = tuple(dict.fromkeys([name for name in wanted if name in there] + [CPU]))
    missing = [name for name in wanted if name not in kept]
    if not missing:
        return ProviderSelection(kept, "")
    return ProviderSelection(kept, f"{', '.join(missing)} not installed here: it runs on {kept[0]}")


def _normalise_machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())
