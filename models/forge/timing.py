"""Load meter of timing loops: whether a latency was measured while others had the processor.

Rule: a median of microseconds taken on a busy machine is told with that; it is never corrected, for nobody knows by how
much. Standard library only.
"""

import time
from types import TracebackType
from typing import Self

BUSY_RATIO = 1.2  # wall time over processor time: from here on others had the processor for a sixth of the time
NOTE = "measured on a busy machine"


class LoadMeter:
    """Context manager around a timing loop of work on processors: compares its wall time with its processor time.

    Processor time is the whole process's, so that a loop of several threads never looks busy for its own sake.
    """

    def __init__(self) -> None:
        self.wall_s = self.processor_s = 0.0
        self._began = (0.0, 0.0)

    @property
    def busy(self) -> bool:
        """Whether the loop waited for a processor for so long that its times mean little."""
        return self.wall_s > BUSY_RATIO * self.processor_s

    def __enter__(self) -> Self:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.wall_s += time.perf_counter() - self._began[0]
        self.processor_s += time.process_time() - self._began[1]
