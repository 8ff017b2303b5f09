"""Compatibility check: may a bundle run on this device and take the place of the model that serves.

By agent version, runtime, opset and processor: asked before a byte of the bundle is downloaded, and again of its own
manifest. By input, kind and labels: asked of its manifest, beside that of the committed model.
Rule: values in, verdict out. What cannot be read or compared is for a newer agent and is refused: nothing is guessed.
A bundle that does not fit is REJECTED, not FAILED: nothing was tried, nothing is quarantined.
"""

import platform
import re
from collections.abc import Mapping

import msgspec

from models.bundle.manifest import InputSpec, Manifest, TargetPlatform
from models.signing.roles import INTERFACE_FIELD
from models.update.trust import Refusal
from models.verification.onnx_operators import ONNX, OPSETS
from wire.protocol.rollout import InstallFailure

ANY_PROCESSOR = "any"
RUNTIMES = frozenset({"onnxruntime", "none"})
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8l": "aarch64"}
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}")
_SHOWN_CHARS = 40


class DeviceHost(msgspec.Struct, frozen=True):
    """Properties of a device: agent version, processor (as `platform.machine()` says it), runtimes it has."""

    agent: str
    machine: str
    runtimes: frozenset[str] = RUNTIMES


class BundleRequirements(msgspec.Struct, frozen=True):
    """Requirements that the publisher signs beside the file: oldest agent version, and the platform of the graph."""

    min_agent: str
    target: TargetPlatform


def read_host(agent: str) -> DeviceHost:
    """Read the properties of the machine that this process runs on. `agent`: version of the installed package."""
    return DeviceHost(agent, platform.machine())


def check_custom(custom: Mapping[str, object], host: DeviceHost) -> Refusal | None:
    """Check the `custom` field of a target in signed metadata, as `check_requirements`.

    Unreadable = made for a newer agent.
    """
    try:
        return check_requirements(msgspec.convert(dict(custom), BundleRequirements), host)
    except msgspec.ValidationError as error:
        return _refuse_incompatible(f"cannot be read by this agent: {error}")


def check_requirements(needs: BundleRequirements, host: DeviceHost) -> Refusal | None:
    """Check requirements against a device: None if the bundle may be tried here, else a Refusal.

    The refusal is INCOMPATIBLE, with one line that says what is missing.
    """
    least, ours = _parse_version(needs.min_agent), _parse_version(host.agent, prefix=True)
    if least is None:
        return _refuse_incompatible(f"needs an agent of version {_quote_text(needs.min_agent)}, which is no version")
    if ours is None or ours < least:
        return _refuse_incompatible(f"needs agent {needs.min_agent} or newer, this is {_quote_text(host.agent)}")
    return check_target(needs.target, host)


def check_target(target: TargetPlatform, host: DeviceHost) -> Refusal | None:
    """Check the platform that a manifest names against a device, as `check_requirements` without the agent version."""
    if target.runtime not in host.runtimes:
        return _refuse_incompatible(f"needs the runtime {_quote_text(target.runtime)}")
    if target.opset >= OPSETS[ONNX].stop:
        return _refuse_incompatible(
            f"needs operators of opset {target.opset}, this agent knows {OPSETS[ONNX].stop - 1}"
        )
    if target.machine != ANY_PROCESSOR and _normalise_machine(target.machine) != _normalise_machine(host.machine):
        return _refuse_incompatible(f"was made for {_quote_text(target.machine)}, this is {_quote_text(host.machine)}")
    return None


def check_interface(candidate: Manifest, committed: Manifest) -> Refusal | None:
    """Check that callers of the committed model can call the candidate: the same kind, labels, outputs and input.

    None if they can. Every value that the committed model takes must be one that the candidate takes; it may take more.
    """
    if candidate.kind is not committed.kind:
        return _refuse_interface(f"is a {candidate.kind}, {committed.model} is a {committed.kind}")
    if candidate.labels != committed.labels or candidate.outputs != committed.outputs:
        return _refuse_interface(f"has other labels or outputs than {committed.model}")
    new, old = candidate.input, committed.input
    alike = (new.name, new.dtype, new.shape) == (old.name, old.dtype, old.shape)
    if not (alike and new.low <= old.low and new.high >= old.high):
        return _refuse_interface(f"takes {_describe_input(new)}, {committed.model} takes {_describe_input(old)}")
    return None


def _describe_input(spec: InputSpec) -> str:
    return f"{_quote_text(spec.name)} {spec.dtype}{list(spec.shape)} {spec.low:g}..{spec.high:g}"


def _refuse_interface(detail: str) -> Refusal:
    return _refuse_incompatible(f"{detail}: its publisher did not sign that change (`{INTERFACE_FIELD}`)")


def _parse_version(text: str, *, prefix: bool = False) -> tuple[int, ...] | None:
    """Parse a version into its numbers without trailing zeros, so that 1.0 equals 1; None if it is none.

    `prefix`: what follows the numbers ("rc1", ".dev3") is left out instead of refused.
    """
    found = _VERSION.match(text) if prefix else _VERSION.fullmatch(text)
    if found is None:
        return None
    numbers = [int(part) for part in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _normalise_machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())


def _refuse_incompatible(detail: str) -> Refusal:
    return Refusal(InstallFailure.INCOMPATIBLE, detail)


def _quote_text(text: str) -> str:
    return ascii(text[:_SHOWN_CHARS])
