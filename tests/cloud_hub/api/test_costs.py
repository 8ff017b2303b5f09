"""`GET /v1/costs`: a tenant sees its own lines; prices only where a currency is set."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.llm.echo import EchoFault
from cloud_hub.llm.telemetry import describe_usage
from cloud_hub.registry.access import Scope
from cloud_hub.storage.costs import DAY_MS, CostEntry, CostKind
from cloud_hub.storage.prices import PriceList, UnitPrices
from tests.cloud_hub.doubles.api_site import Site
from tests.cloud_hub.doubles.language_site import language_site

NOW_MS = 20_000 * DAY_MS


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    prices = PriceList("EUR", models={"chat": UnitPrices(request=0.25)})
    opened = await Site(tmp_path, now_ms=lambda: NOW_MS, prices=lambda: prices).open()
    for day, tenant in ((19_960, "acme"), (19_999, "acme"), (20_000, "clinic")):
        opened.store.entries.append(CostEntry(day, tenant, "chat", "eu", "requests", 4))
    yield opened
    await opened.close()


async def test_the_whole_hub_sees_every_tenant_and_a_tenant_itself(site: Site):
    status, bill = await site.ask("GET", "/v1/costs", headers=site.admin)
    assert (status, bill["currency"], bill["total"]) == (200, "EUR", 2.0)
    assert [(line["day"], line["tenant"]) for line in bill["costs"]] == [
        ("2024-10-03", "acme"),
        ("2024-10-04", "clinic"),
    ]
    key = site.key("clinic", Scope.READ, at_ms=NOW_MS)
    _, own = await site.ask("GET", "/v1/costs?days=400", headers=key)
    assert [(line["tenant"], line["amounts"], line["price"]) for line in own["costs"]] == [
        ("clinic", {"requests": 4}, 1.0)
    ]


async def test_a_key_without_the_scope_and_a_wrong_number_of_days_are_refused(site: Site):
    assert (await site.ask("GET", "/v1/costs"))[0] == 401
    assert (await site.ask("GET", "/v1/costs", headers=site.key("acme", Scope.INFER, at_ms=NOW_MS)))[0] == 403
    for days in ("0", "401", "x", "-1", "99999"):
        assert (await site.ask("GET", f"/v1/costs?days={days}", headers=site.admin))[0] == 400


async def test_without_a_currency_there_are_no_prices(tmp_path: Path):
    opened = await Site(tmp_path).open()
    opened.store.entries.append(CostEntry(int(time.time() * 1000) // DAY_MS, "acme", "chat", "eu", "requests", 4))
    _, bill = await opened.ask("GET", "/v1/costs", headers=opened.admin)
    await opened.close()
    assert (bill["currency"], bill["total"], bill["costs"][0]["price"]) == ("", None, None)


@pytest.mark.parametrize("fault", [EchoFault.NO_USAGE, EchoFault.ABSURD_USAGE])
async def test_an_engine_that_tells_no_usage_or_nonsense_is_billed_by_the_hubs_own_count(tmp_path: Path, fault):
    async with language_site(tmp_path) as site:
        site.engines[0].fault = fault
        assert (await site.stream(max_tokens=7)).count(b"[DONE]") == 1
        (record,) = site.records
        assert (record.complete, record.estimated, record.generated_tokens, record.cached_tokens) == (True, True, 7, 0)
        assert record.prompt_tokens > 0


async def test_tokens_are_billed_as_the_engine_counted_them(tmp_path: Path):
    async with language_site(tmp_path) as site:
        words = " ".join(f"w{n}" for n in range(40))
        for stream in (True, False, True):
            await site.stream(messages=[{"role": "user", "content": words}], max_tokens=7, stream=stream)
        used = [describe_usage(record).amounts for record in site.records]
        (engine,) = site.engines
        assert sum(each[CostKind.TOKENS_OUT] for each in used) == engine.generated_tokens == 21
        assert (
            sum(each[CostKind.TOKENS_IN] + each[CostKind.TOKENS_CACHED] for each in used) == engine.prompt_tokens == 120
        )
        assert sum(each[CostKind.TOKENS_CACHED] for each in used) == engine.cached_tokens == 64
        assert [each[CostKind.REQUESTS] for each in used] == [1, 1, 1]
