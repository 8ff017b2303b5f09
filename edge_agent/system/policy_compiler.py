"""Compiling of policy documents in a process of its own, so that a running agent holds neither parser nor schema.

Rule: what does not come back compiled is an error, however the process ended: nothing leaves by half a policy.
"""

import subprocess
import sys
from collections.abc import Sequence

import msgspec

from policies.model.policy import CompiledLayer
from wire.process.files import PACKAGES_FOLDER

WORKER = "edge_agent.system.policy_worker"
_TIMEOUT_S = 120.0  # a device's slowest minute; a document of the greatest length takes a second


class CompiledDocument(msgspec.Struct, frozen=True):
    """What became of one document: its layer, or the line that says what is wrong with it."""

    layer: CompiledLayer | None = None
    error: str = ""


def compile_documents(texts: Sequence[bytes], worker: str = WORKER) -> tuple[CompiledDocument, ...]:
    """Compile policy documents, TOML in UTF-8, in this order. Blocks for the start of a process. Never raises."""
    if not texts:
        return ()
    words = [sys.executable, "-P", "-m", worker]
    try:
        done = subprocess.run(
            words, input=msgspec.msgpack.encode(texts), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=PACKAGES_FOLDER, timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
        found = msgspec.msgpack.decode(done.stdout, type=tuple[CompiledDocument, ...])
    except (OSError, subprocess.TimeoutExpired) as error:
        return _fail_all(texts, f"the process that compiles it: {error}")
    except msgspec.DecodeError:
        return _fail_all(texts, f"the process that compiles it ended with {done.returncode}")
    whole = len(found) == len(texts) and all(each.layer or each.error for each in found)
    return found if whole else _fail_all(texts, "the process that compiles it left some out")


def _fail_all(texts: Sequence[bytes], why: str) -> tuple[CompiledDocument, ...]:
    return tuple(CompiledDocument(error=why) for _ in texts)
