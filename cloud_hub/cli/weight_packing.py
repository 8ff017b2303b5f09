"""Packing of quantised weights, from the `quantization_config` of a checkpoint: method, and bits of one weight in all.

Rule: scales and zero points count, a group at a time; a method that is not known is refused, for its size would be a
guess. Sources: Lin et al. 2023 (AWQ), Frantar et al. 2022 (GPTQ), Dettmers et al. 2023 (NF4 and double quantisation).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from models.forge.data.types import ForgeError

_SCALE_BITS = 16  # of a group's scale
_NF4_SCALE_BITS = 0.5  # of a weight: one float32 for 64 of them
_NF4_DOUBLE_BITS = 0.127  # the same, with scales quantised once more


class WeightPacking(NamedTuple):
    """How weights of layers are stored: `name` for people, `bits` of one weight with its share of scales."""

    name: str
    bits: float


def read_weight_packing(config: dict[str, Any]) -> WeightPacking | None:
    """Read how weights are quantised, None if they are not. ForgeError for a method that is not known."""
    told = config.get("quantization_config")
    if not isinstance(told, dict) or not told:
        return None
    method = str(told.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in told else "")).lower()
    read = _METHODS.get(method)
    if read is None:
        raise ForgeError(f"weights quantised by {method[:40]!r} are not known here; known are {', '.join(_METHODS)}")
    plain, bits = read(told)
    return WeightPacking(f"{method}, {plain} bits", bits)


def _read_groups(told: dict[str, Any]) -> tuple[int, float]:
    """AWQ and GPTQ: a scale and a zero point for each group of weights; no group: for each row."""
    bits = _read_bits(told, "bits", "w_bit")
    group = next((told[key] for key in ("group_size", "q_group_size") if isinstance(told.get(key), int)), 128)
    return bits, bits + ((_SCALE_BITS + bits) / group if group > 0 else 0.0)


def _read_bitsandbytes(told: dict[str, Any]) -> tuple[int, float]:
    if told.get("load_in_8bit"):
        return 8, 8.0
    return 4, 4 + (_NF4_DOUBLE_BITS if told.get("bnb_4bit_use_double_quant") else _NF4_SCALE_BITS)


def _read_float8(_: dict[str, Any]) -> tuple[int, float]:
    return 8, 8.0


def _read_compressed(told: dict[str, Any]) -> tuple[int, float]:
    """Compressed tensors: the first group of layers says how their weights are stored."""
    groups = told.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") if isinstance(first, dict) else None
    weights = weights if isinstance(weights, dict) else {}
    bits, group = _read_bits(weights, "num_bits"), weights.get("group_size")
    return bits, bits + (_SCALE_BITS / group if isinstance(group, int) and group > 0 else 0.0)


def _read_bits(told: dict[str, Any], *keys: str) -> int:
    found = next((told[key] for key in keys if isinstance(told.get(key), int)), 0)
    if not 1 <= found <= 16:
        raise ForgeError(f"quantization_config: no usable {keys[0]}")
    return int(found)


_METHODS: dict[str, Callable[[dict[str, Any]], tuple[int, float]]] = {
    "awq": _read_groups,
    "gptq": _read_groups,
    "bitsandbytes": _read_bitsandbytes,
    "fp8": _read_float8,
    "fbgemm_fp8": _read_float8,
    "compressed-tensors": _read_compressed,
}
