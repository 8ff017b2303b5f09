"""Reader of picture files (JPEG, PNG, TIFF) by Pillow, with limits; the same in forge, calibration and agent.

Rule: the header is read first, and a picture of more than `MAX_PICTURE_PIXELS` is refused by it, so that a small file
cannot make its reader allocate what it names. Whatever is broken is a ValueError of one line. Pillow is imported only
when a picture is read.
"""

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from models.runtime.preparation import MAX_PICTURE_PIXELS
from models.runtime.resampling import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff")
MAX_PICTURE_FILE_BYTES = 64 << 20
_FORMATS = ("JPEG", "PNG", "TIFF")
_TRANSPARENT = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})


def decode_picture(data: bytes) -> Pixels:
    """The picture in a file `[height, width, 1 or 3]`: grey or RGB of 8 bits, turned as its camera was held.

    Palettes and other colours become RGB, 16 bits 8, transparent parts white; of several pictures it is the first.
    ValueError, one line, for what is broken, too large or none of the formats; ImportError without Pillow.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415 - see above

    Image.MAX_IMAGE_PIXELS = None  # ours is the limit, and it is no warning
    try:
        with Image.open(BytesIO(data), formats=_FORMATS) as image:
            _check_size(image)
            ImageOps.exif_transpose(image, in_place=True)  # without a second copy of a large picture
            return _read_pixels(image)
    except UnidentifiedImageError:
        raise ValueError("this is no JPEG, PNG or TIFF file") from None
    except _PictureRefused as refused:
        raise ValueError(str(refused)) from None
    except Exception as error:  # Pillow promises no kinds of error for what is broken
        raise ValueError(f"the picture is broken ({type(error).__name__})") from error


class _PictureRefused(Exception):  # noqa: N818 - it never leaves this file
    """A sound picture that is not read; the message is one line."""


def _check_size(image: "Image") -> None:
    if image.width * image.height > MAX_PICTURE_PIXELS:
        raise _PictureRefused(f"{image.width} x {image.height} pixels, at most {MAX_PICTURE_PIXELS} are read")


def _read_pixels(image: "Image") -> Pixels:
    """Pixels of an open image."""
    if image.mode.startswith("I;16") or image.mode == "I":
        wide = np.asarray(image)
        narrow: Pixels = np.clip(wide >> 8, 0, 255).astype(np.uint8)
        return narrow[:, :, None]
    if image.mode == "F":
        raise _PictureRefused("a picture of floating-point numbers: save it with 8 bits")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        image = _lay_on_white(image)
    plain = image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB")
    pixels: Pixels = np.asarray(plain)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _lay_on_white(image: "Image") -> "Image":
    from PIL import Image  # noqa: PLC0415

    ground = Image.new("RGBA", image.size, "white")
    ground.alpha_composite(image.convert("RGBA"))
    return ground.convert("RGB")
