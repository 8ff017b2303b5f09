"""The lock of all packages: complete, hashed, naming no host, equal to what tests run with; the bill of materials."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT

LINE = re.compile(r"[a-z0-9][a-z0-9-]*==[A-Za-z0-9.]+( --hash=sha256:[0-9a-f]{64})+")


@pytest.fixture(scope="module")
def lock():
    sys.path.insert(0, str(ROOT / "deploy"))
    try:
        importlib.import_module("release")
        yield importlib.import_module("lock")
    finally:
        sys.path.remove(str(ROOT / "deploy"))


def test_every_locked_package_is_pinned_with_a_hash_and_names_no_host(lock: ModuleType):
    for level in lock.LEVELS:
        lines = (lock.FOLDER / f"{level}.txt").read_text(encoding="ascii").splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert pins
        assert all(LINE.fullmatch(pin) for pin in pins)


def test_the_lock_is_what_the_tests_run_with_and_what_pyproject_asks_for(lock: ModuleType):
    installed = lock.list_installed()
    wanted = lock.digest_requirements()
    assert {level: lock.read_lock(level)[0] for level in lock.LEVELS} == dict.fromkeys(lock.LEVELS, wanted)
    locked = {one.name: one.version for one in lock.read_lock("dev")[1]}
    assert {name: lock.strip_build(installed.get(name, "")) for name in locked} == locked


def test_a_device_needs_nothing_of_the_hub_and_less_is_locked_for_less(lock: ModuleType):
    names = {level: {one.name for one in lock.read_lock(level)[1]} for level in lock.LEVELS}
    assert names["agent"] < names["hub"] < names["demo"] < names["dev"]
    assert "onnxruntime" in names["agent"]
    assert names["agent"].isdisjoint({"torch", "sqlalchemy", "onnx", "scikit-learn", "plotly", "pytest"})


def test_the_lock_for_arm_has_the_same_versions_without_what_has_no_package_there(lock: ModuleType):
    made_for, arm = lock.read_lock(lock.ARM)
    here = {one.name: one.version for one in lock.read_lock("agent")[1]}
    assert made_for == lock.digest_requirements()
    assert {one.name: one.version for one in arm} == {name: here[name] for name in here if name != "constriction"}
    pins = (lock.FOLDER / f"{lock.ARM}.txt").read_text(encoding="ascii").splitlines()[2:]
    assert all(LINE.fullmatch(pin) for pin in pins)


def test_a_package_that_differs_is_missing_or_was_added_is_named(lock: ModuleType):
    pins = [lock.LockedPackage(name, "1.0", ("0" * 64,)) for name in ("same", "other", "gone", "torch")]
    faults = lock.compare_installed(pins, {"same": "1.0", "other": "2.0", "torch": "1.0+cpu", "new": "3", "pip": "4"})
    assert faults == [
        "other: locked 1.0, installed 2.0",
        "gone: locked 1.0, installed not at all",
        "new: installed, not locked",
    ]


def test_a_package_that_a_promised_python_cannot_take_fails_the_check(lock: ModuleType, tmp_path: Path, monkeypatch):
    asked = {"fits": ">=3.9", "patch": ">=3.11.5", "capped": ">=3.8,<3.14", "newer": ">=3.12", "silent": ""}
    assert [line.partition(":")[0] for line in lock.find_too_new(asked)] == ["capped", "newer", "patch"]
    before = lock.check_lock()
    name = next(one for one in lock.read_lock("dev")[1] if one.name == "pymdown-extensions")
    planted = tmp_path / f"{name.name}-{name.version}.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text(f"Name: {name.name}\nVersion: {name.version}\nRequires-Python: >=3.11.5\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert lock.check_lock() == [*before, f"{name.name}: takes Python >=3.11.5, so not 3.11.0, which is promised"]


def test_what_another_promised_python_needs_beyond_the_lock_is_named(lock: ModuleType):
    needs = {"skerry": ["one", 'two; python_version >= "3.14"'], "one": [], "two": [], "setuptools": []}
    locked = {"agent": {"one", "setuptools"}}
    assert lock.find_unlocked(needs, locked) == ["two: agent needs it on Python 3.14, and it is not locked"]
    assert lock.find_unlocked(needs, {"agent": {"one", "two", "setuptools"}}) == []


def test_every_compiled_package_has_a_wheel_for_each_promised_python(lock: ModuleType):
    """A wheel for one Python alone has a hash for each; one hash stands for a wheel that fits all of them."""
    per_python = {"numpy", "aiohttp", "msgspec", "cffi", "onnxruntime"}
    for level in ("agent", lock.ARM):
        counts = {one.name: len(one.digests) for one in lock.read_lock(level)[1]}
        assert {counts[name] for name in per_python} == {len(lock.PYTHONS)}, level
    torch = {one.name: one for one in lock.read_lock(lock.CUDA)[1]}["torch"]
    assert len(torch.digests) == len(lock.PYTHONS)


def test_every_other_file_of_hashed_pins_fits_each_promised_python_too(lock: ModuleType):
    """Known by the lock: what has a wheel for each Python there needs as many hashes wherever it is pinned."""
    compiled = {one.name for one in lock.read_lock("dev")[1] if len(one.digests) == len(lock.PYTHONS)}
    files = [path for path in (ROOT / "deploy").rglob("*.txt") if "--hash=" in path.read_text(encoding="ascii")]
    assert ROOT / "deploy/helm/tools.txt" in files
    for path in files:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.partition("==")[0] in compiled:
                assert line.count("--hash=") >= len(lock.PYTHONS), f"{path}: {line.partition(' ')[0]}"


def test_changed_requirements_make_the_lock_stale(lock: ModuleType, tmp_path: Path):
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    before = lock.digest_requirements(tmp_path)
    assert before == lock.digest_requirements()
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(text.replace('"rich>=13.9"', '"rich>=13.9", "left-pad"'))
    assert lock.digest_requirements(tmp_path) != before


def test_a_word_that_is_no_order_is_a_usage_error():
    done = subprocess.run([sys.executable, str(ROOT / "deploy/lock.py"), "all"], capture_output=True, check=False)
    assert done.returncode == 2


def test_the_bill_of_materials_names_each_package_with_hash_licence_and_needs(lock: ModuleType, tmp_path: Path):
    release = sys.modules["release"]
    wheel = tmp_path / "skerry-0.whl"
    wheel.write_bytes(b"wheel")
    bill = json.loads(json.dumps(release.make_bill("agent", wheel)))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    pins = {one.name: one for one in lock.read_lock("agent")[1]}
    assert {one["name"] for one in bill["components"]} == set(pins)
    for one in bill["components"]:
        assert [each["content"] for each in one["hashes"]] == list(pins[one["name"]].digests)
        assert one["licenses"][0]["license"]["name"] != "not stated"
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    references = {one["bom-ref"] for one in bill["components"]}
    assert needs.keys() == {"skerry", *references}
    assert all(set(needed) <= references for needed in needs.values())
    assert any(ref.startswith("pkg:pypi/aiohttp@") for ref in needs["skerry"])


def test_the_licences_of_every_package_stand_beside_the_bill(lock: ModuleType):
    text = sys.modules["release"].collect_licences("agent")
    for one in lock.read_lock("agent")[1]:
        assert f"\n{one.name} {one.version}: " in text
    assert "Apache License" in text


def test_what_a_torch_with_cuda_needs_is_locked_beside_every_level_that_has_torch(lock: ModuleType):
    beside = {"torch", "nvidia-nccl-cu13"}
    plain, with_it = {"torch": "2.13.0"}, {"torch": "2.13.0", "nvidia-nccl-cu13": "2.28"}
    assert lock.with_cuda({"numpy", "torch"}, beside, plain) == {"numpy", "torch"}
    assert lock.with_cuda({"numpy", "torch"}, beside, with_it) == {"numpy", "torch", "nvidia-nccl-cu13"}
    assert lock.with_cuda({"numpy"}, beside, with_it) == {"numpy"}  # a device has no torch
