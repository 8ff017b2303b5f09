"""Tests of `skerry models import`, and of a checkpoint named as the model of `skerry models forge`."""

import json

import pytest
import torch
from typer.testing import CliRunner

from models.cli.models import app
from models.forge.data.types import ForgeError
from models.forge.pipeline.loading import load_model
from tests.models.doubles.checkpoints import draw_samples, expected_logits, sample_edge, save_checkpoint
from wire.process.exit_codes import ExitCode

pytest.importorskip("transformers")


@pytest.mark.further
def test_a_checkpoint_is_put_behind_an_edge_part_by_one_command(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", "bert")
    sample_edge(tmp_path / "edge", "bert")
    words = ["import", str(tmp_path / "checkpoint"), "--edge", str(tmp_path / "edge"), "--out", str(tmp_path / "new")]
    done = CliRunner().invoke(app, [*words, "--json", "--version", "9"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["model"] == "bert@9"
    assert told["weight_bytes"] > 20_000 > told["edge_bytes"]
    text = CliRunner().invoke(app, words)
    assert "skerry models calibrate" in text.stdout


def test_a_folder_that_is_no_checkpoint_ends_the_command_with_one_line(tmp_path):
    sample_edge(tmp_path / "edge", "bert")
    words = ["import", str(tmp_path), "--edge", str(tmp_path / "edge"), "--out", str(tmp_path / "new")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, Exception)
    assert getattr(done.exception, "code", None) == ExitCode.MODEL
    assert "save_pretrained" in str(done.exception)


def test_a_checkpoint_can_be_forged_as_any_model(tmp_path):
    net = save_checkpoint(tmp_path / "checkpoint", "vit")
    model = load_model("hf:checkpoint", tmp_path)
    x = draw_samples("vit", 2)
    with torch.no_grad():
        assert torch.allclose(model(x), expected_logits(net, "vit", x), atol=1e-5)


def test_a_checkpoint_without_its_last_layer_is_not_forged(tmp_path):
    net = save_checkpoint(tmp_path / "checkpoint", "bert")
    state = {name: value for name, value in net.state_dict().items() if not name.startswith("classifier")}
    net.save_pretrained(tmp_path / "checkpoint", state_dict=state)  # type: ignore[operator]
    with pytest.raises(ForgeError, match=r"no file holds classifier"):
        load_model("hf:checkpoint", tmp_path)
