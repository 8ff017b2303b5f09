"""Tests of `skerry models`: what each command prints, and its exit code."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from models.cli.models import app
from models.runtime.onnx_runner import OnnxRunner
from tests.models.conftest import echo_graph, make
from wire.process.exit_codes import ExitCode, ExitError


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160", "NO_COLOR": "1"})


def test_inspect_says_what_leaves_and_how_good_it_is(forged):
    done = run("inspect", forged.path)
    assert done.exit_code == 0
    for words in (
        "tiny@3",
        "16 B of codes (",
        "[1, 8, 8]",
        "hub alone",
        "out of domain",
        "reconstruction by",
        "p50",
    ):
        assert words in done.output
    assert forged.digest in done.output.replace("\n", "")


def test_inspect_as_json_has_the_whole_manifest(forged):
    facts = json.loads(run("inspect", forged.path, "--json").output)
    assert facts["digest"] == forged.digest
    assert facts["manifest"]["files"] == forged.manifest.files
    assert facts["sealed_bytes"] == forged.manifest.fixed_bytes + 196
    assert facts["forge"]["p50_us"].keys() == {"float32", "int8-weights"}


@pytest.mark.parametrize("report", [b"", b"no json", b"[1]", b'{"p50_us": 3}', b'{"p50_us": {}, "forge_s": "x"}'])
def test_a_report_that_is_odd_or_absent_stops_nothing(made, report):
    if report:
        (made.path / "forge.json").write_bytes(report)
    assert run("inspect", made.path).exit_code == 0
    assert run("compare", made.path, made.path).exit_code == 0


def test_verify_runs_the_golden_set_on_both_sides(forged):
    done = run("verify", "--hub", forged.path)
    assert done.exit_code == 0
    assert "sound" in done.output
    assert "32 of 32 labels equal" in done.output


@pytest.mark.further
def test_verify_ends_with_its_own_code_when_answers_differ(tmp_path):
    other = make(tmp_path / "b", echo_graph(scale=-1.0))
    done = run("verify", other.path, "--json")
    assert done.exit_code == ExitCode.CHECK_FAILED
    assert json.loads(done.output)["passed"] is False


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_damaged_bundle_stops_with_one_line(made, command):
    (made.path / "edge.onnx").write_bytes(b"")
    done = run(command, made.path)
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is ExitCode.MODEL
    assert "edge.onnx" in str(done.exception)


@pytest.mark.further
def test_verify_refuses_weights_the_hub_cannot_load(made):
    assert OnnxRunner(made).manifest.hub.graph == "hub.json"
    done = run("verify", "--hub", made.path)
    assert isinstance(done.exception, ExitError)
    assert done.exception.code is ExitCode.MODEL


def test_an_old_bundle_is_split_and_both_parts_are_shown_and_checked(made, tmp_path):
    assert "among the edge's files (format 2)" in run("inspect", made.path).output
    done = run("split", made.path, tmp_path / "new", "--version", "2")
    assert done.exit_code == 0
    for words in ("echo@2", "in a part of its own", "hub/hub.safetensors"):
        assert words in done.output
    told = json.loads(run("inspect", tmp_path / "new", "--json").output)
    assert (told["manifest"]["format"], told["hub"]["version"]) == (3, 2)
    assert run("verify", tmp_path / "new").exit_code == 0
    (tmp_path / "new" / "hub" / "hub.safetensors").write_bytes(b"altered")
    assert "hub.safetensors: its content is not what" in str(run("verify", tmp_path / "new").exception)
    again = run("split", tmp_path / "new")
    assert str(again.exception) == f"{tmp_path / 'new'}: echo@2 has two parts already"


def test_a_folder_without_the_hub_part_is_shown_as_what_a_device_has(made, tmp_path):
    run("split", made.path, tmp_path / "new")
    shutil.rmtree(tmp_path / "new" / "hub")
    assert "is not here; devices need none" in run("inspect", tmp_path / "new").output
    assert run("verify", tmp_path / "new").exit_code == 0


def test_compare_shows_both_and_what_would_have_to_be_fetched(tmp_path):
    one, other = make(tmp_path / "a"), make(tmp_path / "b", echo_graph(scale=2.0), version=2)
    done = run("compare", one.path, other.path)
    assert done.exit_code == 0
    for words in ("echo@1", "echo@2", one.digest[:16], other.digest[:16], "a device loads", "changed files: edge.onnx"):
        assert words in done.output


def test_compare_as_json_names_what_differs(tmp_path):
    one, other = make(tmp_path / "a"), make(tmp_path / "b", version=2)
    told = json.loads(run("compare", one.path, other.path, "--json").output)
    assert told["differs"] == ["model", "digest"]
    assert told["changed_files"] == {}
    assert [bundle["digest"] for bundle in told["bundles"]] == [one.digest, other.digest]
