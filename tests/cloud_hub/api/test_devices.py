"""Renewal, retirement, CA rotation and alarms over the hub's web API."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloud_hub.enrollment.renewal import build_renew_text, build_retire_text
from tests.cloud_hub.doubles.api_site import DEVICE, Site
from tests.cloud_hub.doubles.joiner import Joiner
from tests.cloud_hub.enrollment.test_renewal import LEDGER


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path).open()
    yield opened
    await opened.close()


@pytest.fixture
async def joiner(site: Site) -> Joiner:
    found = Joiner()
    assert (await site.ask("POST", "/v1/enrol", json=found.request(site.token())))[0] == 200
    return found


def renewal(joiner: Joiner, device: str = DEVICE) -> dict[str, str]:
    csr = joiner.csr()
    return {"device": device, "csr": csr, "proof": joiner.proof(build_renew_text(device, csr))}


def retirement(joiner: Joiner) -> dict[str, str]:
    return {"device": DEVICE, "ledger": LEDGER, "proof": joiner.proof(build_retire_text(DEVICE, LEDGER))}


async def state(site: Site, state: str, **more: Any) -> tuple[int, Any]:
    body = {"state": state, **more}
    return await site.ask("POST", f"/v1/admin/devices/{DEVICE}/state", json=body, headers=site.admin)


async def test_a_device_renews_without_token_and_certificate(site, joiner):
    status, reply = await site.ask("POST", "/v1/renew", json=renewal(joiner))
    assert (status, set(reply)) == (200, {"body", "signature"})
    assert f'"hub_url":"{site.url}"' in reply["body"]


async def test_a_revoked_device_is_not_renewed_and_thrown_off(site, joiner):
    assert (await state(site, "revoked"))[0] == 200
    assert site.evicted == [DEVICE]
    status, reply = await site.ask("POST", "/v1/renew", json=renewal(joiner))
    assert (status, reply["error"]) == (403, "the device is revoked")


async def test_thousand_wrong_proofs_are_cut_off_and_enrolment_goes_on(site, joiner):
    wrong = {**renewal(joiner), "device": "demo--nobody"}
    statuses = [(await site.ask("POST", "/v1/renew", json=wrong))[0] for _ in range(300)]
    assert 20 <= statuses.count(403) <= 40
    assert statuses.count(429) == 300 - statuses.count(403)
    assert (await site.ask("POST", "/v1/enrol", json=Joiner().request(site.token())))[0] == 200


@pytest.mark.parametrize("body", [{}, {"device": DEVICE}, {"device": 1, "csr": "", "proof": ""}, []])
async def test_a_damaged_renewal_is_400(site, body):
    assert (await site.ask("POST", "/v1/renew", json=body))[0] == 400


async def test_a_device_retires_itself_and_its_ledger_is_named(site, joiner):
    status, reply = await site.ask("POST", "/v1/retire", json=retirement(joiner))
    assert (status, reply["state"]) == (200, "retired")
    _, shown = await site.ask("GET", f"/v1/admin/devices/{DEVICE}", headers=site.admin)
    assert (shown["state"], shown["why"], shown["ledger_sha256"]) == ("retired", "device", LEDGER)
    assert (await state(site, "active"))[0] == 409


async def test_a_ledger_hash_that_is_none_is_refused(site, joiner):
    assert (await site.ask("POST", "/v1/retire", json={**retirement(joiner), "ledger": "x"}))[0] == 400


async def test_retiring_drains_unless_there_is_nothing_to_wait_for(site, joiner):
    _, shown = await state(site, "retiring", drain_s=60)
    assert (shown["state"], site.evicted) == ("retiring", [])
    assert abs(shown["retire_at_ms"] / 1000 - time.time() - 60) < 20
    await state(site, "active")
    _, shown = await state(site, "retiring", drain_s=0)
    assert (shown["state"], site.evicted) == ("retired", [DEVICE])


async def test_the_ca_is_turned_in_two_steps(site, joiner):
    async def turn(**body: Any) -> Any:
        return await site.ask("POST", "/v1/admin/ca", json=body, headers=site.admin)

    assert (await turn(step="finish"))[0] == 409
    status, turned = await turn(step="rotate")
    assert (status, turned["waiting_for"]) == (200, [DEVICE])
    status, refused = await turn(step="finish")
    assert (status, DEVICE in refused["error"]) == (409, True)
    assert (await site.ask("POST", "/v1/renew", json=renewal(joiner)))[0] == 200
    _, shown = await site.ask("GET", "/v1/admin/ca", headers=site.admin)
    assert (shown["coming"], shown["waiting_for"]) == (turned["coming"], [])
    status, done = await turn(step="finish")
    assert (status, done["ca"], done["coming"], done["cut_off"]) == (200, turned["coming"], "", [])


async def test_who_is_cut_off_by_force_is_named(site, joiner):
    del joiner
    for body in ({"step": "rotate"}, {"step": "finish", "force": True}):
        _, shown = await site.ask("POST", "/v1/admin/ca", json=body, headers=site.admin)
    assert shown["cut_off"] == [DEVICE]


async def test_an_alarm_is_in_status_and_metrics(site, joiner):
    del joiner
    site.registry.suspect(DEVICE, 1)
    _, status = await site.ask("GET", "/v1/admin/status", headers=site.admin)
    assert status["alarms"]["clone_suspect"] == [DEVICE]
    assert status["enrolments"] == {"enrolled": 1}
    _, metrics = await site.ask("GET", "/metrics")
    assert 'skerry_hub_alarms{alarm="clone_suspect"} 1.0' in metrics
    assert 'skerry_hub_devices{state="suspended"} 1.0' in metrics
    assert 'skerry_hub_devices{state="active"} 0.0' in metrics


async def test_reuse_of_an_invite_is_counted(site, joiner):
    del joiner
    token = site.token()
    for _ in range(2):
        await site.ask("POST", "/v1/enrol", json=Joiner().request(token))
    _, status = await site.ask("GET", "/v1/admin/status", headers=site.admin)
    assert status["enrolments"]["refused.used"] == 1


async def test_an_invite_is_refused_while_devices_would_refuse_the_hub(tmp_path):
    from cloud_hub.security.authorities import RotatingAuthority  # noqa: PLC0415
    from cloud_hub.security.authority import utc_now  # noqa: PLC0415

    (tmp_path / "other").mkdir()
    foreign = RotatingAuthority.open(tmp_path / "other", utc_now()).ensure_server((), utc_now())
    site = await Site(tmp_path, tls_cert=str(foreign.certificate), tls_key=str(foreign.key)).open()
    try:
        site.url = site.url.replace("http:", "https:")
        body = {"device": DEVICE}
        status, said = await site.ask("POST", "/v1/admin/invites", json=body, headers=site.admin, ssl=False)
        assert (status, "api.tls_cert" in said["error"]) == (409, True)
    finally:
        await site.close()


async def test_a_hub_whose_clock_is_wrong_issues_no_certificate_until_it_is_right(tmp_path):
    fault = ""
    site = await Site(tmp_path, clock_fault=lambda: fault).open()
    try:
        joiner, token = Joiner(), site.token()
        fault = "this machine's clock is 86400 s ahead of the database's: set it right"
        for path, body in (("/v1/enrol", joiner.request(token)), ("/v1/renew", renewal(joiner))):
            assert await site.ask("POST", path, json=body) == (503, {"error": fault})
        status, _ = await site.ask("POST", "/v1/admin/ca", json={"step": "rotate"}, headers=site.admin)
        assert (status, site.authority.coming) == (503, None)
        fault = ""
        assert (await site.ask("POST", "/v1/enrol", json=joiner.request(token)))[0] == 200
        assert (await site.ask("POST", "/v1/renew", json=renewal(joiner)))[0] == 200
    finally:
        await site.close()


@pytest.mark.parametrize("path", ["/v1/admin/ca"])
async def test_the_ca_is_nobodys_without_the_admin_token(site, path):
    assert (await site.ask("GET", path))[0] == 401
    assert (await site.ask("POST", path, json={"step": "rotate"}))[0] == 401


async def test_a_device_that_renews_in_a_loop_keeps_none_of_its_address_from_renewing(tmp_path):
    site = await Site(tmp_path).open()
    site.context.gates.renew.divide_rates(20, time.monotonic())  # 100 attempts at once
    try:
        bodies = {}
        for device in (DEVICE, "demo--d2"):
            joiner = Joiner()
            assert (await site.ask("POST", "/v1/enrol", json=joiner.request(site.token(device))))[0] == 200
            bodies[device] = renewal(joiner, device)
            assert (await site.ask("POST", "/v1/renew", json=bodies[device]))[0] == 200
        loop = [(await site.ask("POST", "/v1/renew", json=bodies[DEVICE]))[0] for _ in range(150)]
        assert loop[-1] == 429
        assert (await site.ask("POST", "/v1/renew", json=bodies["demo--d2"]))[0] == 200
    finally:
        await site.close()
