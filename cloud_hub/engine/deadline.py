"""Time limit for an engine of one process to load: beyond it the engine is given up, whatever its thread still does.

Rule: a thread cannot be killed. One that is given up ends by itself, and stops the engine that it then has, so that
its memory is free again; nobody waits for it.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from cloud_hub.engine.base import ENGINE_FAULTS, Engine, EngineError
from models.bundle.manifest import BundleError


def start_engine(make: Callable[[], Engine], name: str, ready_s: float) -> Engine:
    """Make an engine and start it, both within `ready_s` seconds. `name`: of its model.

    EngineError with one line after that time; what `make` or `start` raise goes through.
    """
    start = _EngineStart(make)
    threading.Thread(target=start.run, name=f"hub-load-{name}", daemon=True).start()
    if not start.ended.wait(ready_s) and start.give_up():
        raise EngineError(f"{name}: was not loaded within {ready_s:g} s: set a larger ready_s, if its files are sound")
    found = start.outcome.get()
    if isinstance(found, BaseException):
        raise found
    return found


class _EngineStart:
    """One attempt. Either its outcome is taken, or it is given up: never both."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._given_up = False
        self.ended = threading.Event()
        self.outcome: SimpleQueue[Engine | BaseException] = SimpleQueue()

    def give_up(self) -> bool:
        """Leave the attempt to itself; False if it has just ended."""
        with self._lock:
            self._given_up = not self.ended.is_set()
            return self._given_up

    def run(self) -> None:
        """Make and start the engine; runs on a thread of its own."""
        try:
            engine = self._make()
            engine.start()
        except (*ENGINE_FAULTS, BundleError) as error:
            self._end(error)
            return
        if not self._end(engine):
            engine.stop()

    def _end(self, found: Engine | BaseException) -> bool:
        """Hand over the outcome; False if nobody takes it any more."""
        with self._lock:
            self.outcome.put(found)
            self.ended.set()
            return not self._given_up
