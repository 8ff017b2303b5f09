"""Forge run on a tiny network: a sound bundle, byte-equal repetition, continuation after a kill."""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch

from models.bundle.hub_part import open_hub_part
from models.bundle.manifest import EDGE_FILE
from models.forge.data.types import Data, DataPart, ForgeError
from models.forge.evaluation.outcomes import OUTCOMES_FILE, read_outcomes
from models.forge.pipeline.demo import demo_recipe_key, load_demo_bundle
from models.forge.pipeline.forge import run_forge
from models.forge.report.report import HTML_FILE, locate_report
from models.forge.spec import ForgeInputs
from models.forge.training.determinism import deterministic_torch
from models.graph.hub_model import open_hub_graphs
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner
from tests import ROOT
from tests.models.conftest import forge, tiny_data, tiny_net, tiny_spec
from wire.protocol.codec import encode_wire_message, pad_plaintext
from wire.protocol.messages import Escalation, Tensor, TensorDType


def test_a_forged_bundle_is_sound_and_its_codes_fit_the_link(forged):
    runner = OnnxRunner(forged)
    assert check_golden(forged, runner).passed
    codes = runner.infer_one(np.zeros((1, 8, 8), np.float32)).features["features"]
    tensor = runner.codec.encode("features", codes)
    assert len(tensor.data) == runner.codec.total_bytes == 16
    arrived = runner.codec.decode("features", tensor)  # a step per sample may have coarsened what left
    assert np.array_equal(runner.codec.decode("features", runner.codec.encode("features", arrived)), arrived)
    assert np.corrcoef(arrived.ravel(), codes.ravel())[0, 1] > 0.5


def test_the_hub_answers_from_the_codes_and_from_the_sample(forged):
    hub, sample = open_hub_graphs(forged), torch.zeros(3, 1, 8, 8)
    codes = np.stack([one.features["features"] for one in OnnxRunner(forged).infer(sample.numpy())])
    assert hub.tail(torch.from_numpy(codes.astype(np.float32))).shape == (3, 10)
    assert torch.allclose(hub.whole(sample), tiny_net()(sample), atol=1e-5), "the hub alone is the given model"


def test_the_longest_question_fits_the_size_all_questions_have(forged):
    m = forged.manifest
    fields = {
        "features": Tensor(TensorDType.UINT8, (16,), bytes(16)),
        "local_answer": Tensor(TensorDType.INT32, (1,), bytes(4)),
        "confidence": Tensor(TensorDType.FP32, (1,), bytes(4)),
    }
    question = Escalation("a" * 32, m.ref, "b" * 32, "eu-central-1", fields, 2.0, audit=False, trace="c" * 55)
    assert len(pad_plaintext(encode_wire_message(question), m.fixed_bytes)) == m.fixed_bytes


@pytest.mark.heavy
def test_equal_model_data_and_seed_give_an_equal_bundle(forged, tmp_path):
    again = forge(tmp_path / "again")
    for name in forged.manifest.files:
        assert again.read_file(name) == forged.read_file(name), name
    assert again.digest == forged.digest


def test_timings_stay_out_of_the_content(forged):
    report = json.loads(forged.report)
    assert set(report["p50_us"]) == set(report["edge_bytes"]) == {"float32", "int8-weights"}
    assert report["forge_s"] >= sum(report["stage_s"].values()) * 0.9
    assert b"_us" not in (forged.path / "manifest.json").read_bytes()


def test_the_graph_tells_nothing_of_the_machine_that_made_it(forged):
    graph = onnx.load_from_string(forged.read_file(EDGE_FILE))
    text = str(graph)
    assert [imported.domain for imported in graph.opset_import] == [""]
    for trace in ("metadata_props", "doc_string", '.py"', ".py:", "/home", "/usr", "torch"):
        assert trace not in text


def test_the_manifest_says_where_the_bundle_comes_from(forged):
    m = forged.manifest
    assert (m.cut, m.target.precision, m.provenance.seed) == ("early.3.relu", "int8-weights", 11)
    assert len(m.provenance.data_digest) == len(m.provenance.weights_digest) == 64
    part = open_hub_part(forged.path, m).manifest
    assert part.parallel.stages[0].weight_bytes > 0
    assert (part.provenance, m.files.keys() & part.files.keys()) == (m.provenance, set())
    assert m.calibration.samples == 100


def test_a_report_without_links_and_the_outcomes_lie_beside_the_bundle(forged):
    folder = locate_report(forged.path)
    page = (folder / HTML_FILE).read_text()
    titles = ("Bytes", "Which samples to escalate", "Confidence and novelty", "Precisions", "Privacy leakage")
    for words in (*titles, "<svg", forged.digest):
        assert words in page
    for link in ("http://", "https://", "<script", 'src="/'):
        assert link not in page
    assert len(read_outcomes(folder / OUTCOMES_FILE)) == 100


@pytest.mark.heavy
def test_another_seed_gives_another_bundle(forged, tmp_path):
    aids = ForgeInputs(cache=tmp_path / "cache", report=False)
    other = run_forge(tiny_net(), tiny_data(), tiny_spec(seed=12), tmp_path / "other", aids=aids)
    assert other.digest != forged.digest
    assert not locate_report(other.path).exists()


CHILD = """
import os, signal, sys
from pathlib import Path
from models.forge.pipeline.forge import run_forge
from models.forge.spec import ForgeInputs
from tests.models.conftest import tiny_data, tiny_net, tiny_spec

def tell(stage, share):
    if stage == "teaching" and share > 0.4:
        os.kill(os.getpid(), signal.SIGKILL)

inputs = ForgeInputs(cache=Path(sys.argv[2]), report=False)
run_forge(tiny_net(), tiny_data(), tiny_spec(), Path(sys.argv[1]), tell, aids=inputs)
"""


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_forge_killed_in_the_middle_goes_on_where_it_was(forged, tmp_path):
    out, cache = tmp_path / "out", tmp_path / "cache"
    command = [sys.executable, "-c", CHILD, str(out), str(cache)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.exists()
    epochs = []

    def tell(stage, share):
        if stage == "teaching" and 0 < share < 0.95:
            epochs.append(share)

    again = run_forge(tiny_net(), tiny_data(), tiny_spec(), out, tell, aids=ForgeInputs(cache=cache, report=False))
    assert min(epochs) > 0.4, "it went on behind the last whole epoch"
    assert again.digest == forged.digest, "interrupted or not, the same bundle"
    stages = []
    run_forge(
        tiny_net(),
        tiny_data(),
        tiny_spec(),
        tmp_path / "third",
        lambda stage, _: stages.append(stage),
        aids=ForgeInputs(cache=cache, report=False),
    )
    assert not {"exporting", "quantising", "tuning", "attacking"} & set(stages), "what is kept is not done again"


def labelled(y: np.ndarray) -> Data:
    x = np.broadcast_to(np.arange(len(y), dtype=np.float32)[:, None, None, None] / 100, (len(y), 1, 8, 8))
    part = DataPart((np.ascontiguousarray(x),), y)
    return Data(part, part, part, ("a", "b"))


class Forked(torch.nn.Module):
    """Network with data-dependent control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x.flatten(1))
        return y * 2 if bool(y.sum() > 0) else y


def spoiled() -> torch.nn.Module:
    model = tiny_net()
    with torch.no_grad():
        next(model.parameters())[0] = float("nan")
    return model


ALTERNATE = np.arange(60) % 2
BAD = {
    "NaN": (spoiled, tiny_data),
    "torch.where instead of if": (Forked, lambda: labelled(ALTERNATE)),
    "label 2, out of range": (
        lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)),
        lambda: labelled(np.where(np.arange(60) == 7, 2, ALTERNATE)),
    ),
    "no valid cut": (
        lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)),
        lambda: labelled(ALTERNATE),
    ),
    "10 outputs, but the data has 2 labels": (tiny_net, lambda: labelled(ALTERNATE)),
}


@pytest.mark.parametrize("words", BAD)
def test_what_cannot_become_a_bundle_is_refused_in_one_line(words, tmp_path):
    model, data = BAD[words]
    with pytest.raises(ForgeError, match=words) as refused:
        run_forge(model(), data(), tiny_spec(cut=""), tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_guarantee_that_the_samples_cannot_give_is_refused_before_any_work(tmp_path):
    stages = []
    with pytest.raises(ForgeError, match=r"100 calibration samples cannot show a risk of 0\.001"):
        run_forge(
            tiny_net(), tiny_data(), tiny_spec(max_risk=0.001), tmp_path / "out", lambda stage, _: stages.append(stage)
        )
    assert set(stages) == {"reading"}


class Products(torch.nn.Module):
    """An operator that the hub runs and ONNX does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.cumprod(1)


@pytest.mark.further
def test_a_requested_cut_that_cannot_become_onnx_is_refused_before_anything_is_trained(tmp_path):
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 8), Products(), torch.nn.Linear(8, 8), torch.nn.ReLU()
    stages = []
    with pytest.raises(ForgeError, match=r"cannot become ONNX: .*prod"):
        run_forge(
            torch.nn.Sequential(*layers, torch.nn.Linear(8, 10)),
            tiny_data(),
            tiny_spec(cut="4.relu"),
            tmp_path / "out",
            lambda stage, _: stages.append(stage),
        )
    assert set(stages) == {"reading", "cutting"}


@pytest.mark.further
def test_an_impossible_limit_says_what_is_nearest_and_leaves_nothing(forged, tmp_path):
    with pytest.raises(ForgeError, match=r"cut early.3.relu: --target-ms 1e-06 is not met: the nearest is .*relax"):
        forge(tmp_path / "out", kept=True, target_ms=1e-6)
    assert list(tmp_path.iterdir()) == []


def test_torch_is_left_as_it_was_found():
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.random.get_rng_state())
    with deterministic_torch(1):
        torch.rand(3)
    after = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.random.get_rng_state())
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def place_in_cache(cache, bundle):
    path = cache / f"digits-{demo_recipe_key()[:16]}"
    path.mkdir(parents=True)
    shutil.copytree(bundle.path, path, dirs_exist_ok=True)
    return path


def test_a_sound_cached_bundle_is_used_as_it_is(forged, tmp_path):
    place_in_cache(tmp_path, forged)
    heard = []
    bundle = load_demo_bundle(tmp_path, lambda stage, share: heard.append((stage, share)))
    assert bundle.digest == forged.digest
    assert heard == [("cached", 1.0)]


class TrainingStarted(Exception):  # noqa: N818 - it is what happened, not a defect
    """Raised by the progress callback when training begins, to end the run there."""


def stop_at_training(stage, _share):
    if stage == "training":
        raise TrainingStarted


@pytest.mark.parametrize("damage", ["edge.onnx", "manifest.json", "golden.npz", "hub/hub.safetensors", None])
def test_a_damaged_or_missing_cache_is_forged_again(forged, tmp_path, damage):
    if damage:
        file = place_in_cache(tmp_path, forged) / damage
        file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(TrainingStarted):
        load_demo_bundle(tmp_path, stop_at_training)
