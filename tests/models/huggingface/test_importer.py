"""Tests of Hugging Face checkpoints as hub models: shards as they lie, answers as transformers gives them."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.bundle.bundle import open_bundle
from models.bundle.hub_part import HubPart, open_hub_part
from models.bundle.manifest import HUB_GRAPH_FILE, BundleError
from models.forge.data.types import ForgeError
from models.huggingface.importer import ImportRequest, import_checkpoint
from models.sharding.program import ParallelShape
from tests.examples import further, mark_further
from tests.models.doubles.checkpoints import KINDS, draw_samples, expected_logits, sample_edge, save_checkpoint
from tests.models.doubles.spread import Spread

pytest.importorskip("transformers")
TOLERANCE = 1e-5
BATCHES = (1, 2, 5)


def imported(folder: Path, kind: str, **values) -> tuple[HubPart, torch.nn.Module]:
    net = save_checkpoint(folder / "checkpoint", kind, **values)
    sample_edge(folder / "edge", kind)
    made = import_checkpoint(ImportRequest(folder / "checkpoint", folder / "edge", folder / "new"))
    return open_hub_part(made.path, made.manifest), net


def spread(part: HubPart, shape: ParallelShape) -> Spread:
    files = [str(part.path / name) for name in part.manifest.weights]
    return Spread(part.read_file(HUB_GRAPH_FILE), files, shape)


def codes_of(kind: str, x: Tensor) -> Tensor:
    return torch.round(x * 15) if KINDS[kind].pictures else x.float()


@pytest.fixture(scope="module", params=["bert", further("vit")])
def pair(request, tmp_path_factory):
    return request.param, *imported(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize(
    "shape", [further(ParallelShape()), ParallelShape(2, 1), further(ParallelShape(1, 2))], ids=str
)
def test_a_checkpoint_answers_as_transformers_does_whole_and_divided_on_every_batch(pair, shape):
    kind, part, net = pair
    over = spread(part, shape)
    xs = [draw_samples(kind, batch) for batch in BATCHES]
    for x, found in zip(xs, over.answers("whole", xs)[0], strict=True):
        assert torch.allclose(found, expected_logits(net, kind, x), atol=TOLERANCE, rtol=TOLERANCE)
    codes = [codes_of(kind, x) for x in xs]
    for code, found in zip(codes, over.answers("tail", codes)[0], strict=True):
        sent = code / 15 if KINDS[kind].pictures else code.long()
        assert torch.allclose(found, expected_logits(net, kind, sent), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("kind", mark_further(sorted(KINDS.keys() - {"bert", "vit"}), []))
def test_other_encoders_answer_as_transformers_does(tmp_path, kind):
    part, net = imported(tmp_path, kind)
    x = draw_samples(kind, 3)
    found = spread(part, ParallelShape()).answer("whole", x)[0]
    assert torch.allclose(found, expected_logits(net, kind, x), atol=TOLERANCE, rtol=TOLERANCE)


def test_tensor_parallel_ranks_of_a_checkpoint_meet_twice_a_layer_and_never_put_tensors_together(pair):
    kind, part, _ = pair
    _, counts = spread(part, ParallelShape(2, 1)).answer("whole", draw_samples(kind, 2))
    assert counts["gather"] == 0
    assert counts["reduce"] <= 2 * 2 + 2


def test_the_shards_are_linked_and_the_edge_part_stays_as_it_is(pair):
    _, part, _ = pair
    folder = part.path.parent.parent
    shards = sorted((folder / "checkpoint").glob("*.safetensors"))
    assert len(shards) > 3
    assert all((part.path / shard.name).samefile(shard) for shard in shards)
    old, new = open_bundle(folder / "edge"), open_bundle(folder / "new")
    assert old.manifest.files == new.manifest.files
    assert new.manifest.version == old.manifest.version + 1


def test_nothing_is_claimed_of_a_pair_that_was_not_measured(pair):
    figures = open_bundle(pair[1].path.parent).manifest.calibration
    assert figures.pair == figures.hub == figures.oracle == figures.edge


@pytest.mark.further
def test_a_checkpoint_in_bfloat16_stays_in_bfloat16(tmp_path):
    net = save_checkpoint(tmp_path / "plain", "vit")
    net.to(torch.bfloat16).save_pretrained(tmp_path / "checkpoint")  # type: ignore[operator]
    sample_edge(tmp_path / "edge", "vit")
    made = import_checkpoint(ImportRequest(tmp_path / "checkpoint", tmp_path / "edge", tmp_path / "new"))
    part = open_hub_part(made.path, made.manifest)
    over = spread(part, ParallelShape(2, 1))
    assert {port.dtype for port in over.form.weights.values() if port.source} == {"bfloat16"}
    x = draw_samples("vit", 2)
    wanted = net(pixel_values=x.to(torch.bfloat16)).logits.float()
    assert torch.allclose(over.answer("whole", x)[0], wanted, atol=0.05)


# -- what is refused


def refused(folder: Path, kind: str = "bert") -> str:
    if not (folder / "edge").exists():
        sample_edge(folder / "edge", kind)
    with pytest.raises((ForgeError, BundleError)) as caught:
        import_checkpoint(ImportRequest(folder / "checkpoint", folder / "edge", folder / "new"))
    assert "\n" not in str(caught.value)
    assert not (folder / "new").exists()
    return str(caught.value)


def edit_config(folder: Path, **values) -> None:
    path = folder / "checkpoint" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_pickled_weights_are_never_opened(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert", shard="1GB")
    (tmp_path / "checkpoint" / "model.safetensors").rename(tmp_path / "checkpoint" / "pytorch_model.bin")
    assert "pickled weights are never opened" in refused(tmp_path)


def test_code_in_the_folder_is_never_run(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert")
    edit_config(tmp_path, auto_map={"AutoModel": "evil.Model"})
    (tmp_path / "checkpoint" / "evil.py").write_text("raise SystemExit('run')")
    assert "which is never run" in refused(tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "is no encoder that classifies"),
        further({"architectures": ["NoSuchForSequenceClassification"]}, "has no NoSuchForSequenceClassification"),
        further({"architectures": []}, "names no architecture"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        further({"num_hidden_layers": 3}, "no file holds bert.encoder.layer.2"),
        further({"hidden_size": 64}, "config.json says"),
        further({"num_attention_heads": 5}, "cannot be built"),
        further({"max_position_embeddings": 4}, "config.json says"),
        ({"id2label": {"0": "2", "1": "1", "2": "0"}}, "in another order"),
    ],
    ids=str,
)
def test_a_configuration_that_cannot_be_served_is_refused_in_one_line(tmp_path, values, said):
    save_checkpoint(tmp_path / "checkpoint", "bert")
    edit_config(tmp_path, **values)
    assert said in refused(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert")
    shard = sorted((tmp_path / "checkpoint").glob("*.safetensors"))[1]
    shard.unlink()
    assert f"the shard {shard.name} is missing" in refused(tmp_path)


def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert")
    path = tmp_path / "checkpoint" / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    assert "no plain file name" in refused(tmp_path)


def test_a_header_that_lies_is_refused(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert", shard="1GB")
    path = tmp_path / "checkpoint" / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    assert "model.safetensors: " in refused(tmp_path)


def test_an_edge_whose_codes_are_features_of_another_model_is_refused(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert")
    sample_edge(tmp_path / "edge", "bert", features=True)
    assert "which no other model can read" in refused(tmp_path)


@pytest.mark.further
def test_a_checkpoint_with_other_labels_than_the_edge_is_refused(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert", num_labels=7)
    assert "gives [(7,)], the manifest says 3 outputs" in refused(tmp_path)


@pytest.mark.further
def test_a_checkpoint_for_other_samples_than_the_edge_is_refused(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "vit", image_size=32)
    sample_edge(tmp_path / "edge", "vit")
    assert "cannot be traced" in refused(tmp_path)
