"""Graph runner that goes on with the next runner where the first cannot: a card that is gone or full, a precision.

Rule: only what the options allow is ever tried, and whoever looks sees it (`setup.fallback`). A batch that meets a
fault is computed again by the next runner, so that it is answered once; without a next one it fails, and the core
keeps its items. Several threads may run batches at once: the first that meets a fault replaces the runner, and those
that had a batch there go on with the next one too.
"""

import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from cloud_hub.engine.base import EngineError, EngineHealth
from cloud_hub.engine.bundle import Array, GraphRunner
from cloud_hub.engine.precision import PrecisionError
from cloud_hub.engine.types import EngineSetup
from models.bundle.manifest import BundleError


class DeviceFaultError(EngineError):
    """A graphics card vanished, is full, or computes no more; one line."""


_GIVES_WAY = (DeviceFaultError, PrecisionError)


class FallbackGraphRunner:
    """Runner of the first of several that works. `makers` are called one after the other, each when it is needed.

    `fallback`: why even the first is not what was asked for.
    """

    ranks: tuple[tuple[int, float], ...] = ()

    def __init__(self, makers: Sequence[Callable[[], GraphRunner]], fallback: str = "") -> None:
        self._makers = list(makers)
        self._runner = self._makers.pop(0)()
        self._why = fallback
        self._started = False
        self._replacing = threading.RLock()

    @property
    def inline(self) -> bool:
        """Whether the present runner may compute on the event loop's thread."""
        return self._runner.inline

    @property
    def depth(self) -> int:
        """Batches that the present runner takes at once."""
        return self._runner.depth

    @property
    def setup(self) -> EngineSetup:
        """Setup of the present runner, with why it is not the first."""
        found = self._runner.setup
        return msgspec.structs.replace(found, fallback=self._why or found.fallback)

    def start(self) -> None:
        """Start the first runner that can be. EngineError or BundleError of the last one tried."""
        with self._replacing:
            while not self._started:
                try:
                    self._runner.start()
                    self._started = True
                except _GIVES_WAY as fault:
                    self._replace_runner(fault)

    def run(self, graph: str, columns: Sequence[Array]) -> npt.NDArray[np.float32]:
        """Run a batch; after a fault on the next runner, which is loaded first."""
        runner = self._ensure_runner()
        try:
            return runner.run(graph, columns)
        except DeviceFaultError as fault:
            with self._replacing:
                if self._runner is runner:
                    self._replace_runner(fault)
        return self._ensure_runner().run(graph, columns)

    def _ensure_runner(self) -> GraphRunner:
        """The present runner, started. EngineError if none can be."""
        try:
            with self._replacing:
                self.start()
                return self._runner
        except BundleError as error:  # its files were sound at the start
            raise EngineError(str(error)) from None

    def health(self) -> EngineHealth:
        """Health of the present runner."""
        return self._runner.health()

    def stop(self) -> None:
        """Release the present runner."""
        self._runner.stop()

    def _replace_runner(self, fault: EngineError) -> None:
        """Make the next runner. Raises `fault` itself if there is none."""
        if not self._makers:
            raise fault
        self._runner.stop()
        self._started = False
        self._runner, self._why = self._makers.pop(0)(), str(fault)
