"""`skerry hub plan`: its output for a bundle, and its exit codes."""

import json

import pytest
from typer.testing import CliRunner

from cloud_hub.cli.hub import app
from tests.cloud_hub.doubles.gangs import gang_bundle
from wire.process.exit_codes import ExitCode, ExitError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(gang_bundle(tmp_path_factory.mktemp("plan"), "pictures").path)


def told(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *words])
    if isinstance(result.exception, ExitError):
        raise result.exception
    return result.exit_code, result.output


def test_one_device_is_enough_for_a_small_model(path):
    code, said = told(path)
    assert code == 0
    assert "parameters   610,864 (2.3 MiB)" in said
    assert "chosen       1 x 1 x 1 (tensor x pipeline x replicas)" in said
    assert "why          one device is enough" in said


def test_json_has_every_way_and_the_choice(path):
    code, said = told(path, "--devices", "4", "--tensor", "2", "--batch", "4", "--json")
    facts = json.loads(said)
    assert code == 0
    assert (facts["tensor"], facts["pipeline"], facts["replicas"]) == (2, 1, 2)
    ways = {(way["tensor"], way["pipeline"]): way for way in facts["ways"]}
    assert ways.keys() == {(2, 1), (2, 2)}
    assert ways[2, 1]["weight_bytes"] < 0.55 * facts["weight_bytes"]
    assert all(way["fits"] for way in ways.values())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--devices", "2", "--memory-gib", "0.2"), "it does not fit: it takes "),
        (("--devices", "2", "--tensor", "4"), "the plan takes 4 devices (tensor 4), there are 2"),
    ],
)
def test_what_cannot_be_is_one_line_and_code_40(path, words, why):
    code, said = told(path, *words)
    assert code == ExitCode.CHECK_FAILED
    assert f"why          {why}" in said


def test_a_folder_without_a_bundle_is_code_12(tmp_path):
    with pytest.raises(ExitError) as stop:
        told(str(tmp_path))
    assert stop.value.code == ExitCode.MODEL


def test_the_four_questions_are_answered_and_a_narrower_precision_comes_before_a_second_device(path):
    _, said = told(path, "--memory-gib", "0.252", "--batch", "1", "--json")
    advice = json.loads(said)["advice"]
    assert advice["fits"].startswith("no: ")
    assert advice["change"].endswith("before a second device")
    assert advice["distribution"].startswith("no")
    _, said = told(path, "--batch", "8", "--batch-ms", "100", "--rate", "200")
    assert "latency or throughput? throughput: 80 answers a second of the 200" in said


def test_a_plan_over_more_cards_than_there_are_is_one_line(path):
    with pytest.raises(ExitError, match=r"the plan takes 64 cards, there are \d+") as caught:
        told(path, "--cards", "--devices", "64")
    assert caught.value.code == ExitCode.CHECK_FAILED
