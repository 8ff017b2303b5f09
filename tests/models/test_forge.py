"""The recipe on a tiny course: is what it says true, and does it come out the same twice?"""

import json

import numpy as np
import onnx
import pytest
import torch

from models.codec import decode, encode
from models.forge.demo import cached_demo_bundle, recipe_key
from models.forge.images import forge_images
from models.forge.task import ForgeError, Labelled, Task, hold_out, split
from models.forge.train import repeatable
from models.golden import check_golden
from models.manifest import EDGE_FILE
from models.onnx import OnnxRunner
from tests.models.conftest import forge
from wire.codec import encode as encode_message
from wire.codec import pad
from wire.messages import DType, Escalation, Tensor


def blank(count=60, side=8):
    return Labelled(np.zeros((count, 1, side, side), np.float32), np.arange(count) % 2)


def test_a_forged_bundle_is_sound_and_its_codes_fit_the_link(forged):
    runner = OnnxRunner(forged)
    assert check_golden(forged, runner).passed
    codes = runner.infer_one(np.zeros((1, 8, 8), np.float32)).features["features"]
    spec = forged.manifest.features[0]
    tensor = encode(forged.manifest.codec, codes)
    assert len(tensor.data) == 16
    assert np.array_equal(decode(forged.manifest.codec, tensor, spec), codes)


def test_the_longest_question_fits_the_size_all_questions_have(forged):
    m = forged.manifest
    fields = {
        "features": Tensor(DType.UINT8, (16,), bytes(16)),
        "local_answer": Tensor(DType.INT32, (1,), bytes(4)),
        "confidence": Tensor(DType.FP32, (1,), bytes(4)),
    }
    question = Escalation("a" * 32, m.ref, "b" * 32, "eu-central-1", fields, 2.0, audit=False, trace="c" * 55)
    assert len(pad(encode_message(question), m.fixed_bytes)) == m.fixed_bytes


def test_equal_data_and_seed_give_an_equal_bundle(forged, tmp_path):
    again = forge(tmp_path / "again")
    for name in forged.manifest.files:
        assert again.read(name) == forged.read(name), name
    assert again.digest == forged.digest


def test_timings_stay_out_of_the_content(forged):
    report = json.loads(forged.report)
    assert set(report["p50_us"]) == set(report["edge_bytes"]) == {"float32", "int8"}
    assert report["codes_equal"]["float32"] == 1.0
    assert report["forge_s"] >= sum(report["stage_s"].values()) * 0.9
    assert b"_us" not in (forged.path / "manifest.json").read_bytes()


def test_the_graph_tells_nothing_of_the_machine_that_made_it(forged):
    graph = onnx.load_from_string(forged.read(EDGE_FILE))
    text = str(graph)
    assert [imported.domain for imported in graph.opset_import] == [""]
    for trace in ("metadata_props", "doc_string", '.py"', ".py:", "/home", "/usr", "torch"):
        assert trace not in text


def test_the_shipped_graph_is_int8_where_the_manifest_says_so(forged):
    graph = onnx.load_from_string(forged.read(EDGE_FILE))
    quantised = any(node.op_type == "QuantizeLinear" for node in graph.graph.node)
    assert quantised == (forged.manifest.target.precision == "int8")


def test_the_three_sets_share_no_picture():
    x = (np.arange(400).reshape(400, 1, 1, 1) * np.ones((8, 8)) / 400).astype(np.float32)
    training, heldout = hold_out(x, np.arange(400) % 2, 0.25)
    parts = split(Task("t", 1, ("a", "b"), training, heldout, corrupted=0.0), np.random.default_rng(0))
    sets = [{float(picture.flat[0]) for picture in part.x} for part in parts]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 400


BAD = {
    "even": (blank(side=7), blank(side=7), ("a", "b")),
    "at least 50": (blank(10), blank(), ("a", "b")),
    "as many of each": (Labelled(blank().x, blank(59).y), blank(), ("a", "b")),
    "0..1": (Labelled(blank().x + 2, blank().y), blank(), ("a", "b")),
    "float32": (Labelled(blank().x.astype(np.float64), blank().y), blank(), ("a", "b")),
    "0..1 ": (Labelled(blank().x + np.float32("nan"), blank().y), blank(), ("a", "b")),
    "1 names": (blank(), blank(), ("a",)),
    "differ in shape": (blank(), blank(side=10), ("a", "b")),
}


@pytest.mark.parametrize("words", BAD)
def test_data_that_cannot_make_a_model_is_named_before_training(words, tmp_path):
    training, heldout, labels = BAD[words]
    with pytest.raises(ForgeError, match=words.strip().replace(".", r"\.")):
        forge_images(Task("t", 1, labels, training, heldout), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_torch_is_left_as_it_was_found():
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.random.get_rng_state())
    with repeatable(1):
        torch.rand(3)
    after = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.random.get_rng_state())
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def place_in_cache(cache, bundle):
    path = cache / f"digits-{recipe_key()[:16]}"
    path.mkdir(parents=True)
    for file in bundle.path.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def test_a_sound_cached_bundle_is_used_as_it_is(forged, tmp_path):
    place_in_cache(tmp_path, forged)
    heard = []
    bundle = cached_demo_bundle(tmp_path, lambda stage, share: heard.append((stage, share)))
    assert bundle.digest == forged.digest
    assert heard == [("cached", 1.0)]


class TrainingStarted(Exception):  # noqa: N818 - it is what happened, not a defect
    """Raised by the listener: enough is known once the forge begins."""


def stop_at_training(stage, _share):
    if stage == "training":
        raise TrainingStarted


@pytest.mark.parametrize("damage", ["edge.onnx", "manifest.json", "golden.npz", None])
def test_a_damaged_or_missing_cache_is_forged_again(forged, tmp_path, damage):
    if damage:
        file = place_in_cache(tmp_path, forged) / damage
        file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(TrainingStarted):
        cached_demo_bundle(tmp_path, stop_at_training)
