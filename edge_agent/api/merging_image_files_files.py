"""A sample from a file: `.npy` in the model's shape and type, or `.png` scaled into the model's range of values.

Law: the header is judged before the data is read, so a file cannot make the agent allocate more than one sample.
"""

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from edge_agent.api.merging_image_files_png import PngError, decode
from models.bundle.manifest import InputSpec
from models.runtime.codec import NUMPY_DTYPES
from models.runtime.runner import SampleError
from wire.protocol.messages import DType

Sample = npt.NDArray[Any]
HEADER_ROOM_BYTES = 65536
SUFFIXES = (".npy", ".png")


def sample_of(name: str, data: bytes, spec: InputSpec) -> Sample:
    """One sample of the model's shape and type. SampleError says what is wrong; values are left to the runner."""
    if name.lower().endswith(".npy"):
        return _from_npy(data, spec)
    if name.lower().endswith(".png"):
        return _from_png(data, spec)
    raise SampleError(f"only {' and '.join(SUFFIXES)} files are read")


def max_file_bytes(spec: InputSpec) -> int:
    """No sound sample is larger: its values at 8 bytes, twice, and room for headers."""
    return math.prod(spec.shape) * 16 + HEADER_ROOM_BYTES


def _from_npy(data: bytes, spec: InputSpec) -> Sample:
    stream = io.BytesIO(data)
    dtype = NUMPY_DTYPES[spec.dtype]
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, found = read(stream)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, UnicodeDecodeError):
        raise SampleError("this is no sound .npy file") from None
    if found != dtype or shape != spec.shape:
        raise SampleError(f"{found} {list(shape)}, the model takes {dtype} {list(spec.shape)}")
    body = data[stream.tell() :]
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise SampleError("the .npy file is cut short, or something follows its data")
    return np.ascontiguousarray(np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C"))


def _from_png(data: bytes, spec: InputSpec) -> Sample:
    """0..255 becomes low..high of the model's input (as it is, for UINT8)."""
    height, width, channels, first = _layout(spec.shape)
    try:
        image = decode(data, (height, width, channels))
    except PngError as error:
        raise SampleError(str(error)) from None
    pixels: Sample = image.transpose(2, 0, 1) if first else image
    pixels = np.ascontiguousarray(pixels).reshape(spec.shape)
    if spec.dtype is DType.UINT8:
        return pixels
    if spec.dtype is not DType.FP32:
        raise SampleError(f"a PNG cannot become {spec.dtype}: send .npy")
    scaled = spec.low + pixels.astype(np.float32) * np.float32((spec.high - spec.low) / 255)
    clipped: Sample = np.clip(scaled, spec.low, spec.high, dtype=np.float32)
    return clipped


def _layout(shape: tuple[int, ...]) -> tuple[int, int, int, bool]:
    """Height, width, channels, and whether channels come first, of an image model's input."""
    if len(shape) == 2:
        return shape[0], shape[1], 1, False
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2], shape[0], True
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[0], shape[1], shape[2], False
    raise SampleError(f"the model takes {list(shape)}, which is no grey or RGB image: send .npy")
