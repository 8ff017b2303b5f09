"""`/openapi.json` of the agent: every route is described, and schemathesis finds no answer that it forbids."""

import asyncio
import re
import sys

import pytest

from edge_agent.api.app import build_app
from edge_agent.console.pages import PAGE_ROUTES
from tests.edge_agent.doubles.api_double import MemoryAgent, serve_api
from wire.http.access import ServerAccess

# An event stream never ends, so schemathesis cannot wait for it: test_app.py reads it. 20 others are asked.
ASK = (
    "run", "--checks", "all", "--seed", "1", "--max-examples", "2", "--no-color", "--suppress-health-check", "all",
    "--exclude-path", "/v1/events",
)  # fmt: skip


async def test_every_route_that_the_agent_serves_is_described_and_no_other():
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in build_app(MemoryAgent(), ServerAccess()).router.routes()
        if route.resource is not None and route.method != "HEAD"
    } - {("get", page) for page in PAGE_ROUTES}
    async with serve_api(MemoryAgent()) as session:
        described = await (await session.get("/openapi.json")).json()
    assert {(method, path) for path, methods in described["paths"].items() for method in methods} == served


async def test_the_agents_description_says_where_the_token_is_needed(tmp_path):
    access = ServerAccess(token_file=str(tmp_path / "token"))
    async with serve_api(MemoryAgent(), access) as session:
        assert (await session.get("/openapi.json")).status == 401
        assert (await session.get("/v2/models/echo/config")).status == 404
        headers = {"Authorization": f"Bearer {(tmp_path / 'token').read_text().strip()}"}
        paths = (await (await session.get("/openapi.json", headers=headers)).json())["paths"]
    need = {path: next(iter(methods.values()))["security"] for path, methods in paths.items()}
    assert need.pop("/healthz") == []
    assert all(security == [{"key": []}] for security in need.values())


async def test_feedback_is_described_for_the_model_that_answers():
    async with serve_api(MemoryAgent()) as session:
        paths = (await (await session.get("/openapi.json")).json())["paths"]
    body = paths["/v1/answers/{id}/feedback"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    number, name = body["properties"]["truth"]["anyOf"]
    assert (number["maximum"], name["enum"]) == (2, ["0", "1", "2"])


@pytest.mark.further
async def test_schemathesis_finds_no_answer_of_the_agent_that_the_description_forbids(tmp_path):
    """In a process of its own: it brings threads and plugins."""
    async with serve_api(MemoryAgent()) as session:
        url = f"{str(session._base_url).rstrip('/')}/openapi.json"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", *ASK, url, stdout=-1, stderr=-1, cwd=tmp_path
        )
        out, errors = await process.communicate()
    assert process.returncode == 0, out.decode()[-6000:] + errors.decode()[-1000:]
    assert re.search(r"Tested: 20\n", out.decode()), out.decode()[-1500:]


@pytest.mark.parametrize(
    "parameters", [{"timeout": 250_000}, {"sequence_id": 7}, {"sequence_start": True}, {"sequence_end": True}]
)
async def test_what_the_agent_does_not_offer_is_refused_and_not_ignored(parameters):
    agent = MemoryAgent()
    tensor = {"name": "scores", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.9, 0.0]}
    none = {"timeout": 0, "sequence_id": 0, "priority": 1}
    async with serve_api(agent) as session:
        for asked, status in ((parameters, 400), (none, 200)):
            body = {"inputs": [tensor], "parameters": asked}
            async with session.post("/v2/models/echo/infer", json=body) as response:
                assert response.status == status
                assert status == 200 or next(iter(parameters)) in (await response.json())["error"]
    assert len(agent.samples) == 1
