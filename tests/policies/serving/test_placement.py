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
    list_layouts,
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
