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
# Of TIFF 6.0, sections 4 and 19: what the numbers of a pixel mean.
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339
_WHITE_IS_ZERO, _UNSIGNED = 0, 1
_TRANSPARENT = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})


def decode_picture(data: bytes) -> Pixels:
    """The picture in a file `[height, width, 1 or 3]`: grey or RGB of 8 bits, turned as its camera was held.

    Palettes and other colours become RGB, 9 to 16 bits 8, transparent parts white; of several pictures it is the first.
    ValueError, one line, for what is broken, too large, none of the formats, or has numbers of an unknown scale;
    ImportError without Pillow.
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


def _check_numbers(image: "Image") -> None:
    """Refuse numbers whose scale is not known: signed, floating-point, or wider than 16 bits."""
    if image.mode == "F":
        raise _PictureRefused("a picture of floating-point numbers: save it with 8 bits")
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    kinds, bits = tags.get(_SAMPLE_FORMAT, (_UNSIGNED,)), tags.get(_BITS_PER_SAMPLE, (1,))
    if image.mode == "I" or max(bits) > 16:
        raise _PictureRefused(
            "a picture of numbers of more than 16 bits, whose scale is not known: save it with 8 or 16"
        )
    if any(kind != _UNSIGNED for kind in kinds):
        raise _PictureRefused("a picture of signed numbers: save it with unsigned ones")
    if image.mode == "LAB":
        raise _PictureRefused("a picture of CIE L*a*b* colours: save it as RGB")


def _read_pixels(image: "Image") -> Pixels:
    """Pixels of an open image."""
    _check_numbers(image)
    if image.mode.startswith("I;16"):
        return _narrow_grey(image)
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        image = _lay_on_white(image)
    plain = image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB")
    pixels: Pixels = np.asarray(plain)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def _narrow_grey(image: "Image") -> Pixels:
    """The upper 8 bits of grey of 9 to 16 bits; Pillow leaves it to us to turn a TIFF around in which 0 is white."""
    tags = getattr(image, "tag_v2", {})
    wide = np.asarray(image)
    bits = max(tags.get(_BITS_PER_SAMPLE, (16,)))
    narrow: Pixels = np.clip(wide >> (bits - 8), 0, 255).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        narrow = 255 - narrow
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        narrow[wide == clear] = 255  # white
    return narrow[:, :, None]


def _lay_on_white(image: "Image") -> "Image":
    from PIL import Image  # noqa: PLC0415

    ground = Image.new("RGBA", image.size, "white")
    if image.mode == "La":
        image = image.convert("LA")  # from where alone there is a way on
    ground.alpha_composite(image.convert("RGBA"))
    return ground.convert("RGB")
