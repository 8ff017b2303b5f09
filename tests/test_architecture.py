"""What the design promises about the shape of the code: floors, purity, one error policy, few mocks. Sizes: gauges."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import ROOT
from tests.edge_agent.doubles.device import write_device
from tests.sources import PACKAGES, SOURCES, TESTS, name_of, read_facts, read_text

EDGE = ("edge_agent.__main__", "edge_agent.question.decide", "edge_agent.app.agent", "edge_agent.api")
STRANGERS_OF_THE_EDGE = {
    "torch", "onnx", "sklearn", "cloud_hub", "simulations", "typer", "click", "rich", "plotly", "sqlalchemy",
    "safetensors", "av", "PIL", "nacl",
}  # fmt: skip
# Each megabyte of these was measured (docs/adr/0049); whoever needs one imports it then, or runs a process for it.
LEFT_OUT_OF_A_RUNNING_AGENT = {
    "pydantic", "pydantic_core", "pydantic_settings", "policies.language", "aiohttp.client", "aiohttp.connector",
    "paho", "prometheus_client", "http.server", "tarfile", "zoneinfo", "edge_agent.sources.cameras",
    "edge_agent.sources.sensor",
}  # fmt: skip
# They outlive a defect of one task, message, file or line, and say so.
LOOPS = {
    "edge_agent/app/agent.py",
    "edge_agent/outputs/delivery.py",
    "edge_agent/outputs/supervisor.py",
    "edge_agent/sources/files/folder.py",
    "edge_agent/sources/json_lines.py",
    "edge_agent/sources/supervisor.py",
    "cloud_hub/runtime/hub.py",
    "cloud_hub/jobs/runner.py",
}
CLASS_ALONE = re.compile(r"safe_name\([^()]*(?:\(\w*\)[^()]*)*type\(\w+\)\.__name__\)")
TEST = re.compile(r"^ *(?:async )?def test_", re.MULTILINE)
MOCK = re.compile(r"(?<![\w.\"'])(?:monkeypatch|MagicMock|AsyncMock|Mock|patch|mocker)\b")


def test_the_floors_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_module_of_the_question_is_pure_but_the_one_that_seals() -> None:
    contracts = tomllib.loads(read_text(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (pure,) = (each["source_modules"] for each in contracts if each["name"].startswith("pure folders"))
    modules = {path.stem for path in (ROOT / "edge_agent" / "question").glob("*.py")} - {"__init__", "seal"}
    assert {f"edge_agent.question.{module}" for module in modules} <= set(pure)


def test_the_edge_starts_without_what_belongs_to_the_hub_the_forge_or_the_command_line() -> None:
    """A fresh interpreter, because this one has imported everything already."""
    probe = f"import sys, {', '.join(EDGE)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    came_along = set(run.stdout.split())
    assert "edge_agent" in came_along
    assert came_along & STRANGERS_OF_THE_EDGE == set()


def test_a_started_agent_holds_nothing_that_only_some_devices_or_moments_need(tmp_path: Path) -> None:
    """With its configuration, identity, policy and model loaded, then with its API: 18 MB are at stake."""
    file = write_device(tmp_path)
    probe = (
        "import sys\nfrom edge_agent.__main__ import main\ncode = main(sys.argv[1:])\n"
        "print(*sys.modules)\nimport edge_agent.api.app\nprint(*sys.modules)\nsys.exit(code)"
    )
    words = [sys.executable, "-c", probe, "--config", str(file), "--check"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    started, with_api = (set(line.split()) for line in run.stdout.splitlines()[-2:])
    assert {"edge_agent.app.process", "onnxruntime", "policies.model.composition"} <= started
    assert started & {"aiohttp.helpers", "aiohttp.web"} == set()
    assert "aiohttp.web" in with_api
    assert with_api & LEFT_OUT_OF_A_RUNNING_AGENT == set()


def test_every_file_with_code_begins_with_its_law() -> None:
    assert [name_of(path) for path in SOURCES if read_facts(path).silent] == []


def test_only_loops_may_catch_everything() -> None:
    """A broad `except` hides a defect unless it raises it, or another error from it; loops outlive one and say so."""
    quiet = [path for path in SOURCES if name_of(path) not in LOOPS]
    assert [f"{name_of(path)}:{line}" for path in quiet for line in read_facts(path).catches_all] == []


def test_a_loop_that_outlives_a_defect_logs_the_calls_that_led_to_it() -> None:
    loops = [path for path in SOURCES if name_of(path) in LOOPS]
    assert [f"{name_of(path)}:{line}" for path in loops for line in read_facts(path).logs_no_defect] == []


def test_no_log_line_names_the_class_of_an_error_without_its_place() -> None:
    assert [name_of(path) for path in SOURCES if CLASS_ALONE.search(read_text(path))] == []


def test_tests_use_shipped_doubles_and_hardly_a_mock() -> None:
    texts = [read_text(path) for path in TESTS]
    assert sum(len(MOCK.findall(text)) for text in texts) * 100 < 5 * sum(len(TEST.findall(text)) for text in texts)


def test_nothing_is_called_common_or_utils() -> None:
    forbidden = {"common", "utils", "helpers", "manager", "base"}
    names = {
        name_of(path) for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts if part in forbidden
    }
    assert names <= {"cloud_hub/engine/base.py", "wire/transport/base.py"}  # the seams that others implement


def test_no_package_pair_imports_both_ways() -> None:
    pairs = {
        (name_of(path).partition("/")[0], name)
        for path in SOURCES
        for name in read_facts(path).imports
        if name in PACKAGES
    }
    assert [pair for pair in pairs if pair[0] != pair[1] and pair[::-1] in pairs] == []


def test_no_file_holds_the_marks_of_an_unfinished_merge() -> None:
    marks = "^(<{7}|>{7}) "
    found = subprocess.run(["git", "grep", "-lE", marks], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, ""), found.stderr
