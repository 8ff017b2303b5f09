"""`skerry hub plan`: its output for a bundle, and its exit codes."""

import json

import pytest
from typer.testing import CliRunner

import skerry
from cloud_hub.engine import devices
from policies.serving.capacity import CardMemory
from policies.serving.placement import GIB, MIB
from tests.cloud_hub.doubles.gangs import gang_bundle
from wire.process.exit_codes import ExitCode, ExitError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(gang_bundle(tmp_path_factory.mktemp("plan"), "pictures").path)


def told(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(skerry.app, ["hub", "plan", *words])
    if isinstance(result.exception, ExitError):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.further
def test_one_device_is_enough_for_a_small_model(path):
    code, said = told(path)
    assert code == 0
    assert "parameters   610,864 (2.3 MiB)" in said
    assert "chosen       1 x 1 x 1 (tensor x pipeline x replicas)" in said
    assert "why          one device is enough" in said


@pytest.mark.further
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


@pytest.mark.further
def test_cards_that_are_not_here_are_a_what_if(path):
    _, said = told(path, "--cards", "8", "--memory-gib", "24", "--json")
    facts = json.loads(said)
    assert (facts["devices"], facts["process_bytes"], facts["replicas"]) == (8, GIB, 8)


def test_cards_of_unknown_memory_and_two_kinds_of_devices_are_refused(path, monkeypatch):
    monkeypatch.setattr(devices, "find_cards", tuple)
    for words, why in ((("--cards", "2"), "tell --memory-gib"), (("--cards", "2", "--devices", "2"), "or --devices")):
        with pytest.raises(ExitError, match=why) as caught:
            told(path, *words)
        assert caught.value.code == ExitCode.USAGE


@pytest.mark.further
def test_the_cards_of_this_machine_are_looked_at_and_planned_for(path, monkeypatch):
    cards = (CardMemory(0, "card", 24 * GIB, 20 * GIB), CardMemory(1, "card", 24 * GIB, 22 * GIB))
    monkeypatch.setattr(devices, "find_cards", lambda: cards)
    facts = json.loads(told(path, "--json")[1])
    assert (facts["devices"], facts["memory_bytes"]) == (2, 20 * GIB), "as free as the fullest of them"
    assert json.loads(told(path, "--cards", "4", "--json")[1])["memory_bytes"] == 24 * GIB
    assert "here         card (20.00 GiB free), card (22.00 GiB free); " in told(path)[1]


def decoder(folder, **more):
    shape = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    sizes = {"intermediate_size": 28_672, "vocab_size": 128_256, "max_position_embeddings": 131_072}
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "dtype": "bfloat16", **shape, **sizes, **more})
    )
    return str(folder)


def test_a_decoder_is_planned_from_its_configuration_alone_with_its_cache(tmp_path):
    code, said = told(decoder(tmp_path / "70b"), "--cards", "4", "--memory-gib", "80", "--batch", "16")
    assert code == 0
    assert "parameters   70,5" in said
    assert "cache        40.00 GiB for 16 sequences of 8,192 tokens (80 layers, 8 key-value heads of 128)" in said
    assert "chosen       4 x 1 x 1" in said
    assert "vLLM: --tensor-parallel-size 4 --pipeline-parallel-size 1" in said


def test_nodes_hold_stages_and_what_crosses_their_line_is_said(tmp_path):
    words = ("--cards", "4", "--nodes", "2", "--memory-gib", "40", "--batch", "16")
    code, said = told(decoder(tmp_path / "70b"), *words)
    assert code == 0
    assert "stages across 2 nodes, tensor inside each" in said
    assert "between nodes  16 KiB a token by pipeline, " in said
    code, said = told(str(tmp_path / "70b"), *words, "--tensor", "8")
    assert code == ExitCode.CHECK_FAILED
    assert "tensor 8 does not go into a node of 4 devices" in said


def test_how_many_cards_is_answered_where_one_is_not_enough(tmp_path):
    code, said = told(decoder(tmp_path / "70b"), "--cards", "1", "--memory-gib", "80", "--batch", "16", "--json")
    advice = json.loads(said)["advice"]
    assert code == ExitCode.CHECK_FAILED
    assert advice["fits"].startswith("no: ")
    assert advice["change"].startswith("int8 on 2 devices (tensor 2, pipeline 1)")
    assert "bfloat16 on 4 devices (tensor 4, pipeline 1)" in advice["distribution"]


def test_all_experts_are_held_and_the_active_ones_are_read(tmp_path):
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    path = decoder(tmp_path / "moe", **experts)
    facts = json.loads(told(path, "--cards", "8", "--memory-gib", "140", "--json")[1])
    assert facts["weight_bytes"] > 3 * facts["active_weight_bytes"]
    assert "2 of 8 experts; all are held" in told(path, "--cards", "8", "--memory-gib", "140")[1]


def test_a_latent_cache_is_named_as_such(tmp_path):
    widths = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    path = decoder(tmp_path / "latent", model_type="deepseek_v3", kv_lora_rank=512, q_lora_rank=1536, **widths)
    said = told(path, "--cards", "8", "--memory-gib", "140", "--batch", "16")[1]
    assert "cache        11.25 GiB for 16 sequences of 8,192 tokens (80 layers, a latent vector of 576)" in said


@pytest.mark.further
def test_a_bundle_is_planned_over_machines_and_one_that_is_enough_is_said(path):
    three = ("--devices", "1", "--nodes", "3", "--batch", "4")
    assert "machines     one machine is enough, of 3" in told(path, *three)[1]
    ways = json.loads(told(path, *three, "--json")[1])["ways"]
    needs = sorted(256 * MIB + way["weight_bytes"] + way["activation_bytes"] for way in ways)
    assert {way["tensor"] for way in ways} == {1}, "tensor parallel stays inside a machine"
    code, said = told(path, *three, "--memory-gib", repr((needs[-1] - 1) / GIB), "--json")
    facts = json.loads(said)
    assert (code, facts["tensor"]) == (0, 1)
    assert facts["nodes_taken"] == facts["pipeline"] > 1
    said = told(path, *three, "--memory-gib", repr((needs[-1] - 1) / GIB))[1]
    assert f"machines     {facts['pipeline']} machines, a stage or more on each, of 3" in said
    assert f"this hub, in ranks on {facts['pipeline']} machines ([ray], docs/engines.md)" in said
    code, said = told(path, *three, "--memory-gib", repr((needs[0] - 1) / GIB))
    assert code == ExitCode.CHECK_FAILED
    assert "machines     " not in said
