"""Every form of a TIFF that Pillow opens shows black as black and white as white here, or is refused by a line."""

import struct
from io import BytesIO
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from models.runtime.picture_files import decode_picture

UNSIGNED, SIGNED, FLOAT = 1, 2, 3
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
SHORT, LONG = 3, 4


class TiffForm(NamedTuple):
    """What the tags of a TIFF say about its numbers. `fill`: 2 = the bits of each byte stand in reverse."""

    photometric: int
    kinds: tuple[int, ...]
    fill: int
    bits: tuple[int, ...]
    extra: tuple[int, ...]


FORMS = [TiffForm(*key[1:]) for key in TiffImagePlugin.OPEN_INFO if key[0] == b"II"]


def full_scale(kind: int, bits: int) -> int:
    """The number of white, as its bits."""
    if kind == FLOAT:
        return int.from_bytes(struct.pack("<f", 1.0), "little")
    return (1 << (bits - (kind == SIGNED))) - 1


def samples_of(form: TiffForm, *, white: bool) -> list[int]:
    """The numbers of one pixel; what comes beside the colours is opaque."""
    most = [full_scale(form.kinds[0], bits) for bits in form.bits]
    colours = len(form.bits) - len(form.extra)
    if form.photometric == WHITE_IS_ZERO:
        shown = [0 if white else each for each in most[:colours]]
    elif form.photometric == CMYK:
        shown = [0, 0, 0, 0 if white else most[3]]
    elif form.photometric in (YCBCR, LAB) and colours == 3:
        shown = [most[0] if white else 0, 128, 128]
    else:
        shown = [each if white else 0 for each in most[:colours]]
    alpha = most[colours:]
    if len(form.bits) == 4 and form.photometric == RGB and not form.extra:
        alpha = []  # Pillow takes the fourth for opacity
        shown[3] = most[3]
    return [*shown, *alpha]


def write_pixels(form: TiffForm) -> bytes:
    """Four black pixels, then four white ones."""
    pixels = [samples_of(form, white=number >= 4) for number in range(8)]
    if form.bits[0] % 8 == 0:
        data = b"".join(
            value.to_bytes(bits // 8, "little")
            for pixel in pixels
            for value, bits in zip(pixel, form.bits, strict=True)
        )
    else:
        text = "".join(f"{value:0{bits}b}" for pixel in pixels for value, bits in zip(pixel, form.bits, strict=True))
        data = int(text, 2).to_bytes(len(text) // 8, "big")
    return bytes(int(f"{each:08b}"[::-1], 2) for each in data) if form.fill == 2 else data


def write_tiff(form: TiffForm) -> bytes:
    """A TIFF of eight pixels in a row, its tags written by hand (TIFF 6.0, section 2)."""
    pixels = write_pixels(form)
    shades = [0] * (2 ** form.bits[0] - 1) + [65535] if form.photometric == PALETTE else []
    lists: list[tuple[int, int, list[int]]] = [
        (256, SHORT, [8]), (257, SHORT, [1]), (258, SHORT, list(form.bits)), (259, SHORT, [1]),
        (262, SHORT, [form.photometric]), (266, SHORT, [form.fill]), (273, LONG, [8]), (277, SHORT, [len(form.bits)]),
        (278, SHORT, [1]), (279, LONG, [len(pixels)]), (284, SHORT, [1]),
        *([(320, SHORT, shades * 3)] if shades else []), *([(338, SHORT, list(form.extra))] if form.extra else []),
        (339, SHORT, list(form.kinds) * len(form.bits)),
    ]  # fmt: skip
    directory_at = 8 + len(pixels) + len(pixels) % 2
    beyond_at, entries, beyond = directory_at + 2 + 12 * len(lists) + 4, b"", b""
    for tag, kind, values in lists:
        body = struct.pack(f"<{len(values)}{'H' if kind == SHORT else 'I'}", *values)
        if len(body) > 4:
            body, beyond = struct.pack("<I", beyond_at + len(beyond)), beyond + body
        entries += struct.pack("<HHI", tag, kind, len(values)) + body.ljust(4, b"\0")
    head = b"II*\0" + struct.pack("<I", directory_at) + pixels + bytes(len(pixels) % 2)
    return head + struct.pack("<H", len(lists)) + entries + bytes(4) + beyond


def is_read_by_pillow(data: bytes) -> bool:
    """Pillow knows forms that it then has no reader for."""
    try:
        with Image.open(BytesIO(data)) as image:
            image.load()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_black_is_black_and_white_is_white_in_every_form_or_it_is_refused(form):
    data = write_tiff(form)
    if form.kinds[0] != UNSIGNED or max(form.bits) > 16 or form.photometric == LAB:
        with pytest.raises(ValueError, match="save it"):
            decode_picture(data)
    elif not is_read_by_pillow(data):
        with pytest.raises(ValueError, match="the picture is broken"):
            decode_picture(data)
    else:
        pixels = decode_picture(data)
        assert pixels.shape[:2] == (1, 8)
        assert pixels[0, :4].max() <= 2
        assert pixels[0, 4:].min() >= 253


def test_grey_of_16_bits_has_its_transparent_shade_white():
    wide = np.array([[0, 300, 65535]], np.uint16)
    written = BytesIO()
    Image.fromarray(wide).save(written, "PNG", transparency=300)
    assert decode_picture(written.getvalue())[0, :, 0].tolist() == [0, 255, 255]
