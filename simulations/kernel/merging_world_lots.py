"""What is drawn for one device once and for all: asked again, the same again, so that nobody need remember it. Pure."""

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_STEP = 0x9E37_79B9_7F4A_7C15  # the generator SplitMix64 (Steele, Lea and Flood 2014), used as a hash


def lot(seed: int, device: int, which: int) -> int:
    """64 bits. `which`: number of the lot among those of this device."""
    return _mixed(_mixed(seed + _STEP * (device + 1)) + _STEP * (which + 1))


def share(seed: int, device: int, which: int) -> float:
    """Evenly from [0, 1)."""
    return (lot(seed, device, which) >> 11) * 2.0**-53


def _mixed(bits: int) -> int:
    bits = (bits ^ (bits >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    bits = (bits ^ (bits >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return bits ^ (bits >> 31)
