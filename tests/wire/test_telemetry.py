"""The switches of packages that report by themselves: set before any of them is imported, wherever ours run."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from wire.telemetry import SWITCHES, disable_telemetry

OURS = ("wire", "policies", "models", "edge_agent", "cloud_hub", "simulations", "benchmarks", "examples", "clients")
REPORTING = frozenset({"onnxruntime", "huggingface_hub", "transformers", "ray", "vllm"})
# Runs a module of ours with every reporting package hidden, and prints the switches that were missing when one of them
# was asked for.
WATCH = """
import importlib, json, os, sys
reporting, wanted, missing = {reporting!r}, {wanted!r}, []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in reporting:
            missing.extend(switch for switch in wanted if switch not in os.environ)
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Watch())
for module in sys.argv[1:]:
    for name in [each for each in sys.modules if each.partition(".")[0] in {ours!r}]:
        del sys.modules[name]
    for switch in wanted:
        os.environ.pop(switch, None)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert str(error).partition(".")[0] in reporting, error
    if missing:
        print(json.dumps([module, sorted(set(missing))]))
        missing.clear()
"""


def imported_names(path: Path) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def importers() -> list[Path]:
    files = (path for name in OURS for path in (ROOT / name).rglob("*.py") if "peers" not in path.parts)
    return sorted(path for path in files if imported_names(path) & REPORTING)


def test_no_module_of_ours_imports_a_reporting_package_before_its_switch_is_set():
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in importers()]
    assert "models.runtime.onnx_runner" in modules
    assert "cloud_hub.engine.sharded.cluster.driver" in modules
    script = WATCH.format(reporting=set(REPORTING), wanted=list(SWITCHES), ours=set(OURS))
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *modules], env=kept, capture_output=True, text=True, timeout=110, cwd=ROOT,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_no_client_of_ours_imports_a_package_that_reports():
    assert [path for path in importers() if path.is_relative_to(ROOT / "clients")] == []


@pytest.mark.parametrize("module", ["wire", "models"])
def test_a_program_that_imports_ours_has_every_switch_in_its_environment_and_so_have_its_children(module):
    script = f"import {module}, json, subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    child = "import json, os; print(json.dumps(dict(os.environ)))"
    done = subprocess.run([sys.executable, "-c", script, child], env=kept, cwd=ROOT, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert {name: found.get(name) for name in SWITCHES} == SWITCHES


def test_a_switch_that_its_owner_has_set_stays():
    environment = {"ORT_DISABLE_TELEMETRY": "0"}
    disable_telemetry(environment)
    assert environment == {**SWITCHES, "ORT_DISABLE_TELEMETRY": "0"}


@pytest.mark.parametrize(
    "file", sorted([*(ROOT / "deploy").glob("*.service"), *(ROOT / "deploy" / "containers").glob("*.Containerfile")])
)
def test_units_and_images_set_every_switch_for_whatever_else_is_started_there(file):
    words = file.read_text(encoding="utf-8").split()
    words = [word.removeprefix("Environment=") for word in words]
    assert [name for name, value in SWITCHES.items() if f"{name}={value}" not in words] == []


def test_the_chart_sets_every_switch_in_each_pod():
    text = (ROOT / "deploy" / "helm" / "skerry" / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    shown = text.partition('define "skerry.noTelemetry"')[2].partition("{{- end }}")[0]
    assert [name for name, value in SWITCHES.items() if f'{{name: {name}, value: "{value}"}}' not in shown] == []
    assert text.count('include "skerry.noTelemetry"') == 2
