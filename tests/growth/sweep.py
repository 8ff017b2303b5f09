"""Measures every case: time at twice the input, memory for a byte, and whether a reader lets a RecursionError out.

Rule: processor time, and a ratio counts only where a run takes `COUNTED_S` and it stays too large in every try, so that
a busy machine fails nothing. Memory is the slope between two sizes: what a reader takes however short its input is
(buffers, tables, a bound that it keeps) does not count.
"""

import gc
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.growth.cases import Case
from tests.growth.readers import Reader
from tests.growth.shapes import Shape

MOST_RATIO = 2.2
COUNTED_S = 0.002
MOST_S = 0.05  # a run at which the input is doubled no more
MOST_BYTES = 256 * 1024
TRIES = 5
QUICK_BYTES = 16 * 1024
QUICK_MEMORY_BYTES = 4 * 1024
QUICK_NS_A_BYTE = 200  # a quadratic reader takes more of `QUICK_BYTES`, nearly every linear one less
QUICK_S = 0.02  # in place of `MOST_S`
QUICK_SHAPES = 8  # of a case
FULL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Figure:
    """The largest figure of a case, and the shape that has it."""

    value: float = 0.0
    shape: str = ""


@dataclass(frozen=True)
class CaseGrowth:
    """What a case showed over its shapes. `escaped`: the shapes at which a RecursionError came out."""

    case: Case
    shapes: int
    ratio: Figure
    ns_a_byte: Figure
    bytes_per_byte: Figure
    escaped: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """What is too much, a line each."""
        found = [f"{self.case.name}: a RecursionError comes out at {shape}" for shape in self.escaped[:2]]
        if self.ratio.value > MOST_RATIO:
            found.append(f"{self.case.name}: {self.ratio.value:.1f} times the time at twice {self.ratio.shape}")
        if self.bytes_per_byte.value > self.case.bytes_per_byte:
            found.append(
                f"{self.case.name}: {self.bytes_per_byte.value:.0f} bytes a byte, at most "
                f"{self.case.bytes_per_byte:g}, of {self.bytes_per_byte.shape}"
            )
        return found


def measure_cases(cases: Iterable[Case], *, full: bool = False) -> Iterator[CaseGrowth]:
    """Measure each case over all its shapes, or over some of them at a small size."""
    known = list(cases)
    gc.collect()
    gc.freeze()  # what was there before is not looked through again by each collection
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a picture library says of broken files
            for case in known:
                yield _measure_case(case, full=full)
    finally:
        gc.enable()
        gc.unfreeze()


def _measure_case(case: Case, *, full: bool) -> CaseGrowth:
    shapes = list(case.shapes())
    if not full:
        shapes = [*case.extra, *shapes[len(case.extra) :: max(1, len(shapes) // QUICK_SHAPES)]]
    size = min(FULL_BYTES if full else QUICK_BYTES, case.limit)
    ratio = spent = memory = Figure()
    escaped = []
    for shape in shapes:
        seconds, fell = _run(case, shape.make(size))
        escaped += [shape.name] if fell else []
        spent = _larger(spent, seconds / size * 1e9, shape)
        if seconds > (COUNTED_S if full else QUICK_NS_A_BYTE * size / 1e9):
            ratio = _larger(ratio, measure_ratio(case, shape, size, MOST_S if full else QUICK_S), shape)
        memory = _larger(memory, measure_slope(case, shape, size if full else min(size, QUICK_MEMORY_BYTES)), shape)
    return CaseGrowth(case, len(shapes), ratio, spent, memory, tuple(escaped))


def _larger(found: Figure, value: float, shape: Shape) -> Figure:
    return found if value <= found.value else Figure(value, shape.name)


def measure_ratio(case: Case, shape: Shape, size: int, most_s: float) -> float:
    """Return the least ratio, of several tries, of the time at a size to that at half of it.

    The size is doubled until a run takes `most_s`, or it is `MOST_BYTES` or the case's limit. Each try is of another
    size: an input may be refused at once for its length alone.
    """
    most = min(MOST_BYTES, case.limit)
    while size * 2 <= most and _run(case, shape.make(size))[0] < most_s:
        size *= 2
    ratio = float("inf")
    for number in range(TRIES):
        tried = size - number * size // 50
        whole, half = shape.make(tried), shape.make(tried // 2)
        runs = 1 if ratio == float("inf") else 3
        after = min(_run(case, whole)[0] for _ in range(runs))
        if after < COUNTED_S:
            return 1.0
        ratio = min(ratio, after / max(min(_run(case, half)[0] for _ in range(runs)), 1e-9))
        if ratio <= MOST_RATIO:
            break
    return ratio


def measure_slope(case: Case, shape: Shape, size: int) -> float:
    """Return the bytes that a further byte of input takes; at larger sizes where it seems too many."""
    found = _slope(case, shape, size // 8, size // 2)
    most = min(MOST_BYTES, case.limit)
    if found > case.bytes_per_byte and most > size:
        found = min(found, _slope(case, shape, most // 4, most // 2), _slope(case, shape, most // 2, most))
    return found


def _slope(case: Case, shape: Shape, small: int, large: int) -> float:
    first, second = shape.make(small), shape.make(large)
    return max(0.0, (_peak(case, second) - _peak(case, first)) / max(1, len(second) - len(first)))


def _peak(case: Case, data: bytes) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        _run(case, data)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _run(case: Case, data: bytes) -> tuple[float, bool]:
    """Return the processor seconds of one run, and whether a RecursionError came out. Any refusal is an answer."""
    began = time.process_time()
    try:
        case.read(data)
    except RecursionError:
        return time.process_time() - began, True
    except Exception:  # noqa: BLE001 - how long a refusal takes counts all the same
        return time.process_time() - began, False
    return time.process_time() - began, False


def find_unread(cases: Iterable[Case], readers: Iterable[Reader]) -> list[str]:
    """Return the names of readers that no case runs."""
    ran: set[tuple[str, int]] = set()

    def note(stack: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            ran.add((stack.f_code.co_filename, stack.f_code.co_firstlineno))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            inputs = [*case.valid, *(shape.make(64) for shape in list(case.shapes())[::3])]
            sys.setprofile(note)
            try:
                for data in inputs:
                    _attempt(case.read, data)
            finally:
                sys.setprofile(None)
    return [reader.name for reader in readers if (str(reader.file), reader.line) not in ran]


def _attempt(read: Callable[[bytes], Any], data: bytes) -> None:
    try:
        read(data)
    except Exception:  # noqa: BLE001 - a refusal is an answer
        return


def format_table(found: Iterable[CaseGrowth]) -> Iterator[str]:
    """Yield a line for each case, and the largest figures."""
    rows = list(found)
    yield f"{'reader':44} {'shapes':>6} {'ratio':>6} {'ns/byte':>8} {'bytes/byte':>10}  allowed"
    for row in rows:
        ratio = f"{row.ratio.value:6.2f}" if row.ratio.value else "     -"
        allowed = "" if row.case.bytes_per_byte == 8 else f"{row.case.bytes_per_byte:g} x {row.case.limit:,} bytes"
        figures = f"{row.shapes:6} {ratio} {row.ns_a_byte.value:8.0f} {row.bytes_per_byte.value:10.1f}"
        yield f"{row.case.name[:44]:44} {figures}  {allowed}"
    yield f"readers {len(rows)}, inputs {sum(row.shapes for row in rows)}"
    largest = max(rows, key=lambda row: row.ratio.value)
    yield f"largest ratio at twice the input {largest.ratio.value:.2f}: {largest.case.name}, {largest.ratio.shape}"
    bound = [row for row in rows if row.case.bytes_per_byte == 8]
    if bound:
        free = max(bound, key=lambda row: row.bytes_per_byte.value)
        yield f"largest bytes a byte {free.bytes_per_byte.value:.1f}: {free.case.name}, {free.bytes_per_byte.shape}"
