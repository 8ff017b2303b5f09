"""Sizes of the frames of many questions, which differ by the numbers in their headers; as the codec encodes them."""

from functools import cache

import numpy as np
import numpy.typing as npt

from simulations.kernel.world import HUB_ZERO_S, format_device_name
from simulations.nodes.plain_envelopes import PlainEnvelopes
from wire.protocol import codec
from wire.protocol.messages import CipherSuite, FrameHeader
from wire.protocol.topics import compute_shard

Whole = npt.NDArray[np.int64]
_EPOCH = 2**62  # a random number of 63 bits: its size is that of nearly all
_TENS = 10 ** np.arange(1, 18)
_STEPS = np.array([128, 256, 65_536])  # from here on a number takes a byte more, or two
_SEQS = (1, 128, 256, 65_536)  # the least of each size


class FrameSizes:
    """Bytes by which frames of devices are longer than the first ones of device 0. `first`: the device of place 0.

    The first byte of a name's hash is in the header too; it is remembered for each device once asked for.
    """

    def __init__(self, first: int, devices: int) -> None:
        self._first = first
        self._shard = np.full(devices, -1, np.int16)
        self._base = _measure_header(compute_shard(format_device_name(0)), 1, 0)

    def find_extra(self, place: Whole, seq: Whole) -> Whole:
        """Bytes more for each question with number `seq` of the device at `place`."""
        for unknown in np.unique(place[self._shard[place] < 0]).tolist():
            self._shard[unknown] = compute_shard(format_device_name(self._first + unknown))
        shard, size = self._shard[place], np.searchsorted(_STEPS, seq, side="right")
        digits = 1 + np.searchsorted(_TENS, place + self._first, side="right")
        keys, which = np.unique((2 * digits + (shard >= 128)) * len(_SEQS) + size, return_inverse=True)
        found: Whole = np.array([_measure_key(key) for key in keys.tolist()], np.int64)[which] - self._base
        return found


@cache
def _measure_key(key: int) -> int:
    """Bytes of a clear part by number of digits, half of the shards, and size class of the seq."""
    rest, size = divmod(key, len(_SEQS))
    digits, high = divmod(rest, 2)
    return _measure_header(200 if high else 0, digits, size)


def _measure_header(shard: int, digits: int, size: int) -> int:
    """Bytes of a question's clear part: of a device whose number has so many digits, a seq of size class `size`."""
    header = FrameHeader(
        shard=shard,
        device=format_device_name(10 ** (digits - 1) if digits > 1 else 0),
        epoch=_EPOCH,
        seq=_SEQS[size],
        created_ms=int(HUB_ZERO_S * 1000),
        key_id=PlainEnvelopes.reader_id,
    )
    return len(codec.encode_clear_part(CipherSuite.SEALED, header))
