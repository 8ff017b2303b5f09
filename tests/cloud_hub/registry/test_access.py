"""API keys of tenants: what is stored, which tokens are accepted, which requests for keys are refused."""

import stat

import pytest

from cloud_hub.registry.access import AccessError, ApiKeys, KeyRequest, Scope

NOW = 1_000_000
WANTED = KeyRequest("ward", (Scope.READ, Scope.INFER), "clinic")


def test_a_key_is_known_by_its_token_and_by_nothing_else(urls):
    keys = ApiKeys.open(urls.access)
    key, token = keys.create(WANTED, NOW)
    caller = keys.find_caller(token, NOW)
    assert caller is not None
    assert (caller.name, caller.tenant, set(caller.scopes)) == (key.id, "clinic", {Scope.READ, Scope.INFER})
    for wrong in (
        "",
        key.id,
        token[:-1],
        token + "A",
        token.replace("skerry", "SKERRY"),
        f"skerry_{key.id}_{'A' * 43}",
    ):
        assert keys.find_caller(wrong, NOW) is None
    keys.close()


def test_the_token_lies_nowhere_on_disk_and_the_file_is_private(tmp_path):
    keys = ApiKeys.open(tmp_path / "access.db")
    _, token = keys.create(WANTED, NOW)
    keys.close()
    raw = (tmp_path / "access.db").read_bytes()
    assert token.encode() not in raw
    secret = token.split("_", 2)[2]  # which may have underscores of its own
    assert secret.encode() not in raw
    assert stat.S_IMODE((tmp_path / "access.db").stat().st_mode) == 0o600


def test_keys_survive_a_restart_and_so_does_their_revocation(urls):
    keys = ApiKeys.open(urls.access)
    kept, good = keys.create(WANTED, NOW)
    lost, bad = keys.create(WANTED, NOW + 1)
    keys.revoke(lost.id, NOW + 2)
    keys.close()
    again = ApiKeys.open(urls.access)
    assert [key.id for key in again.list_keys()] == [kept.id, lost.id]
    assert again.find_caller(good, NOW) is not None
    assert again.find_caller(bad, NOW) is None
    again.close()


def test_a_key_ends_at_its_time():
    keys = ApiKeys.in_memory()
    _, token = keys.create(KeyRequest("x", (Scope.INFER,), "", 10.0), NOW)
    assert keys.find_caller(token, NOW + 9_999) is not None
    assert keys.find_caller(token, NOW + 10_000) is None


@pytest.mark.parametrize(
    "wanted",
    [
        KeyRequest("x", ()),
        KeyRequest("x", (Scope.ADMIN,)),
        KeyRequest("x", (Scope.INFER, Scope.ADMIN)),
        KeyRequest("", (Scope.INFER,)),
        KeyRequest("a\nb", (Scope.INFER,)),
        KeyRequest("x" * 65, (Scope.INFER,)),
        KeyRequest("x", (Scope.INFER,), "Clinic"),
        KeyRequest("x", (Scope.INFER,), "a--b"),
        KeyRequest("x", (Scope.INFER,), "a/b"),
        KeyRequest("x", (Scope.INFER,), "", -1.0),
        KeyRequest("x", (Scope.INFER,), "", float("nan")),
        KeyRequest("x", (Scope.INFER,), "", float("inf")),
    ],
)
def test_a_key_that_means_nothing_or_too_much_is_not_made(wanted):
    keys = ApiKeys.in_memory()
    with pytest.raises(AccessError):
        keys.create(wanted, NOW)
    assert keys.list_keys() == ()


def test_revoking_a_key_that_is_not_there_is_said():
    with pytest.raises(AccessError):
        ApiKeys.in_memory().revoke("0" * 12, NOW)
