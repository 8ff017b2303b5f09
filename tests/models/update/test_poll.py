"""Tests of one poll: documents and bundles arrive or are refused one by one, and the current bundle stays."""

import errno
import json
from hashlib import sha256

import pytest

from models.update.floors import commit_floor
from models.update.poll import AvailableTarget, PollRequest, poll_repository
from models.update.slots import Store, StoreStep, pack_bundle
from tests.models.conftest import echo_graph, make
from tests.models.doubles.mirror import Faults
from tests.models.doubles.repository import days
from tests.models.doubles.road import DAY_S, UpdateClientHarness, open_update_client
from wire.protocol.rollout import InstallFailure

POLICY, KEYS = "policy/demo.toml", "keys/local.json"
WANTS = PollRequest((POLICY, KEYS), "echo")


def bundle(folder, version):
    return pack_bundle(make(folder / f"made-{version}", echo_graph(float(version)), version=version))


def offer(road, data, version, role="models-echo"):
    road.repo.add(f"models/echo/echo-{version}.skb", data, role, version=version)
    road.repo.publish_all(role)


@pytest.fixture
def road(tmp_path):
    folder = tmp_path / "models" / "metadata"
    folder.mkdir(parents=True)
    with open_update_client(folder) as road:
        for role, paths in (("models-echo", "models/echo/*"), ("policy", "policy/*"), ("keys", "keys/*")):
            road.repo.delegate(role, [paths], terminating=True)
        road.repo.add(POLICY, b"schema=1", "policy")
        road.repo.add(KEYS, json.dumps({"region": "local"}).encode(), "keys")
        offer(road, bundle(tmp_path, 1), 1)
        road.repo.publish_all("models-echo", "policy", "keys", "targets")
        yield road


@pytest.fixture
def store(tmp_path, road):
    with Store(tmp_path / "models") as store:
        yield store


def one(road: UpdateClientHarness, store, wants=WANTS):
    return poll_repository(road.errand(), store, wants)


def refusal(news):
    assert len(news.refusals) == 1, news
    return news.refusals[0].failure


def test_the_first_poll_brings_policy_keys_and_a_bundle_and_the_second_nothing(road, store):
    news = one(road, store)
    assert [document.path for document in news.documents] == [POLICY, KEYS]
    assert store.read_document(POLICY)[1] == b"schema=1"
    assert (news.staged.version, store.current) == (1, None)
    store.activate(news.staged)
    again = one(road, store)
    assert (again.documents, again.staged, again.refusals) == ((), None, ())
    assert road.fetcher.requests == 2


def test_a_new_policy_replaces_the_old_one_and_an_older_one_never_comes_back(road, store):
    one(road, store)
    road.repo.add(POLICY, b"schema=1 # two", "policy", version=2)
    road.repo.publish_all("policy")
    assert one(road, store).documents[0].version == 2
    road.repo.add(POLICY, b"schema=1", "policy", version=1)
    road.repo.publish_all("policy")
    assert refusal(one(road, store)) is InstallFailure.ROLLBACK
    assert store.read_document(POLICY)[1] == b"schema=1 # two"


def test_a_stolen_policy_role_that_ran_ahead_is_recovered_from_by_a_new_key(road, store):
    road.repo.add(POLICY, b"stolen", "policy", version=2**52)
    road.repo.publish_all("policy")
    one(road, store)
    road.repo.rotate("policy")
    road.repo.add(POLICY, b"ours", "policy", version=2)
    road.repo.publish_all("policy", "targets")
    assert one(road, store).refusals == ()
    assert store.read_document(POLICY)[1] == b"ours"


def test_the_newest_bundle_is_taken_and_one_can_be_chosen(road, store, tmp_path):
    for version in (3, 2):
        offer(road, bundle(tmp_path, version), version)
    seen: list[tuple[AvailableTarget, ...]] = []

    def second(offers, _):
        seen.append(offers)
        return offers[1]

    assert one(road, store).staged.version == 3
    assert one(road, store, PollRequest(family="echo", choose=second)).staged.version == 2
    assert [each.version for each in seen[0]] == [3, 2, 1]


def test_of_the_threats_a_bundle_below_the_committed_one_is_refused_even_if_it_is_signed(road, store, tmp_path):
    offer(road, bundle(tmp_path, 2), 2)
    staged = one(road, store).staged
    store.activate(staged)
    commit_floor(road.folder, staged)
    news = one(road, store, PollRequest(family="echo", choose=lambda offers, _: offers[-1]))
    assert refusal(news) is InstallFailure.ROLLBACK
    assert store.current == staged


def test_a_bundle_that_was_not_committed_sets_no_floor(road, store, tmp_path):
    offer(road, bundle(tmp_path, 2), 2)
    store.activate(one(road, store).staged)
    assert one(road, store, PollRequest(family="echo", choose=lambda offers, _: offers[-1])).staged.version == 1


def test_a_target_under_a_false_name_is_refused_and_what_serves_stays(road, store, tmp_path):
    first = one(road, store).staged
    store.activate(first)
    road.repo.add("models/echo/echo-9.skb", bundle(tmp_path, 2), "models-echo", version=9)
    road.repo.publish_all("models-echo")
    assert refusal(one(road, store)) is InstallFailure.INTEGRITY
    assert store.current == first
    assert list((store.folder / "parts").iterdir()) != []  # the next poll says the same without a download


def test_another_roles_bundle_is_not_even_offered(road, store, tmp_path):
    offer(road, bundle(tmp_path, 7), 7, role="policy")
    assert one(road, store).staged.version == 1


def test_a_document_that_is_too_big_is_refused_and_the_others_come(road, store):
    road.repo.add(POLICY, bytes((1 << 20) + 1), "policy", version=2)
    road.repo.publish_all("policy")
    news = one(road, store)
    assert refusal(news) is InstallFailure.INTEGRITY
    assert [document.path for document in news.documents] == [KEYS]
    assert news.staged


def test_a_target_without_a_version_is_refused(road, store):
    road.repo.add(POLICY, b"x", "policy", version=None)
    road.repo.publish_all("policy")
    assert refusal(one(road, store)) is InstallFailure.INTEGRITY


def test_what_the_repository_does_not_have_is_no_failure(road, store):
    news = one(road, store, PollRequest(("policy/other.toml",), "other"))
    assert (news.documents, news.staged, news.refusals) == ((), None, ())


def test_a_cut_bundle_is_kept_and_the_next_poll_goes_on(road, store):
    length = max(len(data) for path, data in road.repo.files.items() if path.startswith("targets/models"))
    road.mirror.faults = Faults(where="targets/models", cuts=[length // 2, *[0] * 9])
    assert refusal(one(road, store)) is InstallFailure.NETWORK
    road.mirror.faults = Faults()
    before = road.mirror.sent_bytes
    assert one(road, store).staged
    assert road.mirror.sent_bytes - before < length * 0.6


def test_a_full_disk_refuses_the_bundle_gives_the_space_back_and_the_model_serves(road, store, tmp_path):
    first = one(road, store).staged
    store.activate(first)
    offer(road, bundle(tmp_path, 2), 2)
    road.repo.targets("models-echo").targets["models/echo/echo-2.skb"].length = 1 << 60
    road.repo.publish_all("models-echo")
    assert refusal(one(road, store)) is InstallFailure.DISK
    assert store.open_slot(store.current).manifest.version == 1
    assert list((store.folder / "parts").iterdir()) == []


def test_a_disk_full_while_unpacking_gives_the_download_back_too(road, tmp_path):
    armed: list[bool] = []

    def full(step):
        if armed and step is StoreStep.SYNC_SLOT:
            raise OSError(errno.ENOSPC, "No space left on device")

    with Store(tmp_path / "models", full) as store:
        first = one(road, store).staged
        store.activate(first)
        offer(road, bundle(tmp_path, 2), 2)
        armed.append(True)
        assert refusal(one(road, store)) is InstallFailure.DISK
        assert store.current == first
        assert store.open_slot(first).manifest.version == 1
        assert list((store.folder / "parts").iterdir()) == []
        assert len(list((store.folder / "slots").iterdir())) == 1


def test_a_frozen_repository_alarms_at_the_second_poll_and_the_model_serves(road, store):
    store.activate(one(road, store).staged)
    road.at_s += 8 * DAY_S
    assert [one(road, store).alarm for _ in range(2)] == [False, True]
    assert refusal(one(road, store)) is InstallFailure.FREEZE
    assert store.open_slot(store.current).manifest.version == 1
    assert store.read_document(POLICY)[1] == b"schema=1"


def test_thirty_days_without_a_hub_and_one_poll_brings_everything(road, store, tmp_path):
    store.activate(one(road, store).staged)
    road.at_s += 30 * DAY_S
    url, road.mirror.url = road.mirror.url, "http://127.0.0.1:1/"
    assert [refusal(one(road, store)) for _ in range(3)] == [InstallFailure.NETWORK] * 3
    assert store.open_slot(store.current).manifest.version == 1
    road.mirror.url = url
    for role in ("timestamp", "snapshot"):
        road.repo.md[role].signed.expires = days(60)
    offer(road, bundle(tmp_path, 2), 2)
    news = one(road, store)
    assert (news.refusals, news.staged.version) == ((), 2)


def test_a_document_lost_from_the_disk_is_brought_again(road, store):
    one(road, store)
    (store.folder / "documents" / sha256(b"schema=1").hexdigest()).unlink()
    assert [document.path for document in one(road, store).documents] == [POLICY]
