"""What a gang's supervisor and its ranks say to each other: small typed heads, raw arrays behind them, over one socket.

Rule: never pickled. A head or an array of another form than this file's, or larger than allowed, ends the connection.
"""

import math
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle.manifest import BundleError

MAX_BYTES = 1 << 31
_LENGTHS = struct.Struct("<IQ")  # of the head, of everything behind it
Array = npt.NDArray[np.generic]


class PipeError(OSError):
    """The other side is gone, is silent for too long, or speaks nonsense."""


class Form(msgspec.Struct, frozen=True):
    """An array behind the head."""

    dtype: str
    shape: tuple[int, ...]


class Charter(msgspec.Struct, frozen=True, tag="charter"):
    """What a rank is told at its birth; the graphs' JSON follows as bytes, the weights are open files.

    `rank` counts the ranks of a stage first; `store`: a file where all meet.
    """

    generation: int
    rank: int
    tensor: int
    pipeline: int
    store: str
    backend: str
    device: str
    timeout_s: float
    threads: int = 1
    half: bool = False  # weights and activations in bfloat16 (cuda alone)


class Step(msgspec.Struct, frozen=True, tag="step"):
    """One batch of one graph. The columns go to the ranks of the first stage alone."""

    ticket: int
    graph: str
    batch: int
    forms: tuple[Form, ...] = ()


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    number: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """`shard_bytes`: of its weights; `private_bytes`: of the process above what its imports alone took."""

    shard_bytes: int
    private_bytes: int
    seconds: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The last stage's first rank has the outputs behind it. `meetings`: collectives so far, by kind."""

    ticket: int
    seconds: float
    forms: tuple[Form, ...] = ()
    meetings: dict[str, int] = {}


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    number: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """`bundle`: it is the bundle's fault, and another try would end the same."""

    why: str
    bundle: bool = False


Word = Charter | Step | Ping | Ready | Done | Pong | Failed
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Word)


def send(link: socket.socket, word: Word, body: Sequence[bytes | memoryview] = ()) -> None:
    """PipeError if the other side is gone or takes nothing for as long as the socket's timeout."""
    head = _encoder.encode(word)
    size = sum(memoryview(part).nbytes for part in body)
    try:
        link.sendall(_LENGTHS.pack(len(head), size) + head)
        for part in body:
            link.sendall(part)
    except OSError as error:
        raise PipeError(f"gone ({error.strerror or type(error).__name__})") from None


def receive(link: socket.socket, until: float = math.inf) -> tuple[Word, bytearray]:
    """The next word and what is behind it, by `until` on the monotonic clock. PipeError otherwise."""
    head_bytes, body_bytes = _LENGTHS.unpack(_exactly(link, _LENGTHS.size, until))
    if head_bytes > MAX_BYTES or body_bytes > MAX_BYTES:
        raise PipeError("it speaks nonsense")
    head = _exactly(link, head_bytes, until)
    try:
        word: Word = _decoder.decode(head)
    except msgspec.DecodeError:
        raise PipeError("it speaks nonsense") from None
    return word, _exactly(link, body_bytes, until)


def forms_of(arrays: Sequence[Array]) -> tuple[Form, ...]:
    return tuple(Form(array.dtype.name, array.shape) for array in arrays)


def bytes_of(arrays: Sequence[Array]) -> list[memoryview]:
    return [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]


def arrays_of(forms: Sequence[Form], body: bytearray) -> list[npt.NDArray[Any]]:
    """PipeError unless the bytes are these arrays and nothing more."""
    found: list[npt.NDArray[Any]] = []
    at = 0
    try:
        for form in forms:
            dtype = np.dtype(form.dtype)
            size = math.prod(form.shape)
            found.append(np.frombuffer(body, dtype, size, at).reshape(form.shape))
            at += size * dtype.itemsize
    except (TypeError, ValueError) as error:
        raise PipeError(f"it speaks nonsense ({error})") from None
    if at != len(body):
        raise PipeError("it speaks nonsense")
    return found


def _exactly(link: socket.socket, size: int, until: float) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            link.settimeout(None if math.isinf(until) else max(0.001, until - time.monotonic()))
            count = link.recv_into(view)
        except TimeoutError:
            raise PipeError("silent") from None
        except OSError as error:
            raise PipeError(f"gone ({error.strerror})") from None
        if not count:
            raise PipeError("gone")
        view = view[count:]
    return data


def fault(error: BaseException) -> Failed:
    """What a rank says before it ends."""
    line = " ".join(str(error).split())[:300] or type(error).__name__
    return Failed(line, isinstance(error, BundleError))
