"""Socket protocol between the supervisor and its rank processes: typed msgpack messages, raw arrays behind them.

Frame: `<IQ` (bytes of the message, bytes of the body), message, body. Rule: nothing is pickled; a message or array of
any other form, or above `MAX_BYTES`, ends the connection.
"""

import math
import struct
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from models.bundle.manifest import BundleError

MAX_BYTES = 1 << 31
_SMALL = 1 << 16  # a body up to this size is sent with its message, in one piece
_LENGTHS = struct.Struct("<IQ")  # bytes of the message, bytes of the body
Array = npt.NDArray[np.generic]


class RankLink(Protocol):
    """Connection of a supervisor and a rank: a socket, or TLS over one (`tls_link.TlsLink`)."""

    def fileno(self) -> int: ...

    def settimeout(self, value: float | None, /) -> None: ...

    def sendall(self, data: bytes | memoryview, /) -> None: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def dup(self) -> "RankLink":
        """The same connection with a time limit of its own: one thread sends by it while another one receives."""
        ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class PipeError(OSError):
    """The other side is gone, is silent for too long, or sent a malformed message."""


class ArrayForm(msgspec.Struct, frozen=True):
    """Type and shape of an array in the body of a message."""

    dtype: str
    shape: tuple[int, ...]


class RankConfig(msgspec.Struct, frozen=True, tag="charter"):
    """Start-up configuration of a rank; the graphs' JSON is the body, the weights are inherited files.

    `rank`: counted within a stage first; `store`: where torch.distributed meets, a file or `tcp://host:port`, which
    rank 0 holds; `timeout_s`: of collectives.
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


class BatchStep(msgspec.Struct, frozen=True, tag="step"):
    """Run one batch of one graph; the input columns are sent to the ranks of the first stage only.

    `pieces`: microbatches that it is divided into, so that the stages of a pipeline compute at the same time.
    """

    number: int
    graph: str
    batch: int
    forms: tuple[ArrayForm, ...] = ()
    pieces: int = 1


class PingRequest(msgspec.Struct, frozen=True, tag="ping"):
    """Liveness check; answered by `PingReply`."""

    number: int


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """A rank has loaded its weights.

    `shard_bytes`: size of its weights; `private_bytes`: memory of the process above that of its imports.
    """

    shard_bytes: int
    private_bytes: int
    seconds: float


class StepDone(msgspec.Struct, frozen=True, tag="done"):
    """A batch is computed; the last stage's first rank sends the outputs as body.

    `meetings`: collectives so far, by kind.
    """

    number: int
    seconds: float
    forms: tuple[ArrayForm, ...] = ()
    meetings: dict[str, int] = {}


class PingReply(msgspec.Struct, frozen=True, tag="pong"):
    """Answer to a `PingRequest`, with its number."""

    number: int


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The last message of a rank that failed. `bundle`: the bundle is at fault, so that a retry would fail too."""

    why: str
    bundle: bool = False


class JoinOrder(msgspec.Struct, frozen=True, tag="join"):
    """First message to a rank of another machine: where its supervisor listens, and what proves that both are right.

    `certificate`: SHA-256 of the supervisor's TLS certificate (DER); `token`: of this generation, for its ranks alone.
    `address`: of the rank's machine, where the other ranks reach it.
    """

    rank: int
    generation: int
    host: str
    port: int
    certificate: bytes
    token: bytes
    address: str = ""


class RankJoined(msgspec.Struct, frozen=True, tag="joined"):
    """First message of a rank that connected. `store`: where it listens for torch.distributed, "" unless rank 0."""

    token: bytes
    rank: int
    pid: int
    store: str = ""


RankMessage = (
    RankConfig | BatchStep | PingRequest | RankReady | StepDone | PingReply | RankFailed | JoinOrder | RankJoined
)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RankMessage)


def send_message(
    link: RankLink, word: RankMessage, body: Sequence[bytes | memoryview] = (), limit_s: float | None = None
) -> None:
    """Send a message with its body.

    PipeError if the other side is gone or does not read it within `limit_s` seconds (None = without limit).
    """
    head = _encoder.encode(word)
    size = sum(memoryview(part).nbytes for part in body)
    pieces: Sequence[bytes | memoryview] = (_LENGTHS.pack(len(head), size) + head, *body)
    if size <= _SMALL:
        pieces = (b"".join(pieces),)
    try:
        link.settimeout(limit_s)
        for piece in pieces:
            link.sendall(piece)
    except OSError as error:
        raise PipeError(f"gone ({error.strerror or type(error).__name__})") from None


def receive_message(
    link: RankLink, until: float = math.inf, max_bytes: int = MAX_BYTES
) -> tuple[RankMessage, bytearray]:
    """Receive the next message and its body, by `until` on the monotonic clock. PipeError otherwise.

    `max_bytes`: of each of the two; nothing is allocated for more.
    """
    head_bytes, body_bytes = _LENGTHS.unpack(_receive_exactly(link, _LENGTHS.size, until))
    if head_bytes > max_bytes or body_bytes > max_bytes:
        raise PipeError("malformed message")
    head = _receive_exactly(link, head_bytes, until)
    try:
        word: RankMessage = _decoder.decode(head)
    except (msgspec.DecodeError, RecursionError):
        raise PipeError("malformed message") from None
    return word, _receive_exactly(link, body_bytes, until)


def split_batch(batch: int, pieces: int) -> tuple[int, ...]:
    """Sizes of `pieces` microbatches of a batch, the larger first; no more pieces than rows."""
    count = max(1, min(pieces, batch))
    each, more = divmod(batch, count)
    return tuple(each + (at < more) for at in range(count))


def describe_arrays(arrays: Sequence[Array]) -> tuple[ArrayForm, ...]:
    """Types and shapes of arrays, in order."""
    return tuple(ArrayForm(array.dtype.name, array.shape) for array in arrays)


def pack_arrays(arrays: Sequence[Array]) -> list[memoryview]:
    """The raw bytes of arrays, without a copy where they are contiguous."""
    return [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]


def parse_arrays(forms: Sequence[ArrayForm], body: bytearray) -> list[npt.NDArray[Any]]:
    """Arrays of a body, without a copy. PipeError unless its bytes are exactly these arrays."""
    found: list[npt.NDArray[Any]] = []
    at = 0
    try:
        for form in forms:
            dtype = np.dtype(form.dtype)
            size = math.prod(form.shape)
            found.append(np.frombuffer(body, dtype, size, at).reshape(form.shape))
            at += size * dtype.itemsize
    except (TypeError, ValueError) as error:
        raise PipeError(f"malformed message ({error})") from None
    if at != len(body):
        raise PipeError("malformed message")
    return found


def _receive_exactly(link: RankLink, size: int, until: float) -> bytearray:
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


def make_failure(error: BaseException) -> RankFailed:
    """The last message of a rank that ends with this error."""
    line = " ".join(str(error).split())[:300] or type(error).__name__
    return RankFailed(line, isinstance(error, BundleError))
