"""The four questions about a hub model: memory, latency or throughput, the smallest change, distribution."""

from hypothesis import given
from hypothesis import strategies as st

from policies.serving.advice import SpreadOption, Workload, advise_capacity, choose_precision, find_limit
from policies.serving.computing import Precision
from policies.serving.placement import GIB, DeviceMemory

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
