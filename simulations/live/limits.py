"""Process limits for thousands of agents in one process: file descriptors, garbage collector, late callbacks."""

import asyncio
import contextlib
import errno
import gc
import resource
from collections.abc import Iterator
from typing import Any

_YOUNG = 100_000  # allocations between two looks at what is new


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files up to the hard one, also for child processes; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def relax_collector() -> Iterator[None]:
    """Let the garbage collector run rarely: it would walk through millions of objects every few seconds."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, 50, 1000)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def freeze_objects() -> None:
    """Exclude everything that exists now from garbage collection."""
    gc.collect()
    gc.freeze()


def ignore_closed_sockets(loop: asyncio.AbstractEventLoop) -> None:
    """Ignore errors of the MQTT library on sockets that it has just closed."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno == errno.EBADF):
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
