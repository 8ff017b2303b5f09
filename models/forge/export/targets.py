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
    """Form of eight-bit activations that a processor multiplies fastest.

    x86 multiplies unsigned by signed, ARM signed by signed; TensorRT needs zero at code 0.
    """

    UNSIGNED = "unsigned"
    SIGNED = "signed"
    SYMMETRIC = "symmetric"


class Profile(NamedTuple):
    """Execution environment of a target.

    `machine` as `platform.machine()` names it, or "any". `providers` of ONNX Runtime, the preferred one first.
    """

    name: str
    machine: str
    providers: tuple[str, ...]
    activation: Activation
    precisions: tuple[Precision, ...]


class Picked(NamedTuple):
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
    """Profile of a target by name; "" is this machine's processor. Raises ForgeError, listing the names, if unknown."""
    if not name:
        return here()
    if name not in PROFILES:
        raise ForgeError(f"target {name!r} is not known; try one of {', '.join(PROFILES)}")
    return PROFILES[name]


def here() -> Profile:
    """The profile of this machine's processor. Raises ForgeError if none describes it."""
    found = _machine(platform.machine())
    for profile in PROFILES.values():
        if profile.machine == found and profile.providers == (CPU,):
            return profile
    raise ForgeError(f"no target describes this processor ({found}); name one with --target: {', '.join(PROFILES)}")


def measured_here(profile: Profile, available: Sequence[str] | None = None) -> bool:
    """Whether a profile's speed can be measured here: the processor fits, and the first provider is installed."""
    there = ort.get_available_providers() if available is None else available
    return profile.machine in {ANY_MACHINE, _machine(platform.machine())} and profile.providers[0] in there


def pick(wanted: Sequence[str], available: Sequence[str] | None = None) -> Picked:
    """The preferred providers that are installed, the CPU always last, and a note about the rest."""
    there = ort.get_available_providers() if available is None else available
    kept = tuple(dict.fromkeys([name for name in wanted if name in there] + [CPU]))
    missing = [name for name in wanted if name not in kept]
    if not missing:
        return Picked(kept, "")
    return Picked(kept, f"{', '.join(missing)} not installed here: it runs on {kept[0]}")


def _machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())
