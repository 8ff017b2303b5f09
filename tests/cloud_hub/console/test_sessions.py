"""Browser sessions: kept over a restart, over when their key is, and worth nothing without the CSRF token."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cloud_hub.registry.access import Scope
from cloud_hub.registry.sessions import MAX_SESSIONS, SESSION_MS, BrowserSessions, SessionOwner, csrf_token
from tests.cloud_hub.doubles.api_site import DEVICE, Site

OWNER = SessionOwner("k1", "s")
STATE = f"/v1/admin/devices/{DEVICE}/state"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = await Site(tmp_path, console=True).open()
    await opened.enrolled(DEVICE)
    yield opened
    await opened.close()


def cookie(site: Site, headers: dict[str, str]) -> tuple[dict[str, str], str]:
    """A session that this key began: its cookie, and its CSRF token."""
    secret = headers["Authorization"].removeprefix("Bearer ")
    entrance = site.entrance
    caller = entrance.find_caller(secret)
    assert caller is not None
    _, token = entrance.sessions.begin(entrance.describe_owner(secret, caller), site.context.now_ms())
    return {f"skerry-session-{site.url.rpartition(':')[2]}": token}, csrf_token(token)


def test_sessions_outlive_a_restart_and_their_file_holds_no_token(tmp_path: Path):
    path = tmp_path / "sessions.json"
    session, token = BrowserSessions.open(path).begin(OWNER, 1000)
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    again = BrowserSessions.open(path)
    assert again.find(token, 2000) == session
    again.end(session)
    assert BrowserSessions.open(path).find(token, 2000) is None


def test_a_session_ends_by_itself_and_a_wrong_token_finds_none():
    sessions = BrowserSessions()
    _, token = sessions.begin(OWNER, 1000)
    assert sessions.find(token, 1000 + SESSION_MS - 1)
    assert sessions.find(token, 1000 + SESSION_MS) is None
    assert sessions.find(token + "x", 1001) is None


@pytest.mark.parametrize("content", [b"", b"{", b'[{"digest": 1}]', b"\xff" * 100])
def test_a_damaged_file_of_sessions_holds_none(tmp_path: Path, content: bytes):
    (tmp_path / "sessions.json").write_bytes(content)
    sessions = BrowserSessions.open(tmp_path / "sessions.json")
    _, token = sessions.begin(OWNER, 1)
    assert BrowserSessions.open(tmp_path / "sessions.json").find(token, 2)


def test_a_full_disk_takes_a_session_to_the_next_restart(tmp_path: Path):
    sessions = BrowserSessions.open(tmp_path / "gone" / "sessions.json")
    _, token = sessions.begin(OWNER, 1)
    assert sessions.find(token, 2)
    assert sessions.unsaved == 1


def test_of_too_many_sessions_the_oldest_goes():
    sessions = BrowserSessions()
    tokens = [sessions.begin(OWNER, 1)[1] for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(tokens[0], 2) is None
    assert sessions.find(tokens[1], 2)


@pytest.mark.parametrize("hostile", [1, 10])
def test_keys_that_sign_in_again_and_again_end_no_session_or_code_of_another(hostile):
    sessions = BrowserSessions()
    token = sessions.begin(OWNER, 1)[1]
    code = sessions.make_code(OWNER, 1)
    for number in range(2 * MAX_SESSIONS):
        other = SessionOwner(f"hostile-{number % hostile}", "s")
        last = sessions.begin(other, 1)[1]
        sessions.make_code(other, 1)
    assert sessions.find(token, 2)
    assert sessions.find(last, 2)
    assert sessions.use_code(code, 2) == OWNER


def test_of_more_keys_than_sessions_the_newest_has_one():
    sessions = BrowserSessions()
    tokens = [sessions.begin(SessionOwner(str(number), "s"), 1)[1] for number in range(MAX_SESSIONS + 1)]
    assert sessions.find(tokens[-1], 2)
    assert sum(sessions.find(token, 2) is not None for token in tokens) == MAX_SESSIONS


def test_a_code_begins_one_session_within_a_minute():
    sessions = BrowserSessions()
    code, late = sessions.make_code(OWNER, 0), sessions.make_code(OWNER, 0)
    assert sessions.use_code(code, 59_999) == OWNER
    assert sessions.use_code(code, 59_999) is None
    assert sessions.use_code(late, 60_000) is None


async def test_a_session_may_do_what_its_key_may_and_the_audit_names_the_key(site):
    cookies, csrf = cookie(site, site.key("", Scope.READ, Scope.OPERATE))
    headers = {"X-CSRF-Token": csrf}
    status, _ = await site.ask("POST", STATE, json={"state": "suspended"}, cookies=cookies, headers=headers)
    assert status == 200
    assert site.audit.last_entries(1)[0].caller == site.keys.list_keys()[0].id


@pytest.mark.parametrize("headers", [{}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": "\u00ff"}])
async def test_a_forged_change_is_refused_and_audited(site, headers):
    cookies, _ = cookie(site, site.admin)
    status, reply = await site.ask("POST", STATE, json={"state": "revoked"}, cookies=cookies, headers=headers)
    assert (status, site.registry.device(DEVICE).state) == (403, "active")
    assert "from a page of this hub" in reply["error"]
    assert site.audit.last_entries(1)[0].status == 403


async def test_another_sites_request_is_refused_whatever_it_carries(site):
    cookies, csrf = cookie(site, site.admin)
    headers = {"X-CSRF-Token": csrf, "Origin": "https://evil.example"}
    status, _ = await site.ask("POST", STATE, json={"state": "revoked"}, cookies=cookies, headers=headers)
    assert (status, site.registry.device(DEVICE).state) == (403, "active")
    form = {"key": site.admin["Authorization"].removeprefix("Bearer ")}
    status, _ = await site.ask("POST", "/signin", data=form, headers={"Origin": "https://evil.example"})
    assert status == 403


async def test_a_readers_session_changes_nothing(site):
    cookies, csrf = cookie(site, site.key("", Scope.READ))
    headers = {"X-CSRF-Token": csrf}
    status, _ = await site.ask("POST", STATE, json={"state": "revoked"}, cookies=cookies, headers=headers)
    assert (status, site.registry.device(DEVICE).state) == (403, "active")


async def test_a_revoked_key_ends_its_sessions_with_the_next_request(site):
    cookies, _ = cookie(site, site.key("", Scope.READ))
    assert (await site.ask("GET", "/v1/session", cookies=cookies))[0] == 200
    site.keys.revoke(site.keys.list_keys()[0].id, 1)
    assert (await site.ask("GET", "/v1/session", cookies=cookies))[0] == 401


async def test_a_replaced_admin_token_ends_its_sessions(site):
    cookies, _ = cookie(site, site.admin)
    site.token_file.unlink()
    await site.api.stop()
    await site.open_again()
    assert (await site.ask("GET", "/v1/session", cookies=cookies))[0] == 401


async def test_a_session_makes_no_other_and_a_token_ends_none(site):
    cookies, csrf = cookie(site, site.admin)
    headers = {"X-CSRF-Token": csrf}
    assert (await site.ask("POST", "/v1/session/code", json={}, cookies=cookies, headers=headers))[0] == 409
    assert (await site.ask("DELETE", "/v1/session", headers=site.admin))[0] == 409


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nX: y", "/signin", "javascript:x", ""]
)
async def test_signing_in_leads_to_a_page_of_this_hub_alone(site, wanted):
    form = {"key": site.admin["Authorization"].removeprefix("Bearer "), "next": wanted}
    async with site.client.post(site.url + "/signin", data=form, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/")


async def test_wrong_keys_are_audited_and_slowed_down(site):
    statuses = [(await site.ask("POST", "/signin", data={"key": "x"}))[0] for _ in range(60)]
    assert 20 <= statuses.count(401) <= 40
    assert statuses.count(429) == 60 - statuses.count(401)
    assert {(e.route, e.status) for e in site.audit.last_entries(30)} == {("/signin", 401)}


async def test_a_key_that_may_not_read_signs_nobody_in(site):
    form = {"key": site.key("", Scope.INFER)["Authorization"].removeprefix("Bearer ")}
    status, text = await site.ask("POST", "/signin", data=form)
    assert status == 401
    assert "may not read" in text


async def test_no_page_may_be_framed_or_kept_and_none_runs_what_is_not_the_hubs(site):
    for path in ("/signin", "/"):
        async with site.client.get(site.url + path, headers=site.admin) as response:
            assert response.status == 200
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Frame-Options"] == "DENY"
            assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2fapp.py", "vendor/../../app.py", "%00", "x" * 300, "console.py", ""]
)
async def test_static_files_are_those_of_their_folder_alone(site, name):
    status, _ = await site.ask("GET", f"/static/0/{name}")
    assert status == 404
