"""May a bundle run on this device at all? Asked before a byte of it is downloaded, and again of its own manifest.

Law: values in, verdict out. What cannot be read or compared is for a newer agent and is refused: nothing is guessed.
A bundle that does not fit is REJECTED, not FAILED: nothing was tried, nothing is quarantined. SECURITY case 27.
"""

import platform
import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from models.bundle.manifest import Target
from models.update.trust import Refusal
from models.verification.operators import ONNX, OPSETS
from wire.protocol.rollout import Failure

ANY = "any"
RUNTIMES = frozenset({"onnxruntime", "none"})
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "armv8l": "aarch64"}
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}")
_SHOWN_CHARS = 40


class Ending(StrEnum):
    """How an update that did not happen ends. REJECTED: it was not for this device, and says nothing of the bundle."""

    FAILED = "failed"
    REJECTED = "rejected"


class Host(msgspec.Struct, frozen=True):
    """A device: version of the agent, kind of processor (as `platform.machine()` says it), runtimes it has."""

    agent: str
    machine: str
    runtimes: frozenset[str] = RUNTIMES


class Needs(msgspec.Struct, frozen=True):
    """What the publisher says beside the file: the oldest agent that may run it, and what the graph was made for."""

    min_agent: str
    target: Target


def this_host(agent: str) -> Host:
    """The one we are on. `agent`: version of the installed package."""
    return Host(agent, platform.machine())


def judge_custom(custom: Mapping[str, object], host: Host) -> Refusal | None:
    """As `judge_fit`, for the `custom` of a target in signed metadata. Unreadable = made for a newer agent."""
    try:
        return judge_fit(msgspec.convert(dict(custom), Needs), host)
    except msgspec.ValidationError as error:
        return _no(f"cannot be read by this agent: {error}")


def judge_fit(needs: Needs, host: Host) -> Refusal | None:
    """None if it may be tried here. INCOMPATIBLE, with one line that says what is missing, if not."""
    least, ours = _version(needs.min_agent), _version(host.agent, prefix=True)
    if least is None:
        return _no(f"needs an agent of version {_shown(needs.min_agent)}, which is no version")
    if ours is None or ours < least:
        return _no(f"needs agent {needs.min_agent} or newer, this is {_shown(host.agent)}")
    return judge_target(needs.target, host)


def judge_target(target: Target, host: Host) -> Refusal | None:
    """As `judge_fit`, for what a manifest says of its graph."""
    if target.runtime not in host.runtimes:
        return _no(f"needs the runtime {_shown(target.runtime)}")
    if target.opset >= OPSETS[ONNX].stop:
        return _no(f"needs operators of opset {target.opset}, this agent knows {OPSETS[ONNX].stop - 1}")
    if target.machine != ANY and _machine(target.machine) != _machine(host.machine):
        return _no(f"was made for {_shown(target.machine)}, this is {_shown(host.machine)}")
    return None


def ending(failure: Failure) -> Ending:
    return Ending.REJECTED if failure is Failure.INCOMPATIBLE else Ending.FAILED


def _version(text: str, *, prefix: bool = False) -> tuple[int, ...] | None:
    """Numbers without trailing zeros, so that 1.0 equals 1. `prefix`: what follows ("rc1", ".dev3") is left out."""
    found = _VERSION.match(text) if prefix else _VERSION.fullmatch(text)
    if found is None:
        return None
    numbers = [int(part) for part in found[0].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())


def _no(detail: str) -> Refusal:
    return Refusal(Failure.INCOMPATIBLE, detail)


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN_CHARS])
