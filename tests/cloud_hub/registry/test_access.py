"""API keys of tenants: what is stored, which tokens are accepted, which requests for keys are refused."""

import stat

import pytest

from cloud_hub.registry.access import AccessError, Keys, Scope, Wanted

NOW = 1_000_000
WANTED = Wanted("ward", (Scope.READ, Scope.INFER), "clinic")


def test_a_key_is_known_by_its_token_and_by_nothing_else(tmp_path):
    keys = Keys.open(tmp_path / "access.db")
    key, token = keys.create(WANTED, NOW)
    caller = keys.caller(token, NOW)
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
        assert keys.caller(wrong, NOW) is None


def test_the_token_lies_nowhere_on_disk_and_the_file_is_private(tmp_path):
    keys = Keys.open(tmp_path / "access.db")
    _, token = keys.create(WANTED, NOW)
    keys.close()
    raw = (tmp_path / "access.db").read_bytes()
    assert token.encode() not in raw
    assert token.rpartition("_")[2].encode() not in raw
    assert stat.S_IMODE((tmp_path / "access.db").stat().st_mode) == 0o600


def test_keys_survive_a_restart_and_so_does_their_revocation(tmp_path):
    keys = Keys.open(tmp_path / "access.db")
    kept, good = keys.create(WANTED, NOW)
    lost, bad = keys.create(WANTED, NOW + 1)
    keys.revoke(lost.id, NOW + 2)
    keys.close()
    again = Keys.open(tmp_path / "access.db")
    assert [key.id for key in again.all()] == [kept.id, lost.id]
    assert again.caller(good, NOW) is not None
    assert again.caller(bad, NOW) is None


def test_a_key_ends_at_its_time():
    keys = Keys.in_memory()
    _, token = keys.create(Wanted("x", (Scope.INFER,), "", 10.0), NOW)
    assert keys.caller(token, NOW + 9_999) is not None
    assert keys.caller(token, NOW + 10_000) is None


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted("x", ()),
        Wanted("x", (Scope.ADMIN,)),
        Wanted("x", (Scope.INFER, Scope.ADMIN)),
        Wanted("", (Scope.INFER,)),
        Wanted("a\nb", (Scope.INFER,)),
        Wanted("x" * 65, (Scope.INFER,)),
        Wanted("x", (Scope.INFER,), "Clinic"),
        Wanted("x", (Scope.INFER,), "a--b"),
        Wanted("x", (Scope.INFER,), "a/b"),
        Wanted("x", (Scope.INFER,), "", -1.0),
        Wanted("x", (Scope.INFER,), "", float("nan")),
        Wanted("x", (Scope.INFER,), "", float("inf")),
    ],
)
def test_a_key_that_means_nothing_or_too_much_is_not_made(wanted):
    keys = Keys.in_memory()
    with pytest.raises(AccessError):
        keys.create(wanted, NOW)
    assert keys.all() == ()


def test_revoking_a_key_that_is_not_there_is_said():
    with pytest.raises(AccessError):
        Keys.in_memory().revoke("0" * 12, NOW)
