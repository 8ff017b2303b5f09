"""Learned codes over a trained edge: the fitted transform works before anything is taught, and teaching improves it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.bundle.manifest import InputSpec
from models.forge.evaluation.shipped import run_edge_graph
from models.forge.export.codec_choice import measure_option
from models.forge.export.manifest import FEATURE, build_field_spec
from models.forge.export.onnx import export_edge_graph
from models.forge.partition.layout import AxisOrder, FeatureLayout
from models.forge.routes.features.draft_codes import fit_feature_transform
from models.forge.routes.features.feature_codes import FeatureCoder, FeatureDecoder, FeatureReader, FeatureRestorer
from models.forge.routes.features.feature_transform import apply_modes, fit_basis
from models.forge.routes.features.learned import TrainedEdge, train_learned_path
from models.forge.routes.features.path_training import LearnedCourse, expected_gains
from models.forge.routes.features.step_rounding import StepRounding, fit_grid
from models.forge.training.leakage_penalty import LeakagePenalty
from models.forge.training.losses import LossConfig, distillation_loss
from models.forge.training.modules import as_tuple, build_edge_module, build_hub_module
from models.graph.hub_model import export_graph
from models.runtime.feature_codec import build_codec
from models.verification.lint import lint_graph
from tests.models.forge.routes.stripes_world import build_world
from wire.protocol.messages import FieldSpec, ModelRef, SensitivityLevel, TensorDType

GRID = FeatureLayout(AxisOrder.GRID, ((6, 5, 4),), (6, 5, 4))
WORDS = FeatureLayout(AxisOrder.CHANNELS_LAST, ((9, 8),), (8, 1, 9))
SIGNAL = FeatureLayout(AxisOrder.CHANNELS_FIRST, ((4, 10),), (4, 1, 10))
NUMBERS = FeatureLayout(AxisOrder.NUMBERS, ((12,),), (12,))
SEVERAL = FeatureLayout(AxisOrder.NUMBERS, ((3, 4), (5,)), (17,))
KINDS = (GRID, WORDS, SIGNAL, NUMBERS, SEVERAL)


@pytest.fixture(scope="module")
def world():
    return build_world()


def _silent(_what: str, _share: float) -> None:
    """Progress callback that does nothing."""


def _train(world, max_bytes, course, tell=_silent):
    return train_learned_path(TrainedEdge(*world), max_bytes=max_bytes, course=course, tell=tell)


def _codes(world, path, x):
    with torch.no_grad():
        features = as_tuple(world.pieces.head(torch.from_numpy(x)))
        return path.coder(torch.from_numpy(x), features, world.pieces.encoder.trunk(*features))


def _arrive(path, codes):
    """Codes as they come out of the codec."""
    return StepRounding(path.tables)(codes - 128) + 128


def _distance(world, path):
    """Kullback-Leibler divergence of the path's softened answers from the given model's, on the calibration part."""
    x = world.data.calibration.x[0]
    with torch.no_grad():
        found = build_hub_module(path)(_arrive(path, _codes(world, path, x)))
        given = world.traced.gm(torch.from_numpy(x))
    return float(distillation_loss(found, given, torch.full((len(x),), -1), LossConfig(3)))


@pytest.mark.parametrize("layout", KINDS, ids=str)
def test_features_of_any_layout_come_back_from_fine_codes(layout):
    chance = torch.Generator().manual_seed(0)
    features = torch.randn(200, *layout.shape, generator=chance).cumsum(-1)
    basis = fit_basis(features, torch.randn(60, *layout.shape, generator=chance))
    grid = fit_grid(apply_modes(features - basis.mean, basis.analysis).flatten(1), 400)
    sent = as_tuple(layout.from_canonical(features))
    coder = FeatureCoder(FeatureReader(layout), basis, grid).eval()
    decoder = FeatureDecoder(FeatureRestorer(layout, (-99.0, 99.0)), basis, grid).eval()
    codes = coder(None, sent, None)
    assert torch.equal(codes, codes.round())
    assert 0 <= codes.min() <= codes.max() <= 255
    back = as_tuple(decoder(codes))
    assert [tuple(one.shape) for one in back] == [tuple(one.shape) for one in sent]
    for one, other in zip(back, sent, strict=True):
        assert (one - other).square().mean() < 0.02 * other.var()


def test_what_the_answer_does_not_read_is_not_sent():
    """Half of the numbers vary three times as much as the others, and the answer does not depend on them."""
    chance = torch.Generator().manual_seed(0)
    features = torch.randn(400, 8, generator=chance)
    features[:, 4:] *= 3
    slopes = torch.randn(200, 8, generator=chance)
    slopes[:, 4:] = 0
    reads = fit_basis(features, slopes).analysis[0].abs()
    assert reads[:4, :4].sum() > 3 * reads[:4, 4:].sum()


@pytest.mark.parametrize("max_bytes", [12, 40])
def test_training_rounds_as_the_codec_does(max_bytes):
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 64, generator=chance) * torch.logspace(1, -1, 64)
    grid = fit_grid(rows, max_bytes)
    scaled = rows[:, grid.kept] / grid.grids
    fine = torch.round(scaled).clamp(-128, 127) + 128
    tables = grid.build_tables(fine)
    spec = FieldSpec(FEATURE, TensorDType.UINT8, (len(grid.kept),), 0.0, 255.0, SensitivityLevel.P2, FEATURE)
    codec = build_codec("ans-steps", (spec,), tables)
    assert codec.total_bytes == max_bytes
    sent = fine[:60].to(torch.uint8).numpy()
    arrived = [codec.decode(spec.name, codec.encode(spec.name, one)).astype(np.float32) - 128 for one in sent]
    found = StepRounding(tables)(scaled[:60])
    alike = (found.numpy() == np.stack(arrived)).all(1)
    assert alike.mean() > 0.4  # where the last bits of a payload decide, training takes the next coarser step
    assert np.abs(found.numpy() - np.stack(arrived)).mean() < 0.3 * np.abs(np.stack(arrived)).mean()


def test_a_sample_rounded_to_a_coarser_step_tells_fewer_bits_not_more():
    """The leakage penalty counts what can be told apart: levels of the step that is sent, not of the fine grid."""
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 64, generator=chance) * torch.logspace(1, -1, 64)
    layout = FeatureLayout(AxisOrder.NUMBERS, ((64,),), (64,))
    basis = fit_basis(rows, torch.randn(60, 64, generator=chance))
    grid = fit_grid(apply_modes(rows - basis.mean, basis.analysis).flatten(1), 24)
    coder = FeatureCoder(FeatureReader(layout), basis, grid).train()
    fine = coder(None, (rows,), None)
    coder.rounding = StepRounding(grid.build_tables(fine.detach()))
    codes = coder(None, (rows,), None)
    penalty, y = LeakagePenalty(1.0, 2), torch.arange(300) % 2
    assert coder.rounding.multiples.mean() > 2
    assert penalty(coder.count_steps(codes), y) < 0.7 * penalty(codes, y)


def test_a_gradient_passes_through_the_rounding():
    rows = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    grid = fit_grid(rows, 8)
    scaled = (rows[:, grid.kept] / grid.grids).requires_grad_()
    rounding = StepRounding(grid.build_tables(torch.round(scaled.detach()).clamp(-128, 127) + 128))
    (slope,) = torch.autograd.grad(rounding(scaled).sum(), scaled)
    assert torch.equal(slope, torch.ones_like(scaled))


@pytest.mark.further
def test_a_transform_answers_as_the_given_model_before_anything_is_taught(world):
    path = _train(world, 40, LearnedCourse(epochs=0))
    x = world.data.calibration.x[0]
    with torch.no_grad():
        given = world.traced.gm(torch.from_numpy(x)).argmax(1)
        assert (build_hub_module(path)(_arrive(path, _codes(world, path, x))).argmax(1) == given).float().mean() > 0.98
    codes = _codes(world, path, world.data.training.x[0]).to(torch.uint8).numpy()
    spec = build_field_spec(path)
    way = measure_option(path.codec, path.tables, spec, codes[:20], ModelRef("m", 1, "c", ""))
    assert way.payload_bytes == 40


@pytest.mark.further
def test_one_fitted_transform_serves_all_sizes(world):
    course = LearnedCourse(epochs=0)
    fitted = fit_feature_transform(world.traced, world.data, world.cut, softness=course.softness, seed=0)
    alone = _train(world, 12, course)
    shared = train_learned_path(TrainedEdge(*world)._replace(fitted=fitted), max_bytes=12, course=course, tell=_silent)
    assert shared.tables == alone.tables


@pytest.mark.further
def test_more_bytes_keep_more_of_the_answer(world):
    few, many = (_train(world, size, LearnedCourse(epochs=0)) for size in (4, 40))
    assert _distance(world, many) < 0.5 * _distance(world, few)


@pytest.mark.further
def test_teaching_improves_the_codes_and_leaves_edge_and_given_model_alone(world):
    before = {name: value.clone() for name, value in world.traced.gm.state_dict().items()}
    trunk = [value.clone() for value in world.pieces.encoder.state_dict().values()]
    untaught = _train(world, 4, LearnedCourse(epochs=0))
    taught = _train(world, 4, LearnedCourse(epochs=2, batch=32, rate=3e-3))
    assert _distance(world, taught) < 0.9 * _distance(world, untaught)
    assert all(torch.equal(before[name], value) for name, value in world.traced.gm.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(trunk, world.pieces.encoder.state_dict().values(), strict=True))


class Killed(Exception):  # noqa: N818 - it is not an error
    pass


@pytest.mark.further
def test_a_killed_teaching_of_codes_ends_as_if_it_had_not_been(world, tmp_path):
    course = LearnedCourse(epochs=2, batch=32)
    whole = _train(world, 8, course)

    def killer(_what: str, share: float) -> None:
        if share > 0.4:
            raise Killed

    with pytest.raises(Killed):
        _train(world, 8, course._replace(folder=tmp_path), killer)
    told: list[str] = []
    again = _train(world, 8, course._replace(folder=tmp_path), lambda what, _share: told.append(what))
    assert sum("loss" in what for what in told) == 1  # the second epoch alone
    for one, other in zip(whole.coder.state_dict().values(), again.coder.state_dict().values(), strict=True):
        assert torch.allclose(one.float(), other.float(), atol=1e-6)


@pytest.mark.further
def test_coder_and_decoder_become_graphs_of_device_and_hub(world):
    path = _train(world, 8, LearnedCourse(epochs=0))
    module = build_edge_module(replace(world.pieces, path=path))
    spec = InputSpec("sample", TensorDType.FP32, (1, 8, 8), -4, 4)
    graph = export_edge_graph(module, spec, ("logits", "features")).SerializeToString()
    lint_graph(graph)
    x = world.data.calibration.x[0]
    found = run_edge_graph(graph, x).codes
    assert (found == _codes(world, path, x).numpy()).mean() > 0.99  # float32 sums in another order round otherwise
    tail = export_graph(build_hub_module(path), (torch.zeros(2, *path.shape),))
    codes = torch.from_numpy(found).float()
    with torch.no_grad():
        assert torch.allclose(tail(codes), build_hub_module(path)(codes), atol=1e-4)


def test_a_gain_is_what_the_hub_expects_to_know_better():
    answers = torch.tensor([[4.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    local = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    gains = expected_gains(answers, local, LossConfig(2), 1.0)
    assert gains[0] > 0.9
    assert gains[1] == gains[2] == 0
    values = expected_gains(
        torch.tensor([[3.0], [30.0]]), torch.tensor([[3.0, 0.0], [3.0, 0.0]]), LossConfig(0, 0, 10), 1
    )
    assert values.tolist() == [0, 1]
