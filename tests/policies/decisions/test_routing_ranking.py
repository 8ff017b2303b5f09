"""Hub ranking by reachability, latency and price; it neither adds nor removes a hub."""

from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.routing import HubSite, HubView, rank_hubs

NEAR, FAR, DEAR = HubSite("near", "eu", 3), HubSite("far", "eu", 1), HubSite("dear", "eu", 9)
QUICK, SLOW, DOWN = HubView(True, 0.02), HubView(True, 5.0), HubView(False, 0.02)


def test_of_those_that_answer_in_time_the_cheapest_is_asked():
    assert rank_hubs((NEAR, FAR), {"near": QUICK, "far": HubView(True, 0.9)}, 1.0) == (FAR, NEAR)


def test_one_that_is_too_slow_comes_after_a_dearer_one_that_is_not():
    assert rank_hubs((FAR, DEAR), {"far": SLOW, "dear": QUICK}, 1.0) == (DEAR, FAR)


def test_whoever_cannot_be_reached_comes_last_however_cheap():
    assert rank_hubs((FAR, DEAR), {"far": DOWN, "dear": SLOW}, 1.0) == (DEAR, FAR)


def test_at_one_price_the_quicker_is_asked_and_noise_changes_nothing():
    a, b = HubSite("a", "eu"), HubSite("b", "eu")
    assert rank_hubs((a, b), {"a": HubView(True, 0.3), "b": HubView(True, 0.03)}, 1.0) == (b, a)
    assert rank_hubs((a, b), {"a": HubView(True, 0.031), "b": HubView(True, 0.029)}, 1.0) == (a, b)


def test_one_that_was_not_measured_lately_is_tried():
    assert rank_hubs((FAR, DEAR), {"far": HubView(True, None), "dear": QUICK}, 1.0) == (FAR, DEAR)


def test_equal_hubs_keep_the_order_of_the_policy():
    a, b = HubSite("a", "eu"), HubSite("b", "eu")
    assert rank_hubs((b, a), {"a": QUICK, "b": QUICK}, 1.0) == (b, a)


_sites = st.lists(
    st.builds(HubSite, st.sampled_from("abcdef"), st.sampled_from(("eu", "us")), st.integers(0, 5)),
    max_size=6, unique_by=lambda hub: hub.name,
)  # fmt: skip
_views = st.builds(HubView, st.booleans(), st.none() | st.floats(0, 100) | st.sampled_from((nan, inf, -1.0)))


@given(_sites, st.dictionaries(st.sampled_from("abcdefg"), _views), st.floats())
def test_what_comes_in_comes_out_whatever_was_measured(
    hubs: list[HubSite], views: dict[str, HubView], patience_s: float
):
    ranked = rank_hubs(tuple(hubs), views, patience_s)
    assert sorted(ranked, key=lambda hub: hub.name) == sorted(hubs, key=lambda hub: hub.name)
    reachable = [views.get(hub.name, HubView(False)).reachable for hub in ranked]
    assert reachable == sorted(reachable, reverse=True)


def test_latencies_below_a_millisecond_are_equal_and_quicker_than_one():
    a, b = HubSite("a", "eu"), HubSite("b", "eu")
    assert rank_hubs((a, b), {"a": HubView(True, 0.0009), "b": HubView(True, 0.0001)}, 1.0) == (a, b)
    assert rank_hubs((a, b), {"a": HubView(True, 0.001), "b": HubView(True, 0.0009)}, 1.0) == (b, a)
    assert rank_hubs((a, b), {"a": HubView(True, 0.002), "b": HubView(True, 0.0019)}, 1.0) == (b, a)
    assert rank_hubs((a, b), {"a": HubView(True, 0.0019), "b": HubView(True, 0.001)}, 1.0) == (a, b)


def test_an_answer_just_in_time_is_in_time():
    assert rank_hubs((FAR, DEAR), {"far": HubView(True, 1.0), "dear": QUICK}, 1.0) == (FAR, DEAR)
    assert rank_hubs((FAR, DEAR), {"far": HubView(True, 1.001), "dear": QUICK}, 1.0) == (DEAR, FAR)
