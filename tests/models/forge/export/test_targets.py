"""Device profiles: which can be measured here, and the note about a missing execution provider."""

import platform

import onnxruntime as ort
import pytest

from models.forge.data.types import ForgeError
from models.forge.export.targets import (
    CPU,
    PROFILES,
    Precision,
    find_profile,
    is_measurable,
    local_profile,
    pick_providers,
)


def test_every_profile_begins_with_float32_and_ends_on_the_processor():
    for name, profile in PROFILES.items():
        assert profile.name == name
        assert profile.precisions[0] is Precision.FLOAT32
        assert profile.providers[-1] == CPU
        assert len(set(profile.precisions)) == len(profile.precisions)


def test_this_machines_processor_is_measured_and_another_is_not():
    mine = local_profile()
    assert find_profile("") == mine
    assert is_measurable(mine)
    other = PROFILES["arm64" if mine.name == "x86" else "x86"]
    assert not is_measurable(other)


def test_a_graphics_card_is_measured_only_where_its_provider_is_installed():
    assert not is_measurable(PROFILES["cuda"], [CPU])
    assert is_measurable(PROFILES["cuda"], ["CUDAExecutionProvider", CPU])


def test_an_unknown_target_is_refused_with_the_list():
    with pytest.raises(ForgeError, match=r"'toaster' is not known; try one of x86, arm64, cuda") as refusal:
        find_profile("toaster")
    assert "\n" not in str(refusal.value)


def test_a_processor_that_no_profile_describes_must_be_named(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(ForgeError, match="--target"):
        local_profile()


def test_a_missing_provider_falls_back_and_says_so():
    picked = pick_providers(PROFILES["tensorrt"].providers, ["CUDAExecutionProvider", CPU])
    assert picked.providers == ("CUDAExecutionProvider", CPU)
    assert "TensorrtExecutionProvider not installed here: it runs on CUDAExecutionProvider" in picked.note


def test_nothing_missing_nothing_said():
    assert pick_providers([CPU], [CPU]) == ((CPU,), "")


def test_the_processor_is_always_the_last_resort():
    picked = pick_providers(["NoSuchProvider"], ["AzureExecutionProvider"])
    assert picked.providers == (CPU,)
    assert picked.note


def test_what_is_picked_opens_here():
    assert set(pick_providers(PROFILES["openvino"].providers).providers) <= set(ort.get_available_providers())
