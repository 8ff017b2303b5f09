"""Time limits of single steps, and failures in words: a step that takes too long is named, with its limit.

Rule: no log, status or error line has a bare `TimeoutError`, which says neither what was waited for nor how long.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StepTimeoutError(TimeoutError):
    """A step was not done within its limit; the text names both."""

    def __init__(self, step: str, limit_s: float) -> None:
        super().__init__(f"{step}: no answer within {limit_s:g} s")


@asynccontextmanager
async def limit_step(step: str, limit_s: float) -> AsyncIterator[None]:
    """Run the block for `limit_s` seconds at most, else StepTimeoutError. `step`: what is waited for, "TLS handshake".

    A limit inside that is over first keeps its own name.
    """
    try:
        async with asyncio.timeout(limit_s):
            yield
    except StepTimeoutError:
        raise
    except TimeoutError:
        raise StepTimeoutError(step, limit_s) from None


def describe_failure(error: BaseException, step: str, limit_s: float) -> str:
    """What failed, in one line: a timeout by its step and limit, an error of the system by its own words."""
    if isinstance(error, TimeoutError) and not isinstance(error, StepTimeoutError):
        return str(StepTimeoutError(step, limit_s))
    return getattr(error, "strerror", None) or str(error) or f"{step}: {type(error).__name__}"
