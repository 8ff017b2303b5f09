"""Reader of the files of a watched folder: samples as they are, or pictures and sounds that become samples.

`.npy` files, and `.png` files where nobody says how pictures are prepared, are read by `image_files` as the very sample
of the model. Other pictures are decoded by Pillow, in a thread: a large one takes half a second. A sound that is longer
than a sample is several of them: one for each window.
"""

import asyncio
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from edge_agent.sources.feed import PreparationError, SampleFeed
from edge_agent.sources.files.image_files import limit_file_bytes, parse_sample_file
from models.bundle.manifest import InputSpec
from models.bundle.preparation import PicturePreparation
from models.bundle.signal_preparation import SoundPreparation
from models.runtime.picture_files import MAX_PICTURE_FILE_BYTES, PICTURE_SUFFIXES, decode_picture
from models.runtime.preparation import prepare_picture
from models.runtime.runner import Sample as SampleArray
from models.runtime.runner import SampleError, check_values
from models.runtime.sound_files import MAX_SOUND_FILE_BYTES, SOUND_SUFFIXES, decode_wav
from models.runtime.sounds import Sound, cut_sound, prepare_sound, resample_sound

FILE_SUFFIXES = (".npy", *PICTURE_SUFFIXES, *SOUND_SUFFIXES)
MAX_WINDOWS = 1024  # of one sound file
MAX_WINDOWED_SAMPLES = 1 << 26  # of all its windows together
_NOBODY_SAYS = (
    'neither the bundle nor the configuration says how a picture becomes a sample: [input] with kind = "picture" does'
)
Parse = Callable[[InputSpec], SampleArray]


_NOBODY_SAYS_OF_SOUND = _NOBODY_SAYS.replace("picture", "sound")


async def read_sample_file(file: Path, feed: SampleFeed) -> list[Parse]:
    """What makes each sample of a file for a model's input. SampleError if the file is none, or broken.

    NoModelError while there is no model, PreparationError where `[input]` and bundle contradict each other.
    """
    suffix, preparation = file.suffix.lower(), feed.preparation
    if suffix in SOUND_SUFFIXES:
        if not isinstance(preparation, SoundPreparation):
            raise PreparationError(_NOBODY_SAYS_OF_SOUND)
        windows = await asyncio.to_thread(_cut_sound_file, file, preparation)
        return [partial(_parse_sound, window, preparation) for window in windows]
    if suffix not in PICTURE_SUFFIXES or (suffix == ".png" and preparation is None):
        return [partial(_parse_plain, file)]
    if not isinstance(preparation, PicturePreparation):
        raise PreparationError(_NOBODY_SAYS)
    sample = await asyncio.to_thread(_prepare_file, file, preparation, feed.manifest.input)
    return [partial(_check_prepared, sample)]


def _parse_plain(file: Path, spec: InputSpec) -> SampleArray:
    """The sample in a file, for this input. SampleError if it does not fit it."""
    x = parse_sample_file(file.name, _read_plain_file(file, limit_file_bytes(spec)), spec)
    check_values(x, spec)
    return x


def _prepare_file(file: Path, preparation: PicturePreparation, spec: InputSpec) -> SampleArray:
    try:
        pixels = decode_picture(_read_plain_file(file, MAX_PICTURE_FILE_BYTES))
        return prepare_picture(pixels, preparation, spec.dtype)
    except ImportError:
        raise SampleError("Pillow, which reads pictures, is not installed: pip install pillow") from None
    except SampleError:
        raise
    except ValueError as error:
        raise SampleError(str(error)) from None


def _cut_sound_file(file: Path, preparation: SoundPreparation) -> list[Sound]:
    """The windows of a WAV file at the preparation's rate, in order. SampleError for less than one, or too many."""
    p = preparation
    try:
        found = decode_wav(_read_plain_file(file, MAX_SOUND_FILE_BYTES))
        sound = resample_sound(found.samples, found.rate_hz, p.rate_hz)
    except ValueError as error:
        raise SampleError(str(error)) from None
    if len(sound) < p.samples:
        has, needs = len(sound) / p.rate_hz, p.samples / p.rate_hz
        raise SampleError(f"{has:.2f} s of sound, a sample is made of {needs:.2f} s")
    count = 1 + (len(sound) - p.samples) // (p.hop or p.samples)
    if count > MAX_WINDOWS or count * p.samples > MAX_WINDOWED_SAMPLES:
        raise SampleError(f"a recording of {count} samples, more than are taken of one file: cut it")
    return list(cut_sound(sound, p))


def _parse_sound(window: Sound, preparation: SoundPreparation, spec: InputSpec) -> SampleArray:
    """The sample of a window of sound, if it is one of this input."""
    try:
        return _check_prepared(prepare_sound(window, preparation, spec.dtype), spec)
    except SampleError:
        raise
    except ValueError as error:
        raise SampleError(str(error)) from None


def _check_prepared(sample: SampleArray, spec: InputSpec) -> SampleArray:
    """A prepared sample, if it is one of this input."""
    if sample.shape != spec.shape:
        raise SampleError(f"{spec.name}: shape {list(sample.shape)}, the model takes {list(spec.shape)}")
    check_values(sample, spec)
    return sample


def _read_plain_file(file: Path, max_bytes: int) -> bytes:
    """Read a plain file. SampleError for links, pipes, devices, and for what is too large for any sample."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise SampleError(f"cannot be read: {error.strerror}") from None
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise SampleError("is not a plain file")
    with os.fdopen(handle, "rb") as opened:
        if facts.st_size > max_bytes:
            raise SampleError(f"{facts.st_size} bytes, more than any sample of this model")
        return opened.read(max_bytes)
