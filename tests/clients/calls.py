"""The blocking and the asyncio client behind one face, so that each story of a call is told of both."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from skerry_client import Agent, AsyncAgent, AsyncHub, Hub
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api

KINDS = ("blocking", "asyncio")
AGENTS: dict[str, type[Agent | AsyncAgent]] = {"blocking": Agent, "asyncio": AsyncAgent}
HUBS: dict[str, type[Hub | AsyncHub]] = {"blocking": Hub, "asyncio": AsyncHub}


async def call(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call returns. It is made in a thread, as the server is on this loop; a coroutine is awaited here."""
    result = await asyncio.to_thread(method, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def take(count: int, iterator: Iterator[Any] | AsyncIterator[Any]) -> list[Any]:
    """The first items of an iterator, or all if they are fewer; it is closed then."""
    found: list[Any] = []
    end = object()
    while len(found) < count:
        if isinstance(iterator, AsyncIterator):
            item = await anext(iterator, end)
        else:
            item = await asyncio.to_thread(next, iterator, end)
        if item is end:
            return found
        found.append(item)
    await close(iterator)
    return found


async def close(iterator: Any) -> None:
    if isinstance(iterator, AsyncIterator):
        await iterator.aclose()  # type: ignore[attr-defined]
    else:
        await asyncio.to_thread(iterator.close)


@asynccontextmanager
async def asking(kind: str, agent: MemoryAgent, **options: Any) -> AsyncIterator[Any]:
    """A client of an agent on a free port."""
    async with serve_api(agent, **options) as session:
        client = AGENTS[kind](address_of(session))
        try:
            yield client
        finally:
            await call(client.close)


def address_of(session: aiohttp.ClientSession) -> str:
    return str(session._base_url).rstrip("/")
