"""Who tries keys at the console or calls through a proxy takes nothing from others, and has no local rights."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cloud_hub.doubles.api_site import Site
from tests.cloud_hub.doubles.joiner import Joiner

STRANGER, OTHER = "203.0.113.7", "203.0.113.8"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path, console=True, trusted_proxies=["127.0.0.1"]).open()
    yield opened
    await opened.close()


async def try_keys(site: Site, times: int, **headers: str) -> list[int]:
    """Statuses of so many sign-ins with a wrong key."""
    return [(await site.ask("POST", "/signin", data={"key": "x"}, headers=headers))[0] for _ in range(times)]


async def test_wrong_keys_at_the_console_keep_no_device_of_the_same_address_from_enrolling(site: Site):
    assert 429 in await try_keys(site, 60)
    status, _ = await site.ask("POST", "/v1/enrol", json=Joiner().request(site.token()))
    assert status == 200


async def test_behind_a_trusted_proxy_each_caller_has_limits_of_its_own_and_the_audit_names_it(site: Site):
    assert 429 in await try_keys(site, 60, **{"X-Forwarded-For": STRANGER})
    assert await try_keys(site, 1, **{"X-Forwarded-For": OTHER}) == [401]
    assert {entry.address for entry in site.audit.last_entries(30)} == {STRANGER, OTHER}


async def test_a_caller_that_changes_what_it_says_of_itself_shares_one_limit(tmp_path: Path):
    site = await Site(tmp_path, console=True).open()  # no proxy is trusted
    try:
        statuses = [
            status for n in range(60) for status in await try_keys(site, 1, **{"X-Forwarded-For": f"1.1.1.{n}"})
        ]
        assert 429 in statuses
        assert {entry.address for entry in site.audit.last_entries(30)} == {"127.0.0.1"}
    finally:
        await site.close()


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
async def test_what_a_proxy_on_this_machine_passed_on_has_no_rights_of_this_machine(site: Site, name: str):
    assert (await site.ask("GET", "/metrics"))[0] == 200
    assert (await site.ask("GET", "/metrics", headers={name: "127.0.0.1"}))[0] == 401
