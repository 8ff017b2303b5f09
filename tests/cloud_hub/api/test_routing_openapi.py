"""`/openapi.json`: every route is described, and schemathesis finds no answer that the description forbids."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.api.routing import RouteAccess
from tests.cloud_hub.doubles.api_site import Site

SCHEMATHESIS = """
import sys
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

schema = schemathesis.openapi.from_url(sys.argv[1] + "/openapi.json")
headers = {"Authorization": sys.argv[2]}
# A shape that must fit a model, or a name of a device that may stand in a topic, is beyond JSON Schema.
skipped = {"positive_data_acceptance", "unsupported_method", "ignored_auth", "ensure_resource_availability"}
seen = 0
for result in schema.get_all_operations():
    operation = result.ok()

    @given(case=operation.as_strategy())
    @settings(max_examples=int(sys.argv[3]), deadline=None, database=None, derandomize=True, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    def ask(case):
        global seen
        seen += 1
        case.call_and_validate(headers=headers, excluded_checks=[c for c in CHECKS.get_all() if c.__name__ in skipped])

    ask()
print(seen)
"""


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
        assert operation["security"] == ([] if route.door is RouteAccess.OPEN else [{"key": []}])
        assert operation["summary"] == route.summary
        assert ("requestBody" in operation) == (route.method == "POST")
    ids = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


async def test_every_reference_in_the_description_leads_somewhere(site):
    _, described = await site.ask("GET", "/openapi.json")
    text = json.dumps(described)
    schemas = described["components"]["schemas"]
    assert all(name in schemas for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]})


async def test_schemathesis_finds_no_answer_that_the_description_forbids(site):
    """In a process of its own: it brings threads and plugins."""
    words = (site.url, site.admin["Authorization"], "8")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SCHEMATHESIS, *words, stdout=-1, stderr=-1)
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-3000:]
    assert int(out) > 150
