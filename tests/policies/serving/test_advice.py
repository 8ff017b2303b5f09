"""The four questions about a hub model: memory, latency or throughput, the smallest change, distribution."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.advice import (
    Advice,
    Limit,
    SpreadOption,
    Workload,
    advise_capacity,
    choose_precision,
    find_limit,
    list_spreads,
)
from policies.serving.computing import Precision
from policies.serving.placement import GIB, DeviceMemory, MemoryNeed

ONE = DeviceMemory(1, 8 * GIB, 0)
SHARE = {Precision.FLOAT32: 1.0, Precision.BFLOAT16: 0.5, Precision.INT8: 0.25}


def test_int8_is_tried_before_a_second_card():
    found = advise_capacity(Workload(24 * GIB, GIB, 8), ONE)
    assert (found.precision, found.devices) == (Precision.INT8, 1)
    assert found.fits.startswith("no: 25.00 GiB in float32, a device has 8.00 GiB; in int8 it does")
    assert found.change == 'precision = "int8", before a second device'
    assert found.distribution.startswith("no")


def test_a_model_that_is_too_large_even_in_int8_is_spread():
    found = advise_capacity(Workload(40 * GIB, GIB, 8), ONE)
    assert found.devices > 1
    assert found.distribution.startswith("yes, for room")


def test_a_spread_is_written_with_its_devices_and_with_its_nodes_if_it_takes_several():
    assert str(SpreadOption(Precision.INT8, 1, 1)) == f"{Precision.INT8} on 1 device (tensor 1, pipeline 1)"
    assert str(SpreadOption(Precision.INT8, 2, 1)) == f"{Precision.INT8} on 2 devices (tensor 2, pipeline 1)"
    across = str(SpreadOption(Precision.INT8, 2, 2, nodes=2))
    assert across == f"{Precision.INT8} on 4 devices (tensor 2, pipeline 2, stages across 2 nodes)"


def test_what_is_short_is_named_latency_or_throughput():
    slow = advise_capacity(Workload(GIB, 0, 8, 0.1, 100.0), ONE)
    assert slow.limit.startswith("throughput: 80 answers a second of the 100")
    late = advise_capacity(Workload(GIB, 0, 8, 0.1, 10.0, 0.05), ONE)
    assert late.limit.startswith("latency: a batch takes 100 ms, an answer may take 50")
    assert "smaller max_batch" in late.change
    well = advise_capacity(Workload(GIB, 0, 8, 0.1, 10.0, 0.5), ONE)
    assert (well.limit.split(":")[0], well.change, well.distribution) == ("neither", "none", "no")
    assert advise_capacity(Workload(GIB, 0, 8), ONE).limit.startswith("not known")


@given(
    st.integers(0, 100 * GIB), st.integers(0, 10 * GIB), st.integers(0, 64 * GIB), st.integers(1, 8),
    st.floats(0, 10), st.floats(0, 1e4), st.floats(0, 10),
)  # fmt: skip
def test_the_widest_precision_that_fits_is_advised_and_nothing_is_spread_that_fits(
    weights, activations, memory, count, batch_s, rate, deadline
):
    load, devices = Workload(weights, activations, 8, batch_s, rate, deadline), DeviceMemory(count, memory, 0)
    fitting = [each for each, share in SHARE.items() if weights * share + activations <= devices.room]
    assert choose_precision(load, devices) is (fitting[0] if fitting else None)
    found, short = advise_capacity(load, devices), find_limit(load, devices)
    assert found.fits.startswith("no" if short.memory else "yes")
    assert found.distribution.startswith("yes") == (not fitting)
    assert (found.change.startswith("none")) == (not (short.memory or short.latency or short.throughput))
    assert all("\n" not in line for line in (found.fits, found.limit, found.change, found.distribution))


def test_no_smaller_batch_is_advised_where_the_weights_alone_do_not_fit():
    pair = DeviceMemory(2, 24 * GIB, 0)
    found = advise_capacity(Workload(400 * GIB, GIB, 32), pair)
    assert "max_batch" not in found.change
    assert found.change.startswith("more devices, or larger ones: the weights alone are 100")
    assert "a smaller max_batch" in advise_capacity(Workload(100 * GIB, 40 * GIB, 32), pair).change


PAIR = DeviceMemory(2, 8 * GIB, 0)


def test_a_late_model_gets_a_smaller_batch_then_a_narrower_precision_then_tensor_parallel():
    late = Workload(GIB, 0, 8, 0.1, 10.0, 0.05)
    assert advise_capacity(late, PAIR) == Advice(
        "yes: 1.00 GiB in float32, a device has 8.00 GiB",
        "latency: a batch takes 100 ms, an answer may take 50",
        'a smaller max_batch than 8; then precision = "bfloat16", then "int8", before a second device',
        "only if that is not enough: tensor parallel, for the time of one answer",
        Precision.BFLOAT16, 2,
    )  # fmt: skip
    assert advise_capacity(late, ONE).devices == 1
    for batch, begin in ((1, "precision = "), (2, "a smaller max_batch than 2; then ")):
        assert advise_capacity(Workload(GIB, 0, batch, 0.1, 10.0, 0.05), ONE).change.startswith(begin)


def test_a_slow_model_gets_a_narrower_precision_and_then_replicas_and_one_in_int8_another_device_at_once():
    slow = advise_capacity(Workload(GIB, 0, 8, 0.1, 100.0), PAIR)
    assert (slow.precision, slow.devices) == (Precision.BFLOAT16, 2)
    assert slow.change == 'precision = "bfloat16", then "int8", before a second device'
    assert slow.distribution == "only if that is not enough: replicas, for throughput"
    narrow = advise_capacity(Workload(4 * GIB, 0, 8, 0.1, 100.0, stored=Precision.INT8), ONE)
    assert (narrow.fits, narrow.change, narrow.precision, narrow.devices) == (
        "yes: 1.00 GiB in int8, a device has 8.00 GiB", "a second device", Precision.INT8, 1,
    )  # fmt: skip


def test_what_is_short_is_said_by_the_first_figure_beyond_its_limit():
    def short(batch_s: float, rate: float, deadline_s: float) -> Limit:
        return find_limit(Workload(8 * GIB, 0, 8, batch_s, rate, deadline_s), ONE)

    assert short(0.1, 80.0, 0.1) == Limit(memory=False, latency=False, throughput=False)
    assert short(0.1, 80.1, 0.1) == Limit(memory=False, latency=False, throughput=True)
    assert short(0.1, 80.0, 0.09) == Limit(memory=False, latency=True, throughput=False)
    assert short(0.1, 0.0, 0.0) == short(0.0, 1e6, 0.5) == Limit(memory=False, latency=False, throughput=False)
    assert find_limit(Workload(8 * GIB, 1, 8), ONE).memory
    assert find_limit(Workload(8 * GIB, 0, 8, cache_bytes=1), ONE).memory


def test_what_is_not_known_of_speed_is_said():
    rows = [(0.0, 10.0, 0.5), (0.1, 0.0, 0.0), (0.1, 10.0, 0.0), (0.1, 0.0, 0.5)]
    found = [advise_capacity(Workload(GIB, 0, 8, *row), ONE) for row in rows]
    unknown, neither = (
        "not known: tell --batch-ms and --rate or --deadline-ms",
        "neither: 80 answers a second, 100 ms a batch",
    )
    assert [each.limit for each in found] == [unknown, unknown, neither, neither]
    tell = "none for memory; tell --batch-ms, --rate and --deadline-ms for speed"
    assert [each.change for each in found] == [tell, "none", "none", "none"]
    assert {each.distribution for each in found} == {"no"}
    assert {(each.precision, each.devices) for each in found} == {(Precision.FLOAT32, 1)}


def test_a_model_that_no_device_holds_is_spread_as_the_fewest_devices_allow_or_needs_more_memory():
    wide, narrow = SpreadOption(Precision.FLOAT32, 4, 2, nodes=2), SpreadOption(Precision.INT8, 2, 1)
    found = advise_capacity(Workload(40 * GIB, GIB, 8), PAIR, [wide, narrow])
    assert found.change == "int8 on 2 devices (tensor 2, pipeline 1): the fewest that hold it"
    assert found.distribution == (
        "yes, for room: float32 on 8 devices (tensor 4, pipeline 2, stages across 2 nodes);"
        " or int8 on 2 devices (tensor 2, pipeline 1)"
    )
    assert (found.precision, found.devices) == (Precision.INT8, 2)
    none = advise_capacity(Workload(400 * GIB, GIB, 8), PAIR)
    assert none.change == (
        "more devices, or larger ones: the weights alone are 100.00 GiB in int8, and 2 devices have 16.00 GiB"
    )
    assert none.distribution == "yes, for room: skerry hub plan --devices 2 --tensor 2 shows how it is divided"
    assert (none.precision, none.devices) == (Precision.INT8, 2)
    own = advise_capacity(Workload(400 * GIB, GIB, 8, stored=Precision.INT8, form="awq, 4 bits"), ONE)
    assert own.change == (
        "more devices, or larger ones: the weights alone are 100.00 GiB in awq, 4 bits, and a device has 8.00 GiB"
    )
    assert own.fits == "no: 101.00 GiB in awq, 4 bits, a device has 8.00 GiB"
    held = advise_capacity(Workload(64 * GIB, GIB, 8), PAIR)  # sixteen in int8: as much as both have
    assert held.change == "a smaller max_batch, or devices with more memory: at this batch int8 weights are too much"
    free = advise_capacity(Workload(GIB, 0, 8), DeviceMemory(1))
    assert free.fits == "yes: 1.00 GiB in float32, a device has memory that is not limited"


def test_the_spreads_of_each_precision_scale_the_weights_and_leave_activations_and_caches():
    needs = [MemoryNeed(t, 1, 32 * GIB // t, GIB, GIB) for t in (1, 2, 4, 8)]
    eight = DeviceMemory(8, 12 * GIB, 2 * GIB, nodes=1)
    load = Workload(32 * GIB, GIB, 8, cache_bytes=GIB)
    assert list_spreads(needs, load, eight) == (
        SpreadOption(Precision.FLOAT32, 4, 1),
        SpreadOption(Precision.BFLOAT16, 2, 1),
        SpreadOption(Precision.INT8, 1, 1),
    )
    half = Workload(64 * GIB, GIB, 8, stored=Precision.BFLOAT16)  # its needs are of what is stored
    assert list_spreads(needs, half, eight) == (
        SpreadOption(Precision.BFLOAT16, 4, 1),
        SpreadOption(Precision.INT8, 2, 1),
    )
    two = DeviceMemory(4, 12 * GIB, 2 * GIB, nodes=2)
    staged = [MemoryNeed(1, 4, 8 * GIB, GIB, GIB)]
    assert list_spreads(staged, load, two)[0] == SpreadOption(Precision.FLOAT32, 1, 4, nodes=2)
    assert list_spreads([], load, two) == ()
