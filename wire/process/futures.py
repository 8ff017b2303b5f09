"""Wait for a future that other tasks wait for, too: it goes on when one of its callers is cancelled.

`asyncio.shield` would do, but since Python 3.14 it hands the event loop an error that comes after its caller was
cancelled, which reads in the log like a defect.
"""

import asyncio
from typing import TypeVar

_Result = TypeVar("_Result")


async def await_shared(future: "asyncio.Future[_Result]") -> _Result:
    """The result, or the exception, of a future that goes on if its caller is cancelled; its error counts as seen."""
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        future.add_done_callback(_see_error)
        raise
    return future.result()


def _see_error(done: "asyncio.Future[_Result]") -> None:
    if not done.cancelled():
        done.exception()
