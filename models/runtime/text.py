"""Texts as samples: UTF-8 bytes of a fixed number, zeros behind the end; both halves read them here alone.

Rule: a text is refused, with one line that says why, rather than changed: empty, too long, no UTF-8, or with a zero.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from models.bundle.manifest import InputSpec, is_text_input
from models.runtime.runner import SampleError
from wire.http.oip import BYTES_DATATYPE, InferRequest, TensorSpec, validate_inputs

Bytes = npt.NDArray[np.uint8]


def encode_text(text: str | bytes, spec: InputSpec) -> Bytes:
    """Encode a text as a sample of this input, `[spec.shape]`. SampleError if the input takes none, or not this one."""
    if not is_text_input(spec):
        raise SampleError(f"{spec.name}: takes numbers, no text")
    try:
        raw = text.encode() if isinstance(text, str) else text
        empty = not raw.decode().strip()  # of all white space that Unicode knows, as `decode_text` sees it
    except UnicodeError:
        raise SampleError(f"{spec.name}: not UTF-8") from None
    most = spec.shape[0]
    if empty or len(raw) > most or b"\0" in raw:
        why = f"has {len(raw)} bytes, the model takes 1 to {most}" if not empty and len(raw) > most else "is empty"
        raise SampleError(f"{spec.name}: the text {'holds a zero' if 0 in raw else why}")
    return np.frombuffer(raw.ljust(most, b"\0"), np.uint8)


def decode_text(codes: npt.NDArray[np.generic]) -> str:
    """Decode the text of a sample, or of its field as it arrived. SampleError if it is none."""
    raw = codes.astype(np.uint8).tobytes().rstrip(b"\0")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise SampleError("text: not UTF-8") from None
    if not text.strip() or "\0" in text:
        raise SampleError("text: holds a zero" if text.strip() else "text: is empty")
    return text


def describe_input(spec: InputSpec) -> TensorSpec:
    """Describe an input to callers, with a free batch and the range of its values.

    A text model takes texts, not their bytes as numbers.
    """
    if is_text_input(spec):
        return TensorSpec(spec.name, BYTES_DATATYPE, (-1,))
    known = math.isfinite(spec.low) and math.isfinite(spec.high)
    told = {"low": spec.low, "high": spec.high} if known else None
    return TensorSpec(spec.name, spec.dtype.value, (-1, *spec.shape), told)


def parse_samples(asked: InferRequest, spec: InputSpec, max_batch: int) -> npt.NDArray[Any]:
    """Return the samples of a request, `[n, *spec.shape]`: OipError if they are not what `describe_input` says.

    SampleError for a text that is refused.
    """
    found = validate_inputs(asked, (describe_input(spec),), max_batch)[spec.name]
    return np.stack([encode_text(each, spec) for each in found]) if is_text_input(spec) else found
