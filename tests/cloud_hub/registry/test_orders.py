"""Standing orders: durable deny notices for all devices, a tenant or one device, until a policy clears them."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_hub.database.parts import DatabaseUrls
from cloud_hub.registry.orders import Orders
from cloud_hub.registry.orders_store import open_orders
from policies.model.composition import hash_documents
from policies.model.policy import Policy
from tests.cloud_hub.doubles.api_site import Site
from tests.cloud_hub.doubles.bench import Bench
from tests.cloud_hub.doubles.devices import NOW_S, SimDevice
from tests.policies.doubles.given import plain
from wire.errors import Fault, LocalError, RemoteError
from wire.process.exit_codes import ExitCode, ExitError
from wire.process.files import write_private_file
from wire.protocol.codec import decode_down_note, split_frame
from wire.protocol.messages import DenyAllNotice, Refusal, RefusalReason
from wire.protocol.sealing import compute_order_binding, verify_frame
from wire.protocol.topics import TopicChannel

NOW_MS = int(NOW_S * 1000)


@pytest.fixture
def opened(urls: DatabaseUrls) -> Iterator[Callable[[], Orders]]:
    """Opens the orders of a hub; each time as a process of its own would."""
    with contextlib.ExitStack() as stack:

        def open_again() -> Orders:
            store, orders = open_orders(urls.registry)
            stack.callback(store.close)
            return orders

        yield open_again


def test_a_notice_outlives_the_process_and_its_counter_never_repeats(opened: Callable[[], Orders]):
    first = opened().deny_all("", "a leak in region north", NOW_MS)
    again = opened()
    second = again.deny_all("demo", "still", NOW_MS - 3_600_000)  # the machine's clock was set back
    assert again.notices == (first, second)
    assert second.counter == first.counter + 1 == NOW_MS // 1000 + 1
    assert opened().notices == (first, second)


def test_a_scope_meets_a_device_its_tenant_or_everybody_and_no_namesake():
    orders = Orders()
    notice = orders.deny_all("demo", "why", NOW_MS)
    assert orders.notice_for("demo--d1") == notice
    assert orders.notice_for("demo2--d1") is None
    one = orders.deny_all("other--d1", "why", NOW_MS)
    assert (orders.notice_for("other--d1"), orders.notice_for("other--d2")) == (one, None)
    everybody = orders.deny_all("", "why", NOW_MS)
    assert {orders.notice_for(device) for device in ("demo--d1", "other--d1", "other--d2")} == {everybody}


@pytest.mark.parametrize("scope", ["Demo", "a/b", "#", "x" * 65])
def test_what_is_no_device_or_tenant_is_no_scope(scope: str):
    with pytest.raises(LocalError):
        Orders().deny_all(scope, "why", NOW_MS)


@pytest.mark.parametrize("why", ["", "  \n", "x" * 201])
def test_a_notice_says_why_in_one_line(why: str):
    with pytest.raises(LocalError):
        Orders().deny_all("", why, NOW_MS)


def test_two_hubs_give_no_counter_twice_and_the_later_notice_of_a_scope_stands(opened: Callable[[], Orders]):
    one, other = opened(), opened()
    first, second = one.deny_all("demo", "first", NOW_MS), other.deny_all("demo", "second", NOW_MS)
    assert second.counter == first.counter + 1
    assert opened().notices == (second,)


OLD_FILE = b"""{
 "notices": [{"counter": 5, "why": "a leak", "scope": "demo", "issued_ms": 7}],
 "floors": {"tenant/clinic": 4}, "seen": {"aa": {"title": "tenant/clinic", "version": 2}}
}"""


def test_the_file_of_an_earlier_version_is_read_in_and_lowers_nothing_later(urls: DatabaseUrls, tmp_path: Path):
    path = tmp_path / "orders.json"
    write_private_file(path, OLD_FILE)
    for _ in range(2):  # it stays where it is
        store, orders = open_orders(urls.registry, path)
        assert [(each.counter, each.why) for each in orders.notices] == [(5, "a leak")]
        assert (orders.floors, orders.is_old("aa")) == ({"tenant/clinic": 4}, True)
        store.close()
    store, orders = open_orders(urls.registry, path)
    later = orders.deny_all("demo", "another", NOW_MS)
    store.close()
    store, orders = open_orders(urls.registry, path)
    assert orders.notices == (later,)
    store.close()


def test_a_damaged_file_of_orders_stops_the_hub(urls: DatabaseUrls, tmp_path: Path):
    write_private_file(tmp_path / "orders.json", OLD_FILE[:-20])
    with pytest.raises(ExitError) as stop:
        open_orders(urls.registry, tmp_path / "orders.json")
    assert stop.value.code is ExitCode.DATABASE


def document(version: int, clears: int = 0, name: str = "clinic") -> Policy:
    return plain(("[escalation]", f"clears_notice = {clears}\n[escalation]"), name=name, version=version).compile()


def test_floors_only_rise_and_outlive_the_process(opened: Callable[[], Orders]):
    orders = opened()
    old, new = document(1), document(4)
    orders.learn_documents(old.layers)
    assert not orders.is_old(old.hash)
    orders.learn_documents(new.layers)
    orders.learn_documents(old.layers)  # the old version is configured again
    again = opened()
    assert again.floors == {"tenant/clinic": 4}
    assert (again.is_old(old.hash), again.is_old(new.hash), again.is_old("never seen")) == (True, False, False)


def test_two_versions_that_are_both_served_are_both_served():
    device = SimDevice()
    first, second = document(1), document(2)
    bench = Bench(device, documents=(first, second), policies=frozenset((first.hash, second.hash)))
    bench.ask(device, 1, policy=first.hash)
    bench.ask(device, 2, policy=second.hash)
    bench.settle()
    assert sorted(bench.verdicts(device)) == [1, 2]


def test_a_version_below_the_floor_is_told_to_fetch_and_a_stranger_is_told_no():
    device, orders = SimDevice(), Orders()
    first, second = document(1), document(2)
    orders.learn_documents(first.layers)
    bench = Bench(device, orders=orders, documents=(second,), policies=frozenset((second.hash,)))
    bench.ask(device, 1, policy=first.hash)
    bench.ask(device, 2, policy="ff" * 16)
    bench.settle()
    told = {(r.seq, r.reason, r.final) for r in bench.refusals(device)}
    assert told == {(1, RefusalReason.POLICY_OLD, False), (2, RefusalReason.POLICY, True)}


def test_no_question_raises_a_floor_whatever_it_names():
    device, orders = SimDevice(), Orders()
    served, future = document(1), document(99)
    bench = Bench(device, orders=orders, documents=(served,), policies=frozenset((served.hash,)))
    for seq, named in enumerate((future.hash, hash_documents((served.hash, future.hash))), 1):
        bench.ask(device, seq, policy=named, layers=(served.hash, future.hash))
    bench.ask(device, 9, policy=served.hash)
    bench.settle()
    assert orders.floors == {"tenant/clinic": 1}
    assert 9 in bench.verdicts(device)


def test_a_policy_that_clears_the_notice_ends_it_and_no_other_does():
    device, orders = SimDevice(), Orders()
    counter = orders.deny_all("", "a leak", NOW_MS).counter
    stale, clears = document(1, counter - 1), document(2, counter)
    served = frozenset((stale.hash, clears.hash))
    bench = Bench(device, orders=orders, documents=(stale, clears), policies=served)
    bench.ask(device, 1, policy=stale.hash)
    bench.ask(device, 2, policy=clears.hash)
    bench.settle()
    replies = bench.replies(device)
    assert [reply[0] for reply in replies if isinstance(reply, tuple)] == [2]
    assert [reply.reason for reply in replies if isinstance(reply, Refusal)] == [RefusalReason.POLICY_OLD]


def test_from_the_notice_on_the_hub_refuses_and_says_so_at_every_hello():
    device, other = SimDevice("demo--d1"), SimDevice("other--d1")
    bench = Bench(device, other)
    bench.ask(device, 1)
    bench.settle()
    assert list(bench.verdicts(device)) == [1]
    notice = bench.orders.deny_all("demo", "a leak", NOW_MS)
    bench.ask(device, 2)
    bench.ask(other, 1)
    bench.settle()
    refusals = bench.refusals(device)
    assert [(r.seq, r.reason, r.final) for r in refusals] == [(2, RefusalReason.POLICY_OLD, False)]
    assert list(bench.verdicts(other)) == [1]
    for _ in range(2):
        bench.say(device.ask_topic, device.hello())
        (frame,) = bench.desired.pop(device.id)
        assert decode_down_note(split_frame(frame).body) == DenyAllNotice(0, notice.counter, "a leak")
        bound = compute_order_binding(device.signing.public_key().public_bytes_raw())
        hub_key = device.hub.signing.public_key()
        verify_frame(split_frame(frame), by=hub_key, channel=TopicChannel.DESIRED, binding=bound)


def test_a_notice_is_signed_for_the_keys_that_a_device_has_and_for_no_later_enrolment():
    device, later = SimDevice(), Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    bench = Bench(device)
    bench.orders.deny_all("", "a leak", NOW_MS)
    bench.say(device.ask_topic, device.hello())
    (frame,) = bench.desired[device.id]
    for binding in (b"", compute_order_binding(later)):
        with pytest.raises(RemoteError) as refused:
            verify_frame(
                split_frame(frame),
                by=device.hub.signing.public_key(),
                channel=TopicChannel.DESIRED,
                binding=binding,
            )
        assert refused.value.fault is Fault.SIGNATURE


def test_a_notice_cannot_be_moved_to_another_channel():
    device = SimDevice()
    bench = Bench(device)
    bench.orders.deny_all("", "a leak", NOW_MS)
    bench.say(device.ask_topic, device.hello())
    (frame,) = bench.desired[device.id]
    with pytest.raises(RemoteError) as refused:
        verify_frame(split_frame(frame), by=device.hub.signing.public_key(), channel=TopicChannel.REPLY)
    assert refused.value.fault is Fault.SIGNATURE


def test_a_question_under_a_notice_is_owed_nothing_and_leaves_no_row():
    device = SimDevice()
    bench = Bench(device)
    bench.orders.deny_all("", "a leak", NOW_MS)
    bench.ask(device, 1)
    bench.settle()
    assert (bench.store.read_unanswered(), bench.writes) == ([], 0)


async def test_an_order_over_the_web_needs_the_token_and_is_told_to_whom_it_meets(tmp_path: Path):
    site = await Site(tmp_path).open()
    try:
        body = {"why": "a leak", "scope": "demo"}
        assert (await site.ask("POST", "/v1/admin/deny-all", json=body))[0] == 401
        status, made = await site.ask("POST", "/v1/admin/deny-all", json=body, headers=site.admin)
        assert (status, made["scope"], made["told"]) == (201, "demo", 0)
        assert [notice.counter for notice, _ in site.hub.announced] == [made["counter"]]
        assert (await site.ask("POST", "/v1/admin/deny-all", json={"why": ""}, headers=site.admin))[0] == 400
        _, listed = await site.ask("GET", "/v1/admin/deny-all", headers=site.admin)
        assert [each["counter"] for each in listed["notices"]] == [made["counter"]]
    finally:
        await site.close()
