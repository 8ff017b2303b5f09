"""The least that a gateway can do, with the library that the hub uses: hands a streamed answer on and looks at nothing.

The limit that the hub's CPU for a chunk is compared with: no keys, no queue, no failover, no usage, no limits of time.
"""

import argparse
import asyncio

import aiohttp
from aiohttp import web

from cloud_hub.api.language_models import STREAM_HEADERS

_PATH = "/v1/chat/completions"


async def _serve(port: int, engine: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def hand_on(request: web.Request) -> web.StreamResponse:
            async with session.post(engine + _PATH, data=await request.read()) as answer:
                response = web.StreamResponse(headers=STREAM_HEADERS)
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    await response.write(part)
                await response.write_eof()
                return response

        app = web.Application()
        app.add_routes([web.post(_PATH, hand_on)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm.pass_through", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True, help="URL of the engine")
    given = parser.parse_args()
    asyncio.run(_serve(given.port, given.engine))


if __name__ == "__main__":
    main()
