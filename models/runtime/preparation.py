"""Code of a model's preparation: raw material in, one sample out; the same in forge, calibration and agent.

Pure numpy, no I/O, and exact: the same picture becomes the same bytes on every machine. Pictures are arrays
`[height, width, 3]` (RGB) or `[height, width, 1]` (grey) of uint8.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from models.bundle.preparation import PictureAxes, PictureChannels, PictureFit, PicturePreparation
from models.runtime.feature_codec import NUMPY_DTYPES
from models.runtime.resampling import Pixels, resize_pixels
from wire.protocol.messages import TensorDType

MAX_PICTURE_PIXELS = 50_000_000  # 150 MB as RGB; a larger picture is refused by its header
_LUMA = np.array([19595, 38470, 7471], np.uint32)  # ITU-R BT.601 in 1/65536


def prepare_picture(
    pixels: Pixels, preparation: PicturePreparation, dtype: TensorDType = TensorDType.FP32
) -> npt.NDArray[Any]:
    """The sample of a picture `[h, w, 1 or 3]`, RGB or grey, for a complete preparation and the model's element type.

    ValueError for a picture without pixels, of another number of channels, or a type that no picture can become.
    """
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not pixels.size or pixels.dtype != np.uint8:
        raise ValueError(f"{pixels.dtype} {list(pixels.shape)} is no grey or RGB picture")
    if dtype not in (TensorDType.FP32, TensorDType.UINT8):
        raise ValueError(f"a picture cannot become {dtype}")
    pixels = _cut(pixels, preparation)
    fitted = _fit(_take_channels(pixels, preparation.channels), preparation)
    sample = _scale(fitted, preparation, dtype)
    match preparation.order:
        case PictureAxes.CHW:
            sample = sample.transpose(2, 0, 1)
        case PictureAxes.HW:
            sample = sample[:, :, 0]
    return np.ascontiguousarray(sample)


def _cut(pixels: Pixels, preparation: PicturePreparation) -> Pixels:
    """What `crop` leaves; at least one pixel."""
    if not preparation.crop:
        return pixels
    height, width = pixels.shape[:2]
    left, top, right, bottom = preparation.crop
    x, y = min(int(left * width), width - 1), min(int(top * height), height - 1)
    return pixels[y : max(y + 1, round(bottom * height)), x : max(x + 1, round(right * width))]


def _take_channels(pixels: Pixels, channels: PictureChannels) -> Pixels:
    if channels is PictureChannels.GREY:
        return convert_grey(pixels)
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return pixels if channels is PictureChannels.RGB else pixels[:, :, ::-1]


def convert_grey(pixels: Pixels) -> Pixels:
    """Luma `[h, w, 1]` of an RGB picture, in whole numbers; a grey one stays as it is."""
    if pixels.shape[2] == 1:
        return pixels
    grey: Pixels = ((pixels.astype(np.uint32) @ _LUMA + 0x8000) >> 16).astype(np.uint8)
    return grey[:, :, None]


def _fit(pixels: Pixels, preparation: PicturePreparation) -> Pixels:
    height, width = preparation.height, preparation.width
    if preparation.fit is PictureFit.COVER:
        pixels = _cut_centre(pixels, height, width)
    if preparation.fit is not PictureFit.LETTERBOX:
        return resize_pixels(pixels, height, width)
    inner = resize_pixels(pixels, *_inner_size(pixels.shape[0], pixels.shape[1], height, width))
    out = np.full((height, width, pixels.shape[2]), preparation.fill, np.uint8)
    top, left = (height - inner.shape[0]) // 2, (width - inner.shape[1]) // 2
    out[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
    return out


def _cut_centre(pixels: Pixels, height: int, width: int) -> Pixels:
    """The largest centred part with the sides in the proportion of `height` to `width`."""
    rows, columns = pixels.shape[:2]
    keep_rows = min(rows, max(1, (columns * height + width // 2) // width))
    keep_columns = min(columns, max(1, (rows * width + height // 2) // height))
    top, left = (rows - keep_rows) // 2, (columns - keep_columns) // 2
    return pixels[top : top + keep_rows, left : left + keep_columns]


def _inner_size(rows: int, columns: int, height: int, width: int) -> tuple[int, int]:
    """Height and width of the picture inside a letterbox."""
    if columns * height >= rows * width:
        return min(height, max(1, (rows * width + columns // 2) // columns)), width
    return height, min(width, max(1, (columns * height + rows // 2) // rows))


def prepared_range(preparation: PicturePreparation) -> tuple[float, float]:
    """Lowest and highest number that a prepared sample of float32 can hold."""
    tables = _value_tables(preparation, TensorDType.FP32)
    return float(min(table.min() for table in tables)), float(max(table.max() for table in tables))


def _scale(pixels: Pixels, preparation: PicturePreparation, dtype: TensorDType) -> npt.NDArray[Any]:
    """The model's numbers, looked up for each of the 256 values and each channel."""
    tables = _value_tables(preparation, dtype)
    return np.stack([table[pixels[:, :, place]] for place, table in enumerate(tables)], axis=2)


@lru_cache(maxsize=8)
def _value_tables(preparation: PicturePreparation, dtype: TensorDType) -> tuple[npt.NDArray[Any], ...]:
    count = preparation.channel_count
    steps = np.arange(256, dtype=np.float64)
    values = preparation.black + (preparation.white - preparation.black) * steps / 255
    means, stds = (each * count if len(each) == 1 else each for each in (preparation.mean, preparation.std))
    tables = [(values - mean) / std for mean, std in zip(means or (0.0,) * count, stds or (1.0,) * count, strict=True)]
    if dtype is TensorDType.FP32:
        return tuple(table.astype(NUMPY_DTYPES[dtype]) for table in tables)
    return tuple(np.clip(np.rint(table), 0, 255).astype(np.uint8) for table in tables)
