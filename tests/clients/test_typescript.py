"""The TypeScript client: compiled strictly, typed by the servers' own documents, run by node against an agent's API."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from edge_agent.question.records import EventRecord
from tests import ROOT
from tests.clients.calls import address_of
from tests.clients.typescript import SOURCE, WORKSPACE, compile_client, run, write_types
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api

pytestmark = [pytest.mark.further, pytest.mark.timeout(900)]
EXPECTED = {
    "unfit": [True, True, True],
    "absent": True,
    "asked": True,
    "correction": "correction",
    "streamed": True,
    "why": True,
    "refused": 400,
}


def test_it_compiles_strictly():
    compile_client()
    assert (WORKSPACE / "dist" / "index.d.ts").exists()


async def test_its_types_are_those_of_the_servers_documents(tmp_path):
    await write_types(tmp_path, tmp_path)
    for name in ("agent.ts", "hub.ts"):
        fresh, kept = (tmp_path / name).read_text(), (SOURCE / "src" / name).read_text()
        assert fresh == kept, f"{name}: the routes have changed: make client-types"


class AgentHeard(MemoryAgent):
    """An agent whose first answer is corrected once somebody listens for it, not before."""

    async def events(self, after: int) -> AsyncIterator[EventRecord]:
        if len(self.records) == 1:
            await self.verdict(self.records[0].id, 1)
        async for event in super().events(after):
            yield event


async def test_node_asks_and_reads_a_correction():
    await asyncio.to_thread(compile_client)
    async with serve_api(AgentHeard()) as session:
        script = str(ROOT / "tests" / "clients" / "ask.mjs")
        words = ("node", script, str(WORKSPACE / "dist" / "index.js"), address_of(session), "0.4", "0.3", "0.3")
        assert json.loads(await asyncio.to_thread(run, *words)) == EXPECTED
