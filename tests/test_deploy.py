"""The systemd units: what they start exists, they are watched, bounded and locked down."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from wire.process.exit_codes import ExitCode

UNITS = sorted((ROOT / "deploy").glob("*.service"))
LOCKED_DOWN = {
    "NoNewPrivileges": "yes",
    "DynamicUser": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}
# What a restart cannot heal: a person has to change something first.
HOPELESS = {
    ExitCode.USAGE,
    ExitCode.CONFIG,
    ExitCode.POLICY,
    ExitCode.MODEL,
    ExitCode.MISSING,
    ExitCode.CREDENTIALS,
    ExitCode.ENROLMENT,
    ExitCode.DATABASE_LOST,
    ExitCode.REGION_KEY,
}


def settings(unit: Path) -> dict[str, str]:
    lines = (line for line in unit.read_text(encoding="utf-8").splitlines() if "=" in line and line[0] != "#")
    return dict(line.split("=", 1) for line in lines)


def test_there_is_a_unit_for_each_room():
    assert [unit.name for unit in UNITS] == ["skerry-agent.service", "skerry-hub.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_starts_a_module_that_exists(unit):
    module = re.search(r"/python -P -m (\w+) --config ", settings(unit)["ExecStart"])
    assert module
    assert (ROOT / module[1] / "__main__.py").is_file()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_is_watched_and_bounded(unit):
    found = settings(unit)
    assert found["Type"] == "notify"
    assert int(found["WatchdogSec"]) <= 60
    assert found["Restart"] == "on-failure"
    assert {"MemoryHigh", "MemoryMax", "TasksMax"} <= found.keys()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_runs_no_program_but_the_interpreter_that_it_brings(unit):
    found = settings(unit)
    run = {name: value for name, value in found.items() if name.startswith("Exec")}
    assert {value.split()[0] for value in run.values()} == {"/opt/skerry/.venv/bin/python"}
    assert re.search(r" -m skerry (agent|hub) reload --config ", run["ExecReload"])
    assert int(found["LimitNOFILE"]) >= 4096


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_is_locked_down(unit):
    found = settings(unit)
    assert {name: found.get(name) for name in LOCKED_DOWN} == LOCKED_DOWN


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_fault_that_no_restart_heals_is_not_restarted(unit):
    codes = {ExitCode(int(code)) for code in settings(unit)["RestartPreventExitStatus"].split()}
    assert codes == HOPELESS
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    assert "restart after every failure but 2, 10, 11, 12, 15, 22, 23, 29 and 37" in page


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_the_unit_without_complaint(unit, tmp_path):
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"^(Exec\w+)=\S+", r"\1=/bin/sh", unit.read_text(), flags=re.MULTILINE))
    for drop_in in unit.parent.glob(f"{unit.name}.d/*.conf"):
        (tmp_path / f"{unit.name}.d").mkdir(exist_ok=True)
        shutil.copy(drop_in, tmp_path / f"{unit.name}.d" / drop_in.name)
    read = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert unit.name not in read.stderr


def test_a_hub_with_cards_may_reach_them_and_has_memory_and_time_for_their_models():
    found = settings(ROOT / "deploy" / "skerry-hub.service.d" / "cards.conf")
    assert found["PrivateDevices"] == "no"
    assert found["DevicePolicy"] == "closed", "nothing but what DeviceAllow names"
    assert {"MemoryHigh", "MemoryMax", "TasksMax", "TimeoutStartSec", "LimitMEMLOCK"} <= found.keys()
    assert not found.keys() & LOCKED_DOWN.keys()


def test_debian_packages_are_made_by_debians_python_alone(monkeypatch, capsys):
    """What is compiled for another Python does not load there; the refusal is one line that names the way out."""
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    debian = importlib.import_module("debian")
    assert debian.refuse_python((3, 11)) == []
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    monkeypatch.setattr(sys, "argv", ["debian.py", "agent"])
    assert debian.main() == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "PYTHON=/usr/bin/python3.11 make deb" in said
