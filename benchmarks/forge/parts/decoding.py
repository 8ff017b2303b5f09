"""Benchmark: decoding of feature codes on the hub, one by one against batches of 32, for every kind of codec.

`python -m benchmarks.forge.parts.decoding`. Each codec decodes the same 32 questions both ways, in turns; medians of
the processor time of the thread, in microseconds per question: what others compute meanwhile does not count. Codes are
drawn from a fixed seed. Some seconds.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.harness.figures import US, Figure, find_median, format_line
from models.runtime.codec_steps import StepClass, StepSettings, build_step_tables
from models.runtime.feature_codec import ANS, ANS_STEPS, build_ans_tables, build_codec, codec_levels
from wire.protocol.messages import FieldSpec, SensitivityLevel, TensorDType

BATCH = 32
LIMIT_US = 3.0  # a question in a batch, packed
ENTROPY_LIMIT_US = 250.0  # the same, entropy coded: one by one inside the batch too
_ROUNDS, _PASSES = 10, 15
_TRAINING = 400
CASES = (
    ("pack1", 96),
    ("pack3", 200),
    ("pack4", 64),
    ("pack8", 200),
    ("base3", 200),
    ("base12", 96),
    (ANS, 200),
    (ANS_STEPS, 784),
)


class DecodingRow(NamedTuple):
    """One codec with so many codes: median microseconds per question, decoded alone and in a batch."""

    codec: str
    codes: int
    payload_bytes: int
    alone_us: float
    batch_us: float


def measure_codec(name: str, count: int) -> DecodingRow:
    """Decode the same questions alone and together."""
    high = 4 if name == ANS else codec_levels(name) - 1
    spec = FieldSpec("codes", TensorDType.UINT8, (count,), 0, high, SensitivityLevel.P2, "codes")
    rows = _draw_codes(name, count, high)
    codec = build_codec(name, (spec,), _build_tables(name, rows, high + 1))
    tensors = [codec.encode("codes", row) for row in rows[:BATCH]]
    alone: list[float] = []
    batch: list[float] = []
    for _ in range(_ROUNDS):
        alone += _time_processor(lambda: [codec.decode("codes", tensor) for tensor in tensors])
        batch += _time_processor(lambda: codec.decode_batch("codes", tensors))
    return DecodingRow(name, count, codec.total_bytes, find_median(alone) * US / BATCH, find_median(batch) * US / BATCH)


def _time_processor(call: Callable[[], object]) -> list[float]:
    """Seconds of processor time of each pass but the first."""
    taken = []
    for _ in range(1 + _PASSES):
        began = time.thread_time()
        call()
        taken.append(time.thread_time() - began)
    return taken[1:]


def _draw_codes(name: str, count: int, high: int) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(3)
    if name == ANS_STEPS:  # coefficients of falling variance around the middle
        wide = rng.laplace(0, 300 / (3 + np.arange(count)), (_TRAINING, count))
        return (128 + np.rint(wide)).clip(0, 255).astype(np.uint8)
    drawn: npt.NDArray[Any] = (
        rng.geometric(0.5, (_TRAINING, count)) - 1 if name == ANS else rng.integers(0, high + 1, (_TRAINING, count))
    )
    return drawn.clip(0, high).astype(np.uint8)


def _build_tables(name: str, rows: npt.NDArray[np.uint8], levels: int) -> bytes:
    if name == ANS:
        return build_ans_tables(rows, levels)
    if name != ANS_STEPS:
        return b""
    edges = np.unique(np.rint(np.geomspace(1, rows.shape[1] + 1, 33)).astype(int) - 1)
    classes = tuple(StepClass(int(size)) for size in np.diff(edges))
    return build_step_tables(rows, StepSettings(levels, 128, 128, classes))


def build_figures(rows: Sequence[DecodingRow]) -> list[Figure]:
    """The slowest packing, and the slowest entropy coder, in batches."""
    packed = max(row.batch_us for row in rows if row.codec not in (ANS, ANS_STEPS))
    entropy = max((row.batch_us for row in rows if row.codec in (ANS, ANS_STEPS)), default=0.0)
    return [
        Figure(f"decoding in batches of {BATCH}: slowest packing", packed, "us a question", LIMIT_US),
        Figure(f"decoding in batches of {BATCH}: slowest entropy coder", entropy, "us a question", ENTROPY_LIMIT_US),
    ]


def main() -> int:
    rows = [measure_codec(name, count) for name, count in CASES]
    print("| codec | codes | payload, B | alone, us | in a batch, us |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.codec} | {row.codes} | {row.payload_bytes} | {row.alone_us:.1f} | {row.batch_us:.2f} |")
    figures = build_figures(rows)
    print("\n".join(format_line(figure) for figure in figures))
    return 0 if all(figure.held for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
