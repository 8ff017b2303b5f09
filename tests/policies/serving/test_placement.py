"""Placement of a model on devices, decided by sizes."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.placement import (
    GIB,
    MIB,
    DeviceMemory,
    DoesNotFit,
    MemoryNeed,
    Placement,
    PlacementRequest,
    format_size,
    list_layouts,
    list_node_layouts,
    place_model,
)

NOTHING = PlacementRequest()


def needs_of(whole: int, devices: int, activations: int = 0) -> list[MemoryNeed]:
    """A model that divides evenly."""
    return [MemoryNeed(t, p, whole // (t * p), activations) for t, p in list_layouts(devices)]


def placed(whole: int, devices: DeviceMemory, asked: PlacementRequest = NOTHING) -> Placement:
    found = place_model(needs_of(whole, devices.count), devices, asked)
    assert isinstance(found, Placement)
    return found


def refused(whole: int, devices: DeviceMemory, asked: PlacementRequest = NOTHING) -> str:
    found = place_model(needs_of(whole, devices.count), devices, asked)
    assert isinstance(found, DoesNotFit)
    return found.why


def test_a_model_that_fits_one_device_stays_on_one():
    found = placed(GIB, DeviceMemory(1, 4 * GIB))
    assert (found.need.ranks, found.replicas) == (1, 1)
    assert found.why == "one device is enough, 1.00 GiB of 3.75 GiB a device"


def test_devices_left_over_compute_whole_answers_side_by_side():
    found = placed(GIB, DeviceMemory(4, 4 * GIB))
    assert (found.need.ranks, found.replicas, found.devices) == (1, 4, 4)
    assert found.why.endswith("; 4 replicas side by side")


def test_the_fewest_devices_that_hold_it_and_tensor_before_pipeline():
    found = placed(6 * GIB, DeviceMemory(5, 4 * GIB))
    assert (found.need.tensor, found.need.pipeline, found.replicas) == (2, 1, 2)
    assert found.why.startswith("tensor parallel over 2 devices is the least that fits")


def test_a_model_whose_weights_do_not_divide_becomes_a_pipeline():
    needs = [MemoryNeed(1, 1, 6 * GIB, 0), MemoryNeed(2, 1, 6 * GIB, 0), MemoryNeed(1, 2, 3 * GIB, 0)]
    found = place_model(needs, DeviceMemory(2, 4 * GIB), NOTHING)
    assert isinstance(found, Placement)
    assert (found.need.tensor, found.need.pipeline) == (1, 2)


def test_a_plan_that_does_not_fit_says_what_it_lacks():
    assert refused(20 * GIB, DeviceMemory(2, 4 * GIB)) == (
        "it does not fit: it takes 10.25 GiB a device at the least (2 x 1), there are 2 of 4.00 GiB"
    )


def test_a_world_size_without_devices_is_said_in_numbers():
    asked = PlacementRequest(tensor=4, pipeline=2)
    assert refused(MIB, DeviceMemory(2), asked) == "the plan takes 8 devices (tensor 4, pipeline 2), there are 2"
    assert refused(MIB, DeviceMemory(4), PlacementRequest(tensor=2, replicas=3)) == (
        "the plan takes 6 devices (tensor 2, replicas 3), there are 4"
    )


def test_what_was_asked_for_is_done_though_less_would_do():
    found = placed(MIB, DeviceMemory(4), PlacementRequest(tensor=2, pipeline=2))
    assert (found.need.tensor, found.need.pipeline, found.replicas) == (2, 2, 1)
    assert found.why.startswith("as planned")


sizes = st.integers(0, 64 * GIB)


@given(sizes, st.integers(1, 8), st.integers(0, 32), st.builds(PlacementRequest, *[st.integers(0, 4)] * 3))
def test_whatever_is_chosen_fits_the_memory_the_devices_and_the_wish(whole, count, memory_gib, asked):
    devices = DeviceMemory(count, memory_gib * GIB)
    found = place_model(needs_of(whole, count, whole // 10), devices, asked)
    if isinstance(found, DoesNotFit):
        assert found.why
        assert "\n" not in found.why
        return
    assert found.devices <= count
    assert found.need.bytes <= devices.room
    assert asked.allows_layout(found.need.tensor, found.need.pipeline)
    assert asked.replicas in (0, found.replicas)


@given(sizes, st.integers(1, 8), st.integers(1, 32))
def test_no_smaller_spread_would_have_fitted(whole, count, memory_gib):
    devices = DeviceMemory(count, memory_gib * GIB)
    needs = needs_of(whole, count)
    found = place_model(needs, devices, NOTHING)
    if isinstance(found, Placement):
        assert all(need.bytes > devices.room for need in needs if need.ranks < found.need.ranks)
    else:
        assert all(need.bytes > devices.room for need in needs)


def test_the_reason_names_the_kind_of_division():
    def why(tensor: int, pipeline: int) -> str:
        found = place_model([MemoryNeed(tensor, pipeline, GIB, 0)], DeviceMemory(4, 4 * GIB), NOTHING)
        assert isinstance(found, Placement)
        return found.why.partition(" parallel over ")[0]

    assert [why(2, 1), why(1, 2), why(2, 2)] == ["tensor", "pipeline", "tensor and pipeline"]


def test_a_replica_takes_as_many_nodes_as_its_stages_fill_and_none_where_it_does_not_go():
    """Dealt out by hand: each stage takes `tensor` devices of one node."""
    for count, nodes in ((1, 1), (8, 1), (8, 2), (12, 3), (16, 4)):
        devices = DeviceMemory(count, nodes=nodes)
        node = count // nodes
        for tensor, pipeline in list_layouts(count + 2):
            left, taken, stages = node, 1, pipeline
            while stages and tensor <= node:
                if left < tensor:
                    left, taken = node, taken + 1
                left, stages = left - tensor, stages - 1
            goes = not stages and taken <= nodes
            assert devices.count_nodes(tensor, pipeline) == (taken if goes else 0), (count, nodes, tensor, pipeline)
            beside = node // (tensor * pipeline) * nodes if taken == 1 else nodes // taken
            assert devices.count_replicas(tensor, pipeline) == (beside if goes else 0), (count, nodes, tensor, pipeline)


def test_across_nodes_only_layouts_that_fill_each_or_have_the_stages_asked_for_are_listed():
    two = DeviceMemory(8, nodes=2)
    inside = {(t, p) for t, p in list_layouts(4)}
    assert set(list_node_layouts(two)) == inside | {(4, 2)}
    assert set(list_node_layouts(two, 5)) == inside | {(4, 2), (1, 5)}
    assert set(list_node_layouts(two, 3)) == inside | {(4, 2), (2, 3)}
    assert set(list_node_layouts(DeviceMemory(4))) == inside
    three = list_node_layouts(DeviceMemory(12, nodes=3), 4)  # three of four devices a stage: the fourth has no node
    assert [(2, 4) in three, (1, 4) in three, (3, 4) in three] == [True, True, False]


def test_a_model_that_fills_its_device_to_the_byte_fits_and_one_byte_more_does_not():
    devices = DeviceMemory(1, 4 * GIB, GIB)
    assert devices.room == 3 * GIB
    exact, more = ([MemoryNeed(1, 1, 2 * GIB, GIB - 5, 5 + extra)] for extra in (0, 1))
    assert isinstance(place_model(exact, devices, NOTHING), Placement)
    assert isinstance(place_model(more, devices, NOTHING), DoesNotFit)


def test_every_reason_of_a_refused_plan_is_one_whole_sentence():
    pair, four = DeviceMemory(2, 4 * GIB), DeviceMemory(4, 4 * GIB, nodes=2)
    assert refused(MIB, four, PlacementRequest(tensor=3)) == (
        "tensor 3 does not go into a node of 2 devices: it talks in every layer, so it stays inside one;"
        " use pipeline across nodes"
    )
    assert isinstance(place_model(needs_of(MIB, 4), four, PlacementRequest(tensor=2)), Placement)
    none = place_model([], pair, PlacementRequest(pipeline=2))
    assert none == DoesNotFit("nothing on 2 devices is pipeline 2")
    assert place_model([], pair, NOTHING) == DoesNotFit("nothing on 2 devices is possible")
    wide = place_model([MemoryNeed(2, 1, GIB, 0)], DeviceMemory(3, 4 * GIB), PlacementRequest(replicas=2))
    assert wide == DoesNotFit("the plan takes 4 devices, there are 3")


def test_every_reason_of_a_choice_names_size_room_and_nodes():
    unlimited = placed(GIB, DeviceMemory(2), PlacementRequest(replicas=1))
    assert (unlimited.replicas, unlimited.why) == (1, "one device is enough, 1.00 GiB a device")
    both = placed(MIB, DeviceMemory(8, 4 * GIB, nodes=2), PlacementRequest(tensor=2, pipeline=2))
    assert both.why == "as planned, 0.2 MiB of 3.75 GiB a device; 2 replicas side by side"
    across = placed(MIB, DeviceMemory(4, 4 * GIB, nodes=2), PlacementRequest(tensor=2, pipeline=2))
    assert across.why == "as planned, 0.2 MiB of 3.75 GiB a device; stages across 2 nodes, tensor inside each"
    assert [
        placed(MIB, DeviceMemory(2), PlacementRequest(**{way: 2})).need.ranks for way in ("tensor", "pipeline")
    ] == [2, 2]


def test_among_layouts_of_equal_ranks_the_one_of_fewest_nodes_is_chosen_and_then_tensor():
    eight = DeviceMemory(8, 4 * GIB, nodes=2)
    needs = [MemoryNeed(4, 2, GIB, 0), MemoryNeed(1, 4, GIB, 0), MemoryNeed(2, 2, GIB, 0), MemoryNeed(1, 8, GIB, 0)]
    found = place_model(needs, eight, NOTHING)
    assert isinstance(found, Placement)
    assert (found.need.tensor, found.need.pipeline, found.replicas) == (2, 2, 2)


def test_a_size_is_written_in_gib_from_one_on():
    assert [format_size(size) for size in (0, MIB // 2, GIB - MIB, GIB, 3 * GIB // 2)] == [
        "0.0 MiB", "0.5 MiB", "1023.0 MiB", "1.00 GiB", "1.50 GiB",
    ]  # fmt: skip
