"""`/openapi.json`: every route is described, and schemathesis finds no answer that the description forbids."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.api.routing import LOCAL_OPEN, RouteAccess, describe_routes
from tests.cloud_hub.doubles.api_site import Site

ASK = ("run", "--checks", "all", "--seed", "1", "--max-examples", "2", "--no-color", "--suppress-health-check", "all")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    yield opened
    await opened.close()


async def test_every_route_that_is_served_is_described_and_no_other(site):
    _, described = await site.ask("GET", "/openapi.json")
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in site.api.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {(method, path) for path, methods in described["paths"].items() for method in methods} == served


async def test_the_description_says_who_may(site):
    _, described = await site.ask("GET", "/openapi.json")
    for route in site.api.routes:
        operation = described["paths"][route.canonical][route.method.lower()]
        optional: list[dict[str, list[str]]] = [{}, {"key": []}] if route.access in LOCAL_OPEN else [{"key": []}]
        assert operation["security"] == ([] if route.access is RouteAccess.OPEN else optional)
        assert operation["summary"] == route.summary
        assert ("requestBody" in operation) == (route.method == "POST")
    elsewhere = describe_routes(site.api.routes, "1", local=False)
    assert elsewhere["paths"]["/v2"]["get"]["security"] == [{"key": []}]
    ids = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


async def test_every_reference_in_the_description_leads_somewhere(site):
    _, described = await site.ask("GET", "/openapi.json")
    text = json.dumps(described)
    schemas = described["components"]["schemas"]
    assert all(name in schemas for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]})


@pytest.mark.further
async def test_schemathesis_finds_no_answer_that_the_description_forbids_stateful_runs_too(site):
    """In a process of its own: it brings threads and plugins."""
    await site.enrolled("demo--cam-1")
    words = (*ASK, site.url + "/openapi.json", "-H", f"Authorization: {site.admin['Authorization']}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", *words, stdout=-1, stderr=-1, cwd=site.token_file.parent
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, out.decode()[-6000:] + errors.decode()[-1000:]
    _, described = await site.ask("GET", "/openapi.json")
    others = sum(map(len, described["paths"].values())) - 1  # than the description itself
    assert f"Tested: {others}\n" in out.decode()
    assert re.search(r"Stateful \(in .*\)", out.decode())
