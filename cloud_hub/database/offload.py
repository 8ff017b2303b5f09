"""Statements that would keep the event loop waiting for a server, on one thread beside it; on files they run at once.

Rule: they run one after another, in the order they were given, so that whoever owns rows is asked by one at a time.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from cloud_hub.database.connection import is_server

P = ParamSpec("P")
T = TypeVar("T")


class OrderedWork:
    """Runs work of the event loop that asks the database at `url`: inline for files, else on a thread.

    `report` gets, on that thread, what work raised that nobody waits for.
    """

    def __init__(self, url: str = "", report: Callable[[BaseException], None] = lambda _: None) -> None:
        self._report = report
        served = bool(url) and is_server(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hub-registry") if served else None

    async def run(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run work and return its result, or raise what it raises. A caller that goes away does not end it."""
        if self._thread is None:
            return work(*arguments, **options)
        call = functools.partial(work, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def submit(self, work: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
        """Run work that nobody waits for."""
        if self._thread is None:
            work(*arguments, **options)
        else:
            self._thread.submit(work, *arguments, **options).add_done_callback(self._report_failure)

    def _report_failure(self, done: "Future[object]") -> None:
        error = done.exception()
        if error is not None:
            self._report(error)

    def close(self) -> None:
        """Finish what was given."""
        if self._thread is not None:
            self._thread.shutdown()
