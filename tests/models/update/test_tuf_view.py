"""Tests that the private names of python-tuf that we rely on are where we look for them."""

import datetime as dt

import pytest
from tuf.api.exceptions import RepositoryError
from tuf.ngclient import Updater

from models.update import tuf_view
from models.update.downloader import ResumingFetcher
from tests.models.doubles.mirror import Mirror
from tests.models.doubles.repository import Repository


@pytest.fixture
def updater(tmp_path):
    repo = Repository()
    with Mirror(repo.files) as mirror:
        fetcher = ResumingFetcher()
        yield Updater(str(tmp_path), f"{mirror.url}metadata/", fetcher=fetcher, bootstrap=repo.trusted_root)
        fetcher.close()


def test_the_hour_we_set_is_the_hour_it_judges_by(updater):
    assert abs(updater._trusted_set.reference_time - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    tuf_view.set_reference_time(updater, 0)
    assert updater._trusted_set.reference_time == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    tuf_view.set_reference_time(updater, 2**62)
    assert updater._trusted_set.reference_time.year == 9999


def test_what_it_verified_is_what_we_see(updater, tmp_path):
    updater.refresh()
    seen = tuf_view.read_refresh(updater, tmp_path)
    assert seen.root == 1
    assert seen.versions == {"timestamp": 2, "snapshot": 2, "meta/targets.json": 2}
    assert {name: len(role.keys) for name, role in seen.roles.items()} == dict.fromkeys(tuf_view.TOP_LEVEL, 1)
    assert seen.signers == {name: seen.roles[name].keys for name in ("timestamp", "snapshot")}
    assert updater._trusted_set._trusted_delegations == {("root", name) for name in tuf_view.TOP_LEVEL}


def test_a_cache_changed_behind_our_back_is_noticed(updater, tmp_path):
    updater.refresh()
    data = (tmp_path / "timestamp.json").read_bytes()
    (tmp_path / "timestamp.json").write_bytes(data.replace(b'"version":2', b'"version":3'))
    with pytest.raises(RepositoryError, match="not what was verified"):
        tuf_view.read_refresh(updater, tmp_path)


def test_the_address_of_a_target_is_quoted_once(updater):
    from tuf.api.metadata import TargetFile  # noqa: PLC0415 - the only test that needs it

    info = TargetFile.from_data("models/a b?#/ü%20.skb", b"", ["sha256"])
    assert tuf_view.target_url(updater, info, "http://h/t/").startswith("http://h/t/models/a%20b%3F%23/e3b0c442")
    assert tuf_view.target_url(updater, info, "http://h/t").endswith(".%C3%BC%20.skb")
