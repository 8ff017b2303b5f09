"""What one process is made to bear where thousands of devices live in it: descriptors, garbage, late callbacks."""

import asyncio
import contextlib
import errno
import gc
import resource
from collections.abc import Iterator
from typing import Any

_YOUNG = 100_000  # allocations between two looks at what is new


def all_descriptors() -> int:
    """Raise the soft limit of open files up to the hard one, for this process and those it starts. The limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def many_objects() -> Iterator[None]:
    """The garbage collector looks rarely: a device has no million objects that it walks through every few seconds."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, 50, 1000)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def settled() -> None:
    """What is here now stays: the collector never looks at it again."""
    gc.collect()
    gc.freeze()


def pass_over_closed(loop: asyncio.AbstractEventLoop) -> None:
    """The MQTT library asks to write to sockets that it has just closed; that is no news."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno == errno.EBADF):
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
