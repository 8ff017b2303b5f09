"""Jobs in hand: tenants share the window evenly, and what a hub holds goes with its shards."""

from hypothesis import given
from hypothesis import strategies as st

from cloud_hub.jobs.decisions import SUSPECT_CRASHES, JobSettings
from cloud_hub.jobs.held import ClaimPlan, HeldJobs, share_window
from tests.cloud_hub.jobs.making import NOW_MS, job

NAMES = st.sets(st.sampled_from("abcdefghij"), max_size=10)


@given(st.integers(1, 300), NAMES, st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 400)))
def test_no_tenant_has_more_than_its_share_and_nobody_who_waits_is_left_out(window, waiting, held):
    quotas = share_window(ClaimPlan(NOW_MS, None, window, held, frozenset(), 1), waiting)
    share = -(-window // max(1, len(waiting)))
    for tenant in waiting:
        assert quotas.get(tenant, 0) == max(0, share - held.get(tenant, 0))
    assert set(quotas) <= waiting


def test_a_backlog_of_one_tenant_leaves_another_its_half():
    held = HeldJobs(JobSettings(window=8))
    for number in range(8):
        held.add(job(str(number)))
    plan = held.plan_claim(NOW_MS)
    assert plan is not None
    assert share_window(plan, ["acme", "clinic"]) == {"clinic": 4}


def test_jobs_go_with_their_shards_and_a_new_term_is_a_loss_and_a_gain():
    held = HeldJobs(JobSettings())
    assert held.follow_terms({1: 5, 2: 5}) == (True, [])
    held.add(job("x", shard=1))
    held.add(job("y", shard=2))
    assert held.follow_terms({1: 5, 2: 5}) == (False, [])
    assert held.follow_terms({1: 5, 2: 6}) == (True, ["y"])
    assert held.follow_terms({}) == (False, ["x"])
    assert held.plan_claim(NOW_MS) is None, "who serves nothing begins nothing"
    assert len(held) == 0


def test_without_leases_everything_is_gained_once():
    held = HeldJobs(JobSettings())
    assert [held.follow_terms(None), held.follow_terms(None)] == [(True, []), (False, [])]
    assert held.shards is None


def test_of_the_jobs_that_hubs_ended_with_one_is_in_hand_at_a_time():
    held = HeldJobs(JobSettings())
    plan = held.plan_claim(NOW_MS)
    assert plan is not None
    assert plan.suspects == 1
    held.add(job("s", crashes=SUSPECT_CRASHES))
    plan = held.plan_claim(NOW_MS)
    assert plan is not None
    assert plan.suspects == 0


def plan(held: HeldJobs) -> ClaimPlan:
    found = held.plan_claim(NOW_MS)
    assert found is not None
    return found


def test_a_job_whose_result_is_being_written_leaves_its_place_to_another():
    held = HeldJobs(JobSettings(window=2))
    for name in "ab":
        held.add(job(name))
    assert plan(held).held == {"acme": 2}
    held.end("a")
    held.end("a")
    assert plan(held).held == {"acme": 1}
    assert (len(held), held.ids) == (2, frozenset({"a", "b"})), "it is in hand until it is written"
    assert held.remove("a") is not None
    assert plan(held).held == {"acme": 1}
    for at in range(6):
        held.add(job(f"w{at}"))
        held.end(f"w{at}")
    assert held.plan_claim(NOW_MS) is None, "so many are being written that nothing more is begun"


def test_a_model_that_has_enough_in_hand_lets_others_begin():
    held = HeldJobs(JobSettings(window=2))
    for number in range(2):
        held.add(job(str(number), model="down"))
    plan = held.plan_claim(NOW_MS)
    assert plan is not None
    assert plan.full == {"down"}


@given(st.integers(16, 300), st.permutations([f"hostile-{n}" for n in range(10)]), st.integers(1, 3))
def test_ten_tenants_whose_jobs_never_end_leave_an_honest_one_places_of_its_own(
    window: int, hostile: list[str], models: int
):
    """They come one after another, so that each of the first has far more than its share for ever."""
    held = HeldJobs(JobSettings(window=window))
    for count in range(1, len(hostile) + 1):
        for tenant, quota in share_window(plan(held), hostile[:count]).items():
            for number in range(quota):
                model = f"down-{number % models}"
                held.add(job(f"{tenant}-{count}-{number}", tenant=tenant, model=model))
    found = plan(held)
    assert len(held) <= 3 * window, "so much memory they take at most"
    quotas = share_window(found, [*hostile, "honest"])
    assert quotas["honest"] >= found.own >= window // 16
    assert found.count_own("honest") == found.own
