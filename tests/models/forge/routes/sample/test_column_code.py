"""Tests of tables as levels by column: shared values are exact, more bytes are nearer, both halves export."""

import numpy as np
import pytest
import torch

from models.bundle.manifest import InputSpec
from models.forge.export.onnx import export_edge_graph, serialise_model
from models.forge.export.quantise import run_graph
from models.forge.routes.sample.column_code import find_levels
from models.forge.routes.sample.sample_code import fit_sample_codes
from models.graph.exporter import export_graph
from models.verification.lint import lint_graph
from tests.models.forge.routes.sample.test_sample_code import send
from wire.protocol.messages import TensorDType

SPEC = InputSpec("row", TensorDType.FP32, (6,), -50.0, 5000.0)


def table(count, seed=1):
    """Rows of a flag, a category, a heavy tail with many zeros, and three measured columns."""
    rng = np.random.default_rng(seed)
    tail = np.where(rng.random(count) < 0.5, 0, rng.lognormal(3, 1.5, count)).clip(0, 5000)
    columns = [
        rng.integers(0, 2, count),
        rng.integers(0, 7, count) * 10,
        tail,
        *rng.normal(0, (1, 5, 10), (count, 3)).T,
    ]
    return np.stack(columns, 1).astype(np.float32)


TRAINING, OTHERS = table(3000), table(60, seed=2)
CODES = fit_sample_codes(TRAINING, SPEC, (3, 4, 8, 40))


def test_flags_and_categories_and_shared_values_arrive_exactly():
    for code in CODES[1:]:
        back = send(code, OTHERS)
        assert np.array_equal(back[:, :2], OTHERS[:, :2])
        assert (back[OTHERS[:, 2] == 0, 2] == 0).all()


def test_more_bytes_carry_rows_more_exactly():
    moved = [np.abs((send(code, OTHERS) - OTHERS)[:, 3:] / TRAINING[:, 3:].std(0)).mean() for code in CODES]
    assert len(CODES) >= 3
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.02
    assert all(code.payload_bytes <= most for code, most in zip(CODES, (3, 4, 8, 40), strict=False))


@pytest.mark.further
def test_columns_that_say_the_same_are_a_transform():
    """What one number says 40 times over takes the room of one number."""
    rng = np.random.default_rng(3)
    rows = (rng.normal(0, 1, (800, 1)) * np.linspace(1, 3, 40) + rng.normal(0, 0.01, (800, 40))).astype(np.float32)
    (code,) = fit_sample_codes(rows, InputSpec("row", TensorDType.FP32, (40,), -20.0, 20.0), (16,))
    assert code.name == "sample-16"
    assert np.abs(send(code, rows[:50]) - rows[:50]).mean() < 0.05


@pytest.mark.further
def test_coder_and_decoder_export():
    code = CODES[1]
    graph = serialise_model(export_edge_graph(code.coder, SPEC, ("codes",)))
    lint_graph(graph)
    codes = code.coder(torch.from_numpy(OTHERS))
    assert np.array_equal(run_graph(graph, OTHERS)[0], codes.numpy())
    assert torch.equal(export_graph(code.decoder, (codes[:2],))(codes[:2]), code.decoder(codes[:2]))


@pytest.mark.parametrize("most", [4, 16, 256])
def test_levels_rise_and_are_no_more_than_wanted(most):
    for column in TRAINING.T:
        levels = find_levels(column, most)
        assert 1 <= len(levels) <= most
        assert (np.diff(levels) > 0).all()
        assert column.min() <= levels[0] <= levels[-1] <= column.max()
    assert find_levels(np.full(9, 2.5, np.float32), most).tolist() == [2.5]


def test_a_table_of_constants_has_no_code():
    assert fit_sample_codes(np.ones((50, 6), np.float32), SPEC, (64,)) == []
