"""What a hub model computes on: the hub's options against the hardware there is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving.computing import (
    ComputeOptions,
    ComputeOverride,
    ComputeTarget,
    DeviceChoice,
    NoTarget,
    Precision,
    TargetChoice,
    choose_targets,
)

OPTIONS = [
    ComputeOptions(device, precision, allowed)
    for device, precision, allowed in itertools.product(DeviceChoice, Precision, (False, True))
]


def chosen(options: ComputeOptions, cards: int = 0, *, bfloat16_cards: bool = True) -> list[str]:
    found = choose_targets(options, cards=cards, bfloat16_cards=bfloat16_cards)
    assert isinstance(found, TargetChoice)
    return [str(target) for target in found.targets]


def test_a_card_that_is_asked_for_and_is_not_there_is_one_line_unless_a_fallback_is_allowed():
    asked = ComputeOptions(DeviceChoice.CUDA)
    found = choose_targets(asked, cards=0)
    assert isinstance(found, NoTarget)
    assert found.why.startswith("no graphics card")
    assert "\n" not in found.why
    allowed = choose_targets(ComputeOptions(DeviceChoice.CUDA, allow_fallback=True), cards=0)
    assert isinstance(allowed, TargetChoice)
    assert [str(target) for target in allowed.targets] == ["float32 on the CPU"]
    assert allowed.fallback


def test_auto_takes_the_card_that_is_there_in_bfloat16_if_it_computes_in_it():
    auto = ComputeOptions(precision=Precision.AUTO)
    assert chosen(auto, 1) == ["bfloat16 on a graphics card", "float32 on a graphics card"]
    assert chosen(auto, 1, bfloat16_cards=False) == ["float32 on a graphics card"]
    assert chosen(auto, 0) == ["auto on the CPU"]


def test_a_fallback_ends_in_float32_on_the_cpu():
    everything = ComputeOptions(DeviceChoice.CUDA, Precision.INT8, allow_fallback=True)
    assert chosen(everything, 2) == [
        "int8 on a graphics card",
        "float32 on a graphics card",
        "int8 on the CPU",
        "float32 on the CPU",
    ]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("cards", [0, 1, 8])
def test_nothing_is_tried_that_the_options_do_not_allow(options, cards):
    found = choose_targets(options, cards=cards)
    if isinstance(found, NoTarget):
        assert options.device is DeviceChoice.CUDA
        assert not cards
        assert not options.allow_fallback
        return
    assert found.targets
    for at, target in enumerate(found.targets):
        asked = target.precision is options.precision or options.precision is Precision.AUTO
        assert asked or (at and target.precision is Precision.FLOAT32 and options.allow_fallback)
        assert not target.cuda or (cards and options.device is not DeviceChoice.CPU)
        on_wished = target.cuda or options.device is DeviceChoice.CPU or not cards
        assert on_wished or options.allow_fallback
    assert len(found.targets) == 1 or options.allow_fallback or options.precision is Precision.AUTO
    assert bool(found.fallback) == (options.device is DeviceChoice.CUDA and not cards)


@given(
    st.builds(ComputeOptions, st.sampled_from(DeviceChoice), st.sampled_from(Precision), st.booleans()),
    st.builds(
        ComputeOverride,
        st.none() | st.sampled_from(DeviceChoice),
        st.none() | st.sampled_from(Precision),
        st.none() | st.booleans(),
    ),
)
def test_what_a_model_sets_for_itself_holds_and_the_rest_is_as_for_all(options, own):
    made = own.apply(options)
    for name in ("device", "precision", "allow_fallback"):
        wanted = getattr(own, name)
        assert getattr(made, name) == (getattr(options, name) if wanted is None else wanted)


def test_a_target_names_itself_for_people():
    assert str(ComputeTarget(cuda=False, precision=Precision.INT8)) == "int8 on the CPU"


def test_a_weight_takes_the_bytes_of_its_numbers_and_of_auto_those_of_float32():
    sizes = {each.value: each.weight_bytes for each in Precision}
    assert sizes == {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def test_by_itself_a_model_computes_where_a_card_is_in_float32_and_falls_back_to_nothing():
    options = ComputeOptions()
    assert (options.device, options.precision, options.allow_fallback) == (DeviceChoice.AUTO, Precision.FLOAT32, False)
    assert choose_targets(ComputeOptions(precision=Precision.AUTO), cards=1) == choose_targets(
        ComputeOptions(precision=Precision.AUTO), cards=1, bfloat16_cards=True
    )
