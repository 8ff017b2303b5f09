"""Hub filter: only listed hubs and regions, in the document's order."""

from hypothesis import given
from hypothesis import strategies as st

from policies.decisions.routing import AllowedHubs, HubSite, filter_hubs
from policies.model.reasons import DecisionReason, Denied
from tests.policies.doubles.given import HUBS, JUNK, policy

NAMES = st.sampled_from(["hub-1", "hub-2", "hub-3", "hub", ""])
REGIONS = st.sampled_from(["local", "eu", "us", "lo"])
SITES = st.lists(st.builds(HubSite, NAMES, REGIONS), max_size=5).map(tuple)


def why(decision: object) -> DecisionReason:
    assert isinstance(decision, Denied), decision
    return decision.why


def test_targets_stand_in_the_order_of_the_document():
    two = policy(hubs=("hub-2", "hub-1"))
    known = (HubSite("hub-1", "local"), HubSite("hub-2", "local"))
    assert filter_hubs(two, known) == AllowedHubs((known[1], known[0]))


def test_hub_that_is_not_listed_is_denied():
    assert why(filter_hubs(policy(), (HubSite("hub-9", "local"),))) is DecisionReason.DENIED_HUB


def test_region_that_is_not_listed_is_denied():
    assert why(filter_hubs(policy(), (HubSite("hub-1", "us"),))) is DecisionReason.DENIED_REGION


def test_no_hub_known_is_denied():
    assert why(filter_hubs(policy(), ())) is DecisionReason.DENIED_HUB


@given(SITES, st.lists(NAMES, unique=True).map(tuple), st.lists(REGIONS, unique=True).map(tuple))
def test_only_listed_hubs_in_listed_regions_are_ever_targets(known, hubs, regions):
    decision = filter_hubs(policy(hubs=hubs, regions=regions), known)
    wanted = {site for site in known if site.name in hubs and site.region in regions}
    assert isinstance(decision, Denied) == (not wanted)
    if isinstance(decision, AllowedHubs):
        assert set(decision.targets) == wanted


@given(field=st.sampled_from(["hubs", "regions"]), junk=JUNK | st.sampled_from(["hub-1", "local"]))
def test_damaged_policy_denies(field, junk):
    assert isinstance(filter_hubs(policy(**{field: junk}), HUBS), Denied)
