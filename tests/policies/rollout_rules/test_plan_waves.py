"""Rollout waves: selectors, order, sizes, control cohorts."""

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rollout_rules.plan import (
    DEFAULT_STEPS,
    DeviceSelector,
    FleetMember,
    RolloutRulesError,
    WaveStep,
    compute_wave_sizes,
    cut_waves,
    default_steps,
    order_devices,
    parse_rules,
    pick_controls,
)
from tests.examples import count_examples

EXAMPLES = count_examples(60)
FLEET = [FleetMember("acme--a", "camera", "eu", "acme"), FleetMember("acme--b", "probe", "eu", "acme")]
FLEET += [FleetMember("beta--c", "camera", "us", "beta"), FleetMember("", "camera", "eu", "acme")]


def steps(*texts: str) -> tuple[WaveStep, ...]:
    return parse_rules({"waves": texts}).steps()


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("all", ("acme--a", "acme--b", "beta--c")),
        ("class=camera", ("acme--a", "beta--c")),
        ("class=camera, region=eu|asia", ("acme--a",)),
        ("tenant=beta", ("beta--c",)),
        ("device=acme--b|beta--c", ("acme--b", "beta--c")),
        ("class=robot", ()),
    ],
)
def test_a_selector_names_devices_and_never_one_without_an_id(text, devices):
    assert DeviceSelector.parse(text).select_devices(FLEET) == devices


@pytest.mark.parametrize("text", ["", "camera", "class=", "class=a,class=b", "colour=red", "class=a||b", "all,class=a"])
def test_a_selector_that_is_not_understood_is_refused(text):
    with pytest.raises(RolloutRulesError):
        DeviceSelector.parse(text)


def test_a_small_fleet_goes_one_device_then_a_quarter_then_all_and_a_large_one_by_percents():
    assert compute_wave_sizes(20, default_steps(20)) == (1, 4, 15)
    assert compute_wave_sizes(10_000, default_steps(10_000)) == (100, 900, 4000, 5000)
    assert compute_wave_sizes(3, default_steps(3)) == (1, 2)
    assert compute_wave_sizes(150, DEFAULT_STEPS) == (1, 14, 60, 75)


def test_a_fleet_of_nobody_has_no_wave_at_all():
    assert compute_wave_sizes(0, DEFAULT_STEPS) == ()
    assert cut_waves((), DEFAULT_STEPS) == ()
    assert cut_waves(order_devices("r", ["", ""]), DEFAULT_STEPS) == ()


def test_a_first_wave_above_one_percent_is_refused():
    with pytest.raises(RolloutRulesError, match="at most 10"):
        compute_wave_sizes(1000, steps("11", "100%"))
    with pytest.raises(RolloutRulesError, match="at most 1"):
        compute_wave_sizes(50, steps("25%", "100%"))
    assert compute_wave_sizes(1000, steps("10", "5%", "100%")) == (10, 40, 950)


def test_the_lab_goes_first_and_yet_the_first_wave_stays_small():
    devices = [f"d{n}" for n in range(500)]
    lab = {"d7", "d42", "d99", "d100", "d101", "d102", "d103"}
    cut = cut_waves(order_devices("r", devices, lab), DEFAULT_STEPS)
    assert len(cut[0]) == 5
    assert set(cut[0]) < lab
    assert lab < set(cut[0] + cut[1])


@settings(max_examples=EXAMPLES)
@given(
    fleet=st.integers(1, 400), salt=st.text(max_size=8), texts=st.sampled_from([("1%", "10%", "50%", "100%"), ("1",)])
)
def test_every_device_is_in_one_wave_at_most_and_exposure_never_passes_its_step(fleet, salt, texts):
    devices = [f"d{n}" for n in range(fleet)]
    order = order_devices(salt, devices)
    cut = cut_waves(order, steps(*texts))
    told = [device for wave in cut for device in wave]
    assert sorted(order) == sorted(devices)
    assert len(set(told)) == len(told)
    assert all(cut)
    assert len(cut[0]) <= max(1, fleet // 100)
    reached = 0
    for wave in cut:
        reached += len(wave)
        assert any(reached <= step.count_devices(fleet) for step in steps(*texts))


def test_the_order_is_the_same_on_every_hub_and_another_one_for_every_rollout():
    devices = [f"d{n}" for n in range(1000)]
    assert order_devices("one", devices) == order_devices("one", reversed(devices))
    first = {salt: set(order_devices(salt, devices)[:10]) for salt in ("one", "two", "three")}
    assert len(set.union(*first.values())) > 20


@given(fleet=st.integers(1, 60), reached=st.integers(0, 60), size=st.integers(0, 60))
def test_controls_are_never_devices_that_were_told(fleet, reached, size):
    order = [f"d{n}" for n in range(fleet)]
    cohort = pick_controls(order, min(reached, fleet), size)
    assert not set(cohort) & set(order[:reached])
    assert len(cohort) <= size


def test_controls_are_the_last_devices_that_none_was_told_before():
    order = tuple("abcdefgh")
    rows = {
        (0, 3): "fgh",
        (6, 3): "gh",
        (8, 3): "",
        (2, 0): "",
        (0, 8): "abcdefgh",
        (0, 99): "abcdefgh",
        (3, 99): "defgh",
    }
    assert {key: "".join(pick_controls(order, *key)) for key in rows} == rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("class=a,class=b", "to = 'class=a,class=b': name each key once, and several values as key=a|b"),
        (
            "colour=red",
            "to = 'colour=red': write class=..., region=..., tenant=..., device=..., joined by commas, or all",
        ),
        ("class", "to = 'class': write class=..., region=..., tenant=..., device=..., joined by commas, or all"),
        ("class=", "to = 'class=': write class=..., region=..., tenant=..., device=..., joined by commas, or all"),
    ],
)
def test_a_selector_is_refused_by_what_is_wrong_with_it(text, why):
    with pytest.raises(RolloutRulesError) as refused:
        DeviceSelector.parse(text)
    assert str(refused.value) == why


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["1%", "1%"], "waves = 1%, 1%: each has to reach further than the one before"),
        (["3", "2"], "waves = 3, 2: each has to reach further than the one before"),
        (["1%", "2"], "waves: numbers of devices come before percentages"),
        (["0%"], "waves: '0%': write more than 0 % and at most 100 %"),
        (["100.1%"], "waves: '100.1%': write more than 0 % and at most 100 %"),
        (["0"], "waves: '0': write a whole number of devices, or a percentage such as 10%"),
        (["1.5"], "waves: '1.5': write a whole number of devices, or a percentage such as 10%"),
        (["x"], "waves: 'x' is neither a number of devices nor a percentage such as 10%"),
        (["1" * 13], f"waves: '{'1' * 13}' is neither a number of devices nor a percentage such as 10%"),
    ],
)
def test_a_wave_is_refused_by_what_is_wrong_with_it(texts, why):
    with pytest.raises(RolloutRulesError) as refused:
        parse_rules({"waves": texts})
    assert str(refused.value) == why


def test_steps_are_taken_up_to_their_bounds_and_written_as_they_are_read():
    assert [str(step) for step in steps("1", "20", "0.5%", "100%")] == ["1", "20", "0.5%", "100%"]
    assert steps("1" * 12)[0].devices == 111_111_111_111
    assert steps(" 7 %")[0].count_devices(100) == 7
    assert [steps("2.5%")[0].count_devices(fleet) for fleet in (0, 1, 40, 41, 80, 81)] == [0, 1, 1, 2, 2, 3]


def test_the_order_is_that_of_the_digest_of_salt_and_id():
    devices = [f"d{n}" for n in range(20)]
    expected = sorted(devices, key=lambda device: sha256(b"r|" + device.encode()).digest())
    assert order_devices("r", [*devices, "", "d3"]) == tuple(expected)
    assert order_devices("r", devices, ["d3", "x"]) == ("d3", *(each for each in expected if each != "d3"))


def test_waves_that_reach_no_further_in_a_small_fleet_are_none():
    assert compute_wave_sizes(3, steps("1", "10%", "50%", "100%")) == (1, 1, 1)
    assert compute_wave_sizes(1, steps("1", "10%", "100%")) == (1,)
    assert compute_wave_sizes(
        5,
        steps(
            "1%",
        ),
    ) == (1,)
    assert cut_waves("abc", steps("1", "100%")) == (("a",), ("b", "c"))
