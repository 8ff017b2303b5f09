"""Code paths of a real, tiny forge run: what may leave by default, the sample itself, and names that are not there."""

import numpy as np
import pytest
import torch

from models.bundle.manifest import EDGE_FILE
from models.forge.pipeline.path_search import PAYLOAD_SIZES, plan_payloads
from models.forge.spec import ForgeSpec
from models.graph.hub_model import open_hub_graphs
from models.runtime.golden import check_golden
from models.runtime.onnx_runner import OnnxRunner
from models.verification.lint import lint_graph
from tests.models.conftest import forge, tiny_data, tiny_net
from wire.protocol.messages import RAW_SAMPLE_FIELD, SensitivityLevel


@pytest.fixture(scope="module")
def travelled(tmp_path_factory):
    """A bundle by which the sample itself travels, in 64 bytes."""
    return forge(tmp_path_factory.mktemp("sample") / "tiny", path="sample-weighted-64", sample_level="P1", max_bytes=64)


def test_nothing_but_features_leaves_by_default(forged):
    (feature,) = forged.manifest.features
    assert feature.level is SensitivityLevel.P2
    assert (feature.name, feature.category) == ("features", "features")


@pytest.mark.further
def test_the_sample_travels_under_the_label_that_was_stated(travelled):
    (feature,) = travelled.manifest.features
    assert feature.level is SensitivityLevel.P1
    assert (feature.name, feature.category) == (RAW_SAMPLE_FIELD, RAW_SAMPLE_FIELD)
    assert (travelled.manifest.codec, OnnxRunner(travelled).codec.total_bytes) == ("ans-steps", 64)


@pytest.mark.further
def test_the_hub_answers_a_sample_that_travelled_as_the_given_model_answers_the_sample(travelled):
    runner, hub = OnnxRunner(travelled), open_hub_graphs(travelled)
    assert check_golden(travelled, runner).passed
    x = tiny_data().heldout.x[0][:64]
    sent = [runner.codec.encode(RAW_SAMPLE_FIELD, one.features[RAW_SAMPLE_FIELD]) for one in runner.infer(x)]
    codes = np.stack([runner.codec.decode(RAW_SAMPLE_FIELD, each) for each in sent]).astype(np.float32)
    with torch.no_grad():
        found, wanted = hub.tail(torch.from_numpy(codes)).argmax(1), tiny_net()(torch.from_numpy(x)).argmax(1)
    assert (found == wanted).float().mean() > 0.9


@pytest.mark.further
def test_a_device_accepts_the_graph_that_codes_the_sample(travelled):
    lint_graph(travelled.read_file(EDGE_FILE))


def test_payloads_rise_to_the_limit_and_end_there():
    assert plan_payloads(ForgeSpec()) == PAYLOAD_SIZES
    assert plan_payloads(ForgeSpec(max_bytes=100)) == (64, 100)
    assert plan_payloads(ForgeSpec(max_bytes=16)) == (16,)
