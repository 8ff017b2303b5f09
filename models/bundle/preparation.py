"""The preparation of a model's samples: closed values that say how raw material, such as a picture, becomes a sample.

It stands in the manifest under `preparation` and in an agent's configuration as `[input]`; `models/runtime` has the
code that does it, the same in forge, calibration and agent. Rule: whatever does not fit is a ValueError of one line.

To add a kind of raw material (a signal, a recording): a frozen struct beside `PicturePreparation` with a `tag` of its
own and a list of rules, joined to `Preparation`; its shape in `preparation_shape`; its code in `models/runtime`.
Signals and sounds: `signal_preparation.py`.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from models.bundle.signal_preparation import (
    SignalPreparation,
    SoundPreparation,
    complete_signal,
    complete_sound,
    signal_rules,
    signal_shape,
    sound_rules,
    sound_shape,
)

MAX_SIDE = 8192  # pixels of a prepared picture
KIND = "kind"  # the key that names the raw material


class PictureFit(StrEnum):
    """How a picture of another shape gets the model's size.

    `stretch`: both sides scaled by themselves. `letterbox`: all of it, with bars. `cover`: its centre, without bars.
    """

    STRETCH = "stretch"
    LETTERBOX = "letterbox"
    COVER = "cover"


class PictureChannels(StrEnum):
    """Colours of a prepared picture, in their order. `grey`: luma of ITU-R BT.601."""

    RGB = "rgb"
    BGR = "bgr"
    GREY = "grey"


class PictureAxes(StrEnum):
    """Order of the axes of a prepared picture: channels first, channels last, or a grey picture without that axis."""

    CHW = "chw"
    HWC = "hwc"
    HW = "hw"


class PicturePreparation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field=KIND, tag="picture"):
    """How a picture becomes a sample: cut, scale, take the channels, turn 0..255 into the model's numbers.

    `height`, `width`: pixels of the sample; 0 in a configuration means the model's. `crop`: left, top, right and bottom
    edge of what is looked at, as shares of the picture; () is all of it. `fill`: value 0..255 of a letterbox's bars.
    A pixel p becomes `black + (white - black) * p / 255`, then `mean` is subtracted and it is divided by `std` (one for
    all channels, or one each). A model of uint8 takes pixels as they are: `white = 255`, no `mean` or `std`.
    """

    height: int = 0
    width: int = 0
    fit: PictureFit = PictureFit.STRETCH
    crop: tuple[float, ...] = ()
    fill: int = 0
    channels: PictureChannels = PictureChannels.RGB
    order: PictureAxes = PictureAxes.CHW
    black: float = 0.0
    white: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @property
    def channel_count(self) -> int:
        """Number of channels of a sample: 1 or 3."""
        return 1 if self.channels is PictureChannels.GREY else 3


Preparation = PicturePreparation | SignalPreparation | SoundPreparation
KINDS = '"picture", "signal" or "sound"'


def parse_preparation(values: Mapping[str, Any]) -> Preparation:
    """Parse the table `[input]` of a configuration or a file. ValueError, one line, that names the faulty key."""
    if KIND not in values:
        raise ValueError(f"{KIND} is missing: {KINDS}")
    try:
        found: Preparation = msgspec.convert(dict(values), Preparation)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    check_preparation(found)
    return found


def check_preparation(preparation: Preparation, *, complete: bool = False) -> None:
    """Check every value. ValueError that names the first impossible key. `complete`: its sizes have to be given."""
    for key, fits in _list_rules(preparation, 1 if complete else 0):
        if not fits:
            raise ValueError(f"{key} is impossible")


def _list_rules(preparation: Preparation, least: int) -> tuple[tuple[str, bool], ...]:
    match preparation:
        case SignalPreparation():
            return signal_rules(preparation, least)
        case SoundPreparation():
            return sound_rules(preparation, least)
    return _picture_rules(preparation, least)


def _picture_rules(p: PicturePreparation, least: int) -> tuple[tuple[str, bool], ...]:
    """List (key, whether its value is possible)."""
    numbers = (*p.mean, *p.std, p.black, p.white)
    return (
        ("height", least <= p.height <= MAX_SIDE),
        ("width", least <= p.width <= MAX_SIDE),
        ("crop: left, top, right, bottom as shares 0..1", not p.crop or _is_crop(p.crop)),
        ("fill: 0..255", 0 <= p.fill <= 255),
        ('order: "hw" has no channels: channels = "grey"', p.order is not PictureAxes.HW or p.channel_count == 1),
        ("black, white, mean or std: a number", all(map(math.isfinite, numbers)) and p.black != p.white),
        ("mean: one number, or one a channel", len(p.mean) in {0, 1, p.channel_count}),
        ("std: one number, or one a channel", len(p.std) in {0, 1, p.channel_count}),
        ("std: above 0", min(p.std, default=1.0) > 0),
    )


def _is_crop(crop: tuple[float, ...]) -> bool:
    if len(crop) != 4 or not all(0 <= edge <= 1 for edge in crop):
        return False
    left, top, right, bottom = crop
    return left < right and top < bottom


def preparation_shape(preparation: Preparation) -> tuple[int, ...]:
    """Shape of a prepared sample, without the batch axis."""
    match preparation:
        case SignalPreparation():
            return signal_shape(preparation)
        case SoundPreparation():
            return sound_shape(preparation)
    height, width, channels = preparation.height, preparation.width, preparation.channel_count
    match preparation.order:
        case PictureAxes.CHW:
            return channels, height, width
        case PictureAxes.HWC:
            return height, width, channels
    return height, width


def complete_preparation(preparation: Preparation, shape: tuple[int, ...]) -> Preparation:
    """The preparation with the sizes that it leaves to the model, whose input has this shape.

    ValueError if what it makes is not of that shape.
    """
    if not isinstance(preparation, PicturePreparation):
        return _complete_signal_or_sound(preparation, shape)
    axes = {PictureAxes.CHW: (1, 2), PictureAxes.HWC: (0, 1), PictureAxes.HW: (0, 1)}[preparation.order]
    made = preparation
    if len(shape) == len(preparation.order):
        height, width = (shape[axis] for axis in axes)
        made = msgspec.structs.replace(
            preparation, height=preparation.height or height, width=preparation.width or width
        )
    if preparation_shape(made) != shape:
        raise ValueError(
            f"a picture of {made.height} x {made.width} as {made.channels.value} {made.order.value} is"
            f" {list(preparation_shape(made))}, the model takes {list(shape)}"
        )
    return made


def _complete_signal_or_sound(
    preparation: SignalPreparation | SoundPreparation, shape: tuple[int, ...]
) -> SignalPreparation | SoundPreparation:
    signal = isinstance(preparation, SignalPreparation)
    made = complete_signal(preparation, shape) if signal else complete_sound(preparation, shape)  # type: ignore[arg-type]
    if preparation_shape(made) != shape:
        what = f"a {'signal' if signal else 'sound'} as {made.order.value}"
        raise ValueError(f"{what} is {list(preparation_shape(made))}, the model takes {list(shape)}")
    check_preparation(made, complete=True)
    return made


def encode_preparation(preparation: Preparation) -> bytes:
    """Canonical JSON: every key in order, whole numbers in places for others as such; the same bytes for one value."""
    read_back = msgspec.convert(msgspec.to_builtins(preparation), Preparation)
    return msgspec.json.encode(read_back, order="sorted")


def decode_preparation(text: str | bytes) -> Preparation:
    """The preparation of its canonical JSON. ValueError as `parse_preparation`."""
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return parse_preparation(values)


def find_difference(one: Preparation, other: Preparation) -> str:
    """The first key in which two preparations differ, with both values; "" if they are the same."""
    left, right = (msgspec.json.decode(encode_preparation(each)) for each in (one, other))
    for key in left:
        if left[key] != right.get(key):
            return f"{key} = {left[key]!r} and {right.get(key)!r}"
    return ""
