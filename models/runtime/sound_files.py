"""Reader of WAV files: PCM of 8, 16, 24 and 32 bits and 32-bit floats, one channel or several, as one channel.

Source: Multimedia Programming Interface and Data Specifications 1.0 (RIFF, WAVE). Rule: the header is checked before
the data is read, and every length against what is there.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from models.runtime.sounds import Sound

SOUND_SUFFIXES = (".wav",)
MAX_SOUND_FILE_BYTES = 64 << 20
_UNKNOWN_SIZE = 0x7FFF0000  # 2 GiB less a header, and beyond: no file that is read here is as long
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FORMAT = struct.Struct("<HHIIHH")
_RATES_HZ = range(1000, 384_001)
_CHANNELS = range(1, 33)
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32,)}


class WavError(ValueError):
    """The file is no WAV, is damaged, or of a form that is not read here; one line says which."""


class DecodedSound(NamedTuple):
    """Sound of one channel, -1..1, and its samples a second."""

    samples: Sound
    rate_hz: int


class _WavFormat(NamedTuple):
    kind: int
    channels: int
    rate_hz: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of one moment of all channels."""
        return self.channels * self.bits // 8


class _Chunk(NamedTuple):
    """A part of the file. `open_ended`: its length was not known when its header was written."""

    name: bytes
    body: bytes
    open_ended: bool = False


def decode_wav(data: bytes) -> DecodedSound:
    """Decode a WAV file; several channels become their mean. WavError if it is none, or cut short.

    Where the recorder did not know the length, because it wrote into a pipe or was ended, the sound goes on to the end
    of the file.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise WavError("this is no WAV file")
    found: _WavFormat | None = None
    for chunk in _read_chunks(data):
        if chunk.name == b"fmt ":
            found = _read_format(chunk.body)
        elif chunk.name == b"data":
            if found is None:
                raise WavError("the WAV has its data before its format")
            whole = len(chunk.body) - len(chunk.body) % found.frame_bytes if chunk.open_ended else len(chunk.body)
            return DecodedSound(_read_samples(chunk.body[:whole], found), found.rate_hz)
    raise WavError("the WAV has no data")


def _read_chunks(data: bytes) -> Iterator[_Chunk]:
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        body = data[at + 8 : at + 8 + size]
        if name == b"data" and _is_open_ended(size, at + 8, data):
            yield _Chunk(name, data[at + 8 :], open_ended=True)
            return
        if len(body) < size:
            raise WavError("the WAV is cut short")
        yield _Chunk(name, body)
        at += 8 + size + size % 2


def _is_open_ended(size: int, begins: int, data: bytes) -> bool:
    """Whether a length stands for one that was not known: as much as fits, or none before a RIFF that ends there."""
    whole = int.from_bytes(data[4:8], "little") + 8
    return size >= _UNKNOWN_SIZE or (size == 0 and (whole <= begins or whole >= _UNKNOWN_SIZE))


def _read_format(body: bytes) -> _WavFormat:
    if len(body) < _FORMAT.size:
        raise WavError("the WAV has no whole format")
    kind, channels, rate_hz, _, _, bits = _FORMAT.unpack_from(body)
    if kind == _EXTENSIBLE and len(body) >= 26:
        kind = int.from_bytes(body[24:26], "little")
    if bits not in _BITS.get(kind, ()):
        raise WavError(
            f"a WAV of format {kind} with {bits} bits: PCM of 8, 16, 24 and 32 bits is read, and 32-bit floats"
        )
    if channels not in _CHANNELS or rate_hz not in _RATES_HZ:
        raise WavError(f"a WAV of {channels} channels at {rate_hz} Hz")
    return _WavFormat(kind, channels, rate_hz, bits)


def _read_samples(body: bytes, found: _WavFormat) -> Sound:
    if not body or len(body) % found.frame_bytes:
        raise WavError("the WAV is cut short")
    values = _scale(body, found).reshape(-1, found.channels).mean(axis=1, dtype=np.float32)
    if not np.isfinite(values).all():
        raise WavError("the WAV has samples that are no numbers")
    return np.asarray(values, np.float32)


def _scale(body: bytes, found: _WavFormat) -> Sound:
    """All samples of all channels as -1..1."""
    if found.kind == _FLOAT:
        with np.errstate(invalid="ignore"):
            values: Sound = np.clip(np.frombuffer(body, "<f4"), -1, 1).astype(np.float32)
        return values
    if found.bits == 8:
        return np.asarray((np.frombuffer(body, np.uint8).astype(np.float32) - 128) / 128, np.float32)
    if found.bits == 24:
        parts = np.frombuffer(body, np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24).astype(np.float32)
        return np.asarray(whole / np.float32(2**31), np.float32)
    whole = np.frombuffer(body, f"<i{found.bits // 8}").astype(np.float32)
    return np.asarray(whole / np.float32(2 ** (found.bits - 1)), np.float32)
