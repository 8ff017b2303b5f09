"""However many pages ten hostile keys hold open, an honest one has its share of live streams."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_hub.console import live
from cloud_hub.console.live import OpenStream, StreamPlaces, name_holder
from cloud_hub.registry.access import ADMIN, Caller, Scope
from tests.cloud_hub.doubles.api_site import Site

PLACES = 55
HOSTILE = 10
SHARE = PLACES // (HOSTILE + 1)
STEPS = st.lists(st.tuples(st.integers(0, HOSTILE - 1), st.integers(1, 80), st.booleans()), max_size=40)


@settings(max_examples=50, deadline=None)
@given(STEPS, st.integers(0, SHARE))
def test_an_honest_key_has_its_share_of_streams_beside_ten_hostile_ones(steps, early):
    places = StreamPlaces(PLACES)
    mine = [places.enter("honest") for _ in range(early)]
    theirs: list[OpenStream | None] = []
    for number, times, leaves in steps:
        theirs += [places.enter(f"hostile-{number}") for _ in range(times)]
        first = theirs.pop(0) if leaves else None
        if first is not None:
            places.leave(first)
        assert len(places) <= PLACES
    mine += [places.enter("honest") for _ in range(SHARE - early)]
    assert all(each is not None and not each.displaced for each in mine)


def enter(places: StreamPlaces, holder: str) -> OpenStream:
    stream = places.enter(holder)
    assert stream is not None
    return stream


def test_one_key_alone_has_every_place_and_equals_displace_nobody():
    places = StreamPlaces(4)
    alone = [enter(places, "acme") for _ in range(4)]
    assert places.enter("acme") is None
    assert [places.enter("globex") is not None for _ in range(3)] == [True, True, False]
    assert [each.displaced for each in alone] == [True, True, False, False]
    assert places.enter("acme") is None
    assert len(places) == 4


def test_a_place_that_is_left_twice_is_left_once():
    places = StreamPlaces(1)
    first = enter(places, "acme")
    places.leave(first)
    second = enter(places, "acme")
    places.leave(first)
    assert (len(places), places.enter("acme")) == (1, None)
    places.leave(second)
    assert len(places) == 0


def test_the_keys_of_a_tenant_share_its_places():
    assert name_holder(Caller("k1", "acme")) == name_holder(Caller("k2", "acme")) != name_holder(Caller("acme"))
    assert name_holder(ADMIN) == "admin"


async def test_a_page_of_another_key_ends_one_of_a_key_that_has_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MAX_STREAMS", 2)
    monkeypatch.setattr(live.LiveFeed.__init__, "__defaults__", (0.01,))
    site = await Site(tmp_path, console=True).open()
    try:
        url, many, few = f"{site.url}{live.LIVE_PATH}?topic=fleet", site.key("", Scope.READ), site.key("", Scope.READ)
        async with site.client.get(url, headers=many) as first, site.client.get(url, headers=many) as second:
            assert (first.status, second.status) == (200, 200)
            assert (await site.ask("GET", f"{live.LIVE_PATH}?topic=fleet", headers=many))[0] == 503
            async with site.client.get(url, headers=few) as other:
                assert other.status == 200
                assert b"ended" not in await first.content.read()
    finally:
        await site.close()
