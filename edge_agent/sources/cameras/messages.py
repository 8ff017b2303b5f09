"""Messages between the agent and the process that decodes one camera.

The agent writes one line of JSON, the job, and then one byte for each picture that it has room for. The process writes
frames: four bytes of length (big endian) and so many bytes of MessagePack.
"""

from typing import Any

import msgspec

from models.bundle.manifest import MAX_ELEMENTS
from wire.protocol.messages import TensorDType

ROOM = b"+"  # one picture more may be sent
MAX_MESSAGE_BYTES = 4 * MAX_ELEMENTS + 4096
LENGTH_BYTES = 4


class CameraJob(msgspec.Struct, frozen=True):
    """What to decode. `url`: with user and password in it; it is seen by the process and its camera alone.

    `format`: of the libraries, "" to find out. `frames_per_s`: at most so many pictures are looked at. `motion`: share
    of the picture that has to change, 0: none. `preparation`: as in a manifest. `timeout_s`: of opening and of reading.
    """

    url: str
    format: str
    options: dict[str, str]
    frames_per_s: float
    motion: float
    preparation: dict[str, Any]
    dtype: TensorDType
    timeout_s: float


class CameraCounts(msgspec.Struct, tag="counts"):
    """What was received since the last such message and not sent, by reason of `source.DropReason`."""

    dropped: dict[str, int]


class CameraPicture(msgspec.Struct, frozen=True, tag="picture"):
    """A prepared sample: the bytes of an array of the job's type and the preparation's shape."""

    sample: bytes


class CameraSize(msgspec.Struct, frozen=True, tag="size"):
    """The camera's pictures have this size from now on; told of the first, and of every change."""

    width: int
    height: int


class CameraEnd(msgspec.Struct, frozen=True, tag="end"):
    """The process ends. `reason`: a fixed word, or the name of the libraries' error."""

    reason: str


CameraMessage = CameraCounts | CameraPicture | CameraSize | CameraEnd
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CameraMessage)


def encode_camera_message(message: CameraMessage) -> bytes:
    """A message with its length before it."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_camera_message(body: bytes) -> CameraMessage:
    """A message from its body. ValueError if it is none."""
    try:
        message: CameraMessage = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return message
