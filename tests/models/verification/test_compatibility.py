"""Tests of the compatibility check: a bundle not for this device is REJECTED, and not quarantined."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from models.bundle.manifest import ModelKind, Precision, TargetPlatform
from models.runtime.runner import echo_manifest
from models.update.trust import Refusal
from models.verification.compatibility import (
    BundleRequirements,
    DeviceHost,
    check_custom,
    check_interface,
    check_requirements,
    check_target,
    read_host,
)
from models.verification.onnx_operators import ONNX, OPSETS
from wire.protocol.messages import TensorDType
from wire.protocol.rollout import InstallFailure

HERE = DeviceHost("0.1.0", "x86_64")
TARGET = TargetPlatform("onnxruntime", 20, Precision.INT8, "x86_64")


def rejected(refusal: Refusal | None, words: str) -> None:
    assert refusal is not None
    assert words in refusal.detail
    assert refusal.failure is InstallFailure.INCOMPATIBLE


COMMITTED = echo_manifest(labels=4)
REPLACEMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": ({"kind": ModelKind.REGRESSOR}, "is a regressor"),
    "other labels": ({"labels": ("0", "1", "2", "four")}, "other labels"),
    "labels in another order": ({"labels": COMMITTED.labels[::-1]}, "other labels"),
    "another shape": ({"input": replace(COMMITTED.input, shape=(2, 2))}, "takes 'scores' FP32[2, 2] 0..1, echo@1"),
    "another type": ({"input": replace(COMMITTED.input, dtype=TensorDType.UINT8)}, "UINT8"),
    "another name": ({"input": replace(COMMITTED.input, name="x\x1b[2J")}, "takes 'x\\x1b[2J'"),
    "a narrower range": ({"input": replace(COMMITTED.input, high=0.5)}, "0..0.5"),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_a_bundle_that_callers_of_the_committed_one_cannot_call_is_rejected(name):
    changes, words = REPLACEMENTS[name]
    rejected(check_interface(replace(COMMITTED, **changes), COMMITTED), words)


def test_a_bundle_that_takes_all_that_the_committed_one_takes_fits():
    wider = replace(COMMITTED.input, low=-1.0, high=2.0)
    assert check_interface(replace(COMMITTED, version=2, input=wider, temperature=2.0, cut="deeper"), COMMITTED) is None


def test_what_was_made_for_this_device_fits():
    assert check_requirements(BundleRequirements("0.1.0", TARGET), HERE) is None
    assert check_requirements(BundleRequirements("0.1", msgspec.structs.replace(TARGET, machine="any")), HERE) is None
    assert check_target(msgspec.structs.replace(TARGET, machine="AMD64"), HERE) is None


@pytest.mark.parametrize("agent", ["0.1.0", "0.1", "0.1.1", "0.2", "1", "0.10.0", "0.1.0.dev3", "0.1.0+local"])
def test_an_agent_of_that_version_or_newer_may_run_it(agent):
    assert check_requirements(BundleRequirements("0.1.0", TARGET), DeviceHost(agent, "x86_64")) is None


@pytest.mark.parametrize("least", ["0.1.1", "0.2", "1", "0.1.0.1", "10"])
def test_a_bundle_for_a_newer_agent_is_rejected(least):
    rejected(check_requirements(BundleRequirements(least, TARGET), HERE), "this is '0.1.0'")


@pytest.mark.parametrize("least", ["", "newest", "0.1.0rc1", "-1", "0.1.0\n", "1" * 7, "1.2.3.4.5", "\x1b[2J"])
def test_a_version_that_is_none_is_rejected_and_shown_harmlessly(least):
    refusal = check_requirements(BundleRequirements(least, TARGET), HERE)
    rejected(refusal, "which is no version")
    assert refusal is not None
    assert refusal.detail.isprintable()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"machine": "aarch64"}, "was made for 'aarch64', this is 'x86_64'"),
        ({"machine": ""}, "was made for ''"),
        ({"runtime": "tflite"}, "needs the runtime 'tflite'"),
        ({"opset": OPSETS[ONNX].stop}, "needs operators of opset 22"),
    ],
)
def test_a_bundle_for_other_hardware_or_runtime_is_rejected(change, words):
    rejected(check_requirements(BundleRequirements("0.1.0", msgspec.structs.replace(TARGET, **change)), HERE), words)


def test_names_of_one_processor_are_one():
    arm = msgspec.structs.replace(TARGET, machine="arm64")
    assert check_target(arm, DeviceHost("1", "aarch64")) is None
    rejected(check_target(arm, HERE), "arm64")


CUSTOM = {"version": 3, "min_agent": "0.1.0", "target": msgspec.to_builtins(TARGET)}


def test_what_the_publisher_says_beside_the_file_is_judged_before_it_is_fetched():
    assert check_custom(CUSTOM, HERE) is None
    rejected(check_custom({**CUSTOM, "min_agent": "9"}, HERE), "needs agent 9")


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {"min_agent": "0.1.0"},
        {**CUSTOM, "min_agent": 1},
        {**CUSTOM, "target": None},
        {**CUSTOM, "target": {**msgspec.to_builtins(TARGET), "npu": "v3"}},
    ],
)
def test_what_this_agent_cannot_read_was_made_for_a_newer_one(custom):
    rejected(check_custom(custom, HERE), "cannot be read by this agent")


def test_this_host_has_a_processor_and_an_agent():
    assert read_host("0.1.0").agent == "0.1.0"
    assert read_host("0.1.0").machine
