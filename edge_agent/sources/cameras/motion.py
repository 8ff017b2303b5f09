"""Motion gate: whether a camera's picture differs from the last one that was answered. Pure."""

from typing import Any

import numpy as np
import numpy.typing as npt

Grey = npt.NDArray[np.uint8]
GRID = (30, 40)  # cells of a picture, rows and columns
LEVEL = 8.0  # of 255: a cell whose mean brightness differs by more has changed; above the noise of a sensor
_SAMPLES_PER_CELL = 8  # rows and columns of a cell that are looked at, at most


def shrink_grey(grey: Grey) -> npt.NDArray[np.float32]:
    """Mean brightness of each cell of `GRID`, from a grey picture `[height, width]` of any size."""
    steps = [max(1, size // (cells * _SAMPLES_PER_CELL)) for size, cells in zip(grey.shape, GRID, strict=True)]
    thin = grey[:: steps[0], :: steps[1]]
    rows, columns = _cell_starts(thin.shape[0], GRID[0]), _cell_starts(thin.shape[1], GRID[1])
    sums = np.add.reduceat(np.add.reduceat(thin, rows, axis=0, dtype=np.uint32), columns, axis=1)
    counts = np.outer(_cell_sizes(rows, thin.shape[0]), _cell_sizes(columns, thin.shape[1]))
    means: npt.NDArray[np.float32] = (sums / counts).astype(np.float32)
    return means


def _cell_starts(size: int, cells: int) -> npt.NDArray[Any]:
    """First row or column of each cell; cells share one where there are fewer."""
    return np.arange(cells) * size // cells


def _cell_sizes(starts: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Rows or columns that `reduceat` adds for each cell: one where the next cell starts at the same."""
    return np.maximum(np.diff(np.append(starts, size)), 1)


class MotionGate:
    """Compares pictures with the last one that passed, so that slow changes add up and pass too.

    `share`: of the cells that have to change, 0..1; 0 lets every picture pass.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._last: npt.NDArray[np.float32] | None = None

    def is_still(self, cells: npt.NDArray[np.float32]) -> bool:
        """Whether these cells (`shrink_grey`) are those of the last picture that passed."""
        if self._last is None or not self._share:
            return False
        changed = np.count_nonzero(np.abs(cells - self._last) > LEVEL)
        return bool(changed < max(1.0, self._share * cells.size))

    def note_passed(self, cells: npt.NDArray[np.float32]) -> None:
        """A picture went on to be answered: the next ones are compared with it."""
        self._last = cells
