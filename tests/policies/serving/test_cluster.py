"""Room of a cluster's nodes for the stages of a plan: counted exactly, and explained in one line."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.cluster import count_stages, explain_shortage

RESOURCES = st.dictionaries(st.sampled_from(["CPU", "GPU", "memory"]), st.integers(0, 20).map(float))


@given(st.lists(RESOURCES, max_size=5), st.integers(1, 6), st.integers(1, 8))
def test_a_plan_is_satisfied_exactly_when_its_stages_can_be_dealt_out(nodes, stages, each):
    why = explain_shortage(nodes, stages, {"CPU": float(each)})
    left = [node.get("CPU", 0.0) for node in nodes]
    dealt = 0
    while any(have >= each for have in left):
        left[next(at for at, have in enumerate(left) if have >= each)] -= each
        dealt += 1
    assert (not why) == (dealt >= stages)
    assert "\n" not in why


@given(RESOURCES, RESOURCES)
def test_a_node_never_holds_more_stages_than_its_scarcest_resource_allows(node, stage):
    count = count_stages(node, stage)
    wanted = {name: each for name, each in stage.items() if each}
    assert all(count * each <= node.get(name, 0.0) for name, each in wanted.items())
    assert not wanted or any((count + 1) * each > node.get(name, 0.0) for name, each in wanted.items())


def test_a_stage_is_never_divided_between_two_nodes_and_the_line_says_what_there_is():
    two = [{"CPU": 2.0, "memory": 1e9}, {"CPU": 3.0}, {"memory": 1e9}]
    assert explain_shortage(two, 2, {"CPU": 2.0}) == ""
    assert explain_shortage(two, 1, {"CPU": 4.0}) == (
        "no nodes satisfy the plan: it takes 4 CPU on one node; the nodes that are alive have: 3 CPU, 2 CPU, 0 CPU"
    )
    assert explain_shortage([], 3, {"GPU": 1.0}) == (
        "no nodes satisfy the plan: it takes 3 stages of 1 GPU, each on one node; the nodes that are alive have: none"
    )


def test_a_plan_that_just_fits_is_no_shortage_and_a_node_of_nothing_holds_no_stage():
    assert explain_shortage([{"CPU": 4.0}, {"CPU": 2.0}], 3, {"CPU": 2.0}) == ""
    assert explain_shortage([{"CPU": 4.0}], 3, {"CPU": 2.0}) != ""
    assert (
        count_stages({"CPU": 4.0}, {})
        == count_stages({"CPU": 4.0}, {"CPU": 0.0})
        == count_stages({}, {"CPU": 1.0})
        == 0
    )
    assert count_stages({"CPU": 4.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}) == 1
    two = explain_shortage([{"CPU": 1.0, "GPU": 2.0}, {"CPU": 8.0}], 1, {"GPU": 4.0, "CPU": 2.0})
    assert two == (
        "no nodes satisfy the plan: it takes 2 CPU and 4 GPU on one node; the nodes that are alive have:"
        " 8 CPU and 0 GPU, 1 CPU and 2 GPU"
    )
