"""One update worker's job: what it brings, what it refuses by name, and what it leaves as it was."""

import ssl

import pytest

from cloud_hub.security.authority import Authority, utc_now
from edge_agent.identity.hubs import parse_hub_keys
from edge_agent.update.installed import read_installed
from edge_agent.update.worker import check_policy
from edge_agent.update.worker_protocol import FollowMode
from models.bundle.bundle import open_bundle
from models.update.client import InstallFailure
from models.update.slots import Store
from models.update.trust import Refusal
from tests.edge_agent.doubles.updates_bench import (
    KEYS,
    NAMES,
    RULES,
    UpdateBench,
    bundle_path,
    make_hub_keys,
    open_bench,
)
from tests.models.conftest import echo_graph
from tests.models.doubles.mirror import Faults
from tests.models.doubles.repository import days


@pytest.fixture
def device(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


def failures(refusals: tuple[Refusal, ...]) -> list[InstallFailure]:
    return [refusal.failure for refusal in refusals]


def serving(device: UpdateBench) -> int:
    """The version that would serve after a restart; 0 for none."""
    found = read_installed(device.store, NAMES)
    assert (found.runner is None) == (found.slot is None)
    return found.slot.version if found.slot else 0


@pytest.mark.usefixtures("first_loads_in_a_child")
def test_everything_a_device_lives_by_comes_in_one_errand(device):
    device.publish_bundle(1)
    report = device.run_worker()
    assert (report.looked, report.refreshed, report.refusals, report.alarm) == (True, True, (), False)
    assert report.current is not None
    assert sorted(document.path for document in report.documents) == [KEYS, RULES]
    found = read_installed(device.store, NAMES)
    assert found.slot == report.current
    assert found.runner is not None
    assert found.runner.manifest.model == "echo@1"
    assert found.policies is not None
    assert [(document.name, document.version) for document in found.policies] == [("test", 1)]
    assert found.hubs == parse_hub_keys(make_hub_keys(), "local")
    assert found.versions == {RULES: 1, KEYS: 1}


def test_what_serves_already_is_not_loaded_again(device):
    device.publish_bundle(1)
    serves = device.run_worker().current
    assert device.run_worker().documents == ()
    found = read_installed(device.store, NAMES, serves)
    assert (found.slot, found.runner) == (serves, None)


def test_a_device_that_enrols_during_a_rollout_takes_the_committed_version_never_the_candidate(device):
    for version in (1, 2, 3):
        device.publish_bundle(version)
    device.publish_keys(make_hub_keys(committed={"echo": 2, "other": 1}), 2)
    assigned = FollowMode.ASSIGNMENTS
    device.run_worker(follow=assigned)
    assert serving(device) == 2
    device.publish_keys(make_hub_keys(committed={"echo": 3}), 3)
    device.run_worker(follow=assigned)
    assert serving(device) == 2  # from then on it follows its assignments
    device.run_worker()
    assert serving(device) == 3  # who follows the newest takes it


def test_where_the_committed_version_does_not_fit_this_device_an_older_one_is_taken_not_the_candidate(device):
    device.publish_bundle(1)
    device.publish_bundle(2, min_agent="99.0")
    device.publish_bundle(3)
    device.publish_keys(make_hub_keys(committed={"echo": 2}), 2)
    report = device.run_worker(follow=FollowMode.ASSIGNMENTS)
    assert failures(report.refusals) == [InstallFailure.INCOMPATIBLE]
    assert serving(device) == 1


def test_where_the_committed_version_was_revoked_the_newest_is_taken(device):
    device.publish_bundle(1)
    device.publish_bundle(2)
    device.revoke_bundle(1)
    device.publish_keys(make_hub_keys(committed={"echo": 1}), 2)
    device.run_worker(follow=FollowMode.ASSIGNMENTS)
    assert serving(device) == 2


def test_without_a_bundle_there_is_nothing_to_serve_and_nothing_wrong(device):
    report = device.run_worker()
    assert (report.current, report.refusals, report.left) == (None, (), "")
    assert serving(device) == 0


def test_a_bundle_for_a_newer_agent_is_passed_over_for_one_that_fits(device):
    device.publish_bundle(1)
    device.publish_bundle(2, min_agent="99.0")
    report = device.run_worker()
    assert failures(report.refusals) == [InstallFailure.INCOMPATIBLE]
    assert serving(device) == 1


@pytest.mark.usefixtures("first_loads_in_a_child")
def test_a_bundle_that_fails_its_first_load_is_not_fetched_again(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2, edge=echo_graph(-1.0))  # loads well and answers otherwise than its golden set says
    assert failures(device.run_worker().refusals) == [InstallFailure.SELF_TEST]
    device.mirror.requests.clear()
    assert failures(device.run_worker().refusals) == [InstallFailure.QUARANTINED]
    assert not [name for name, _ in device.mirror.requests if "targets/" in name]
    assert serving(device) == 1


def test_a_bundle_of_another_input_does_not_replace_the_one_that_serves_unless_its_publisher_signed_that(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2, labels=8)
    assert failures(device.run_worker().refusals) == [InstallFailure.INCOMPATIBLE]
    device.mirror.requests.clear()
    assert failures(device.run_worker().refusals) == [InstallFailure.QUARANTINED]
    assert not [name for name, _ in device.mirror.requests if "targets/" in name]
    assert serving(device) == 1
    device.publish_bundle(2, labels=8, new_interface=True)
    assert device.run_worker().refusals == ()
    assert serving(device) == 2


def test_a_newer_agent_may_try_again_what_failed_before(device):
    device.publish_bundle(1, edge=echo_graph(-1.0))
    device.run_worker()
    assert failures(device.run_worker(agent="0.2.0").refusals) == [InstallFailure.SELF_TEST]


def test_a_bundle_that_was_tampered_with_on_the_way_never_serves(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2)
    info = device.repo.targets("models-echo").targets[bundle_path(2)]
    place = device.repo.place(info)
    device.mirror.files[place] = device.mirror.files[place][:-1] + b"\x01"
    assert failures(device.run_worker().refusals) == [InstallFailure.INTEGRITY]
    assert serving(device) == 1


def test_a_revoked_model_makes_way_for_the_previous_one(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2)
    device.run_worker()
    assert serving(device) == 2
    device.revoke_bundle(2)
    report = device.run_worker()
    assert (report.left, report.refusals) == (bundle_path(2), ())
    assert serving(device) == 1
    assert device.run_worker().left == ""
    assert serving(device) == 1


def test_where_nothing_is_left_that_may_serve_nothing_serves(device):
    device.publish_bundle(1)
    device.run_worker()
    device.revoke_bundle(1)
    report = device.run_worker()
    assert (report.left, report.current) == (bundle_path(1), None)
    assert serving(device) == 0
    device.publish_bundle(2)
    assert device.run_worker().current is not None
    assert serving(device) == 2


def test_a_newer_model_takes_the_place_of_a_revoked_one_at_once(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2)
    device.revoke_bundle(1)
    report = device.run_worker()
    assert report.left == ""
    assert serving(device) == 2


def test_a_hub_that_merely_lists_a_model_no_more_takes_it_from_nobody(device):
    device.publish_bundle(1)
    device.run_worker()
    del device.repo.targets("models-echo").targets[bundle_path(1)]
    device.repo.publish_all("models-echo")
    assert device.run_worker().left == ""
    assert serving(device) == 1


def test_a_hub_that_is_down_stops_installs_and_nothing_else(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2)
    device.mirror.faults = Faults(where="", status=503)
    report = device.run_worker()
    assert (report.refreshed, failures(report.refusals), report.alarm) == (False, [InstallFailure.NETWORK], False)
    assert serving(device) == 1
    device.mirror.faults = Faults(where="\0")
    assert device.run_worker().refusals == ()
    assert serving(device) == 2


def test_after_a_month_expired_metadata_is_an_alarm_and_one_poll_heals_it(device):
    device.publish_bundle(1)
    device.run_worker()
    month_ms = int(days(40).timestamp() * 1000)
    assert not device.run_worker(least_ms=month_ms).alarm
    report = device.run_worker(least_ms=month_ms)
    assert (failures(report.refusals), report.alarm) == ([InstallFailure.FREEZE], True)
    assert serving(device) == 1
    assert device.run_worker().alarm is False


@pytest.mark.parametrize(
    ("document", "failure"),
    [
        (b"schema = 1\nname = ", InstallFailure.POLICY),
        (b"\xff", InstallFailure.POLICY),
        (b"[escalation]\n", InstallFailure.POLICY),
    ],
)
def test_a_policy_that_is_none_does_not_replace_the_one_that_is_here(device, document, failure):
    device.run_worker()
    device.publish_target(RULES, document, "policy", 2)
    assert failures(device.run_worker().refusals) == [failure]
    found = read_installed(device.store, NAMES)
    assert found.policies is not None
    assert found.policies[0].version == 1


# the signal may come in a callback of the collector, which swallows its error; it comes again
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_policy_that_takes_too_much_cpu_time_to_check_is_refused(device):
    device.run_worker()
    with Store(device.store) as store:
        held = store.read_document(RULES)
        assert held is not None
        rules = "".join(
            f'[[rule]]\nname = "r{number}"\ndeny = true\nwhen = {{ tags = ["t{number}"] }}\n' for number in range(1500)
        )
        refusal = check_policy(store, RULES, held[1] + b"\n" + rules.encode(), cpu_s=0.05)
    assert refusal == Refusal(InstallFailure.POLICY, f"{RULES}: it took more than 0.05 s of CPU time")


def test_a_policy_never_goes_back_even_under_a_higher_version_of_its_file(device):
    device.publish_policy(3)
    device.run_worker()
    text = device.repo.files[device.repo.place(device.repo.targets("policy").targets[RULES])]
    device.publish_target(RULES, text.replace(b"version = 3", b"version = 2"), "policy", 4)
    assert failures(device.run_worker().refusals) == [InstallFailure.POLICY]
    found = read_installed(device.store, NAMES)
    assert found.policies is not None
    assert found.policies[0].version == 3


def policy_version(device: UpdateBench) -> int:
    found = read_installed(device.store, NAMES)
    assert found.policies is not None
    return found.policies[0].version


def test_a_policy_that_a_stranger_signed_is_not_taken(device):
    device.run_worker()
    device.repo.keys["policy"] = [device.repo.new_key()]
    device.publish_policy(2, bytes_per_day=2**40)
    assert failures(device.run_worker().refusals) == [InstallFailure.INTEGRITY]
    assert policy_version(device) == 1


def test_an_unsigned_policy_is_not_taken(device):
    device.run_worker()
    device.repo.keys["policy"] = []
    device.publish_policy(2, bytes_per_day=2**40)
    assert failures(device.run_worker().refusals) == [InstallFailure.INTEGRITY]
    assert policy_version(device) == 1


def test_a_policy_swapped_at_the_mirror_is_not_taken(device):
    device.run_worker()
    device.publish_policy(2)
    place = device.repo.place(device.repo.targets("policy").targets[RULES])
    device.mirror.files[place] = device.mirror.files[place].replace(b"10000000", b"99999999")
    assert failures(device.run_worker().refusals) == [InstallFailure.INTEGRITY]
    assert policy_version(device) == 1


def test_yesterdays_repository_brings_no_older_policy_back(device):
    before = device.repo.copy()
    device.publish_policy(2)
    device.run_worker()
    device.mirror.files.clear()
    device.mirror.files.update(before)
    assert failures(device.run_worker().refusals) == [InstallFailure.ROLLBACK]
    assert policy_version(device) == 2


def test_a_policy_of_another_name_is_not_taken_for_ours(device):
    device.run_worker()
    text = device.repo.files[device.repo.place(device.repo.targets("policy").targets[RULES])]
    device.publish_target(
        RULES, text.replace(b'name = "test"', b'name = "lax"').replace(b"version = 1", b"version = 2"), "policy", 2
    )
    assert failures(device.run_worker().refusals) == [InstallFailure.POLICY]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[" * 5000,
        make_hub_keys(hpke=b"short"),
        make_hub_keys(region="elsewhere"),
        make_hub_keys().replace(b'"hubs": [', b'"hubs": [], "x": ['),
    ],
)
def test_a_file_of_hub_keys_that_cannot_be_used_changes_none(device, data):
    device.run_worker()
    device.publish_keys(data, 2)
    assert failures(device.run_worker().refusals) == [InstallFailure.INTEGRITY]
    assert read_installed(device.store, NAMES).hubs == parse_hub_keys(make_hub_keys(), "local")


def test_hub_keys_swapped_at_the_mirror_are_refused(device):
    device.run_worker()
    device.publish_keys(make_hub_keys(signing=b"n" * 32), 2)
    info = device.repo.targets("keys").targets[KEYS]
    device.mirror.files[device.repo.place(info)] = make_hub_keys(signing=b"x" * 32)
    assert failures(device.run_worker().refusals) == [InstallFailure.INTEGRITY]
    assert read_installed(device.store, NAMES).hubs == parse_hub_keys(make_hub_keys(), "local")


def test_a_slot_that_rotted_on_disk_makes_way_for_the_one_before(device):
    device.publish_bundle(1)
    device.run_worker()
    device.publish_bundle(2)
    slot = device.run_worker().current
    assert slot is not None
    edge = device.store / "slots" / slot.digest[:32] / "edge.onnx"
    edge.write_bytes(edge.read_bytes()[:-1] + b"\0")
    found = read_installed(device.store, NAMES)
    assert (failures(found.refusals), serving(device)) == ([InstallFailure.SELF_TEST], 1)


def test_a_slot_that_rotted_is_fetched_again(device):
    device.publish_bundle(1)
    slot = device.run_worker().current
    assert slot is not None
    (device.store / "slots" / slot.digest[:32] / "edge.onnx").write_bytes(b"rot")
    assert serving(device) == 0
    device.run_worker()
    assert serving(device) == 1
    open_bundle(device.store / "slots" / slot.digest[:32])


def test_a_hub_that_speaks_tls_is_trusted_by_its_pinned_authority_alone(device, tmp_path):
    device.publish_bundle(1)
    for each in ("ours", "theirs"):
        (tmp_path / each).mkdir()
    ours, theirs = (Authority.open(tmp_path / each, utc_now()) for each in ("ours", "theirs"))
    pair = ours.ensure_server(tmp_path / "ours", ("127.0.0.1",), utc_now())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    device.mirror._server.socket = context.wrap_socket(device.mirror._server.socket, server_side=True)
    url = device.mirror.url.rstrip("/").replace("http:", "https:")
    for authority, found in ((theirs, [InstallFailure.NETWORK]), (ours, [])):
        report = device.run_worker(url=url, hub_url=url, authorities=(authority.certificate_pem.decode(),))
        assert failures(report.refusals) == found
    assert serving(device) == 1
