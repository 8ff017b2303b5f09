"""Compression baselines: bytes of one raw sample as it is, by zlib, PNG-like bytes, JPEG and WebP.

Rule: sizes are of whole files that a usual decoder opens, headers included; JPEG and WebP only where Pillow is there.
"""

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
_MOST = 500
_QUALITIES = (("JPEG", 75), ("JPEG", 50), ("WEBP", 50))


class CompressionBaseline(NamedTuple):
    """Mean bytes of one sample compressed by the method `name`."""

    name: str
    mean_bytes: float


def measure_baselines(x: Values) -> tuple[CompressionBaseline, ...]:
    """Mean sizes of samples `[n, *shape]`, over the first 500: raw, zlib, and image files for images in 0..1."""
    some = x[:_MOST]
    packed = np.mean([len(zlib.compress(np.ascontiguousarray(one).tobytes(), 9)) for one in some])
    found = [CompressionBaseline("raw", float(some[0].nbytes)), CompressionBaseline("zlib -9", float(packed))]
    if is_picture(x):
        eight = [to_pixel_bytes(one) for one in some]
        found.append(CompressionBaseline("8 bits a pixel", float(eight[0].nbytes)))
        found += _measure_image_files(eight)
    return tuple(found)


def is_picture(x: Values) -> bool:
    """True for images `[n, 1 or 3, height, width]` of floats in 0..1, four pixels or more a side."""
    fits = x.ndim == 4 and x.shape[1] in {1, 3} and min(x.shape[2:]) >= 4
    return bool(fits and x.dtype.kind == "f" and x.min() >= 0 and x.max() <= 1)


def to_pixel_bytes(picture: Values) -> npt.NDArray[np.uint8]:
    """Image `[channels, height, width]` in 0..1 -> uint8 `[height, width]` or `[height, width, 3]` in 0..255."""
    turned = np.clip(np.rint(picture * 255), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.ascontiguousarray(turned[:, :, 0] if turned.shape[2] == 1 else turned)


def encode_png(picture: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of a uint8 image `[height, width]` or `[height, width, 3]` (ISO/IEC 15948), without Pillow."""
    height, width = picture.shape[:2]
    colour = 0 if picture.ndim == 2 else 2
    rows = b"".join(b"\0" + row.tobytes() for row in picture)
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(name, data) for name, data in parts)


def _png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _measure_image_files(pictures: Sequence[npt.NDArray[np.uint8]]) -> list[CompressionBaseline]:
    try:
        from PIL import Image  # noqa: PLC0415 - not a dependency: a report without it has fewer rows
    except ImportError:
        return []
    found = []
    for kind, quality in _QUALITIES:
        sizes = []
        for picture in pictures:
            file = io.BytesIO()
            try:
                Image.fromarray(picture).save(file, kind, quality=quality)
            except (OSError, KeyError):  # built without this kind
                break
            sizes.append(file.tell())
        found += [CompressionBaseline(f"{kind} quality {quality}", float(np.mean(sizes)))] if sizes else []
    return found
