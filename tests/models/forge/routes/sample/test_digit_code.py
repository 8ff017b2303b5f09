"""Tests of ids as digits: exact, short where few numbers are frequent, both halves export."""

import numpy as np
import pytest
import torch

from models.bundle.manifest import InputSpec
from models.forge.export.onnx import export_edge_graph, serialise_model
from models.forge.export.quantise import run_graph
from models.forge.routes.sample.digit_code import choose_digits, split_digits
from models.forge.routes.sample.sample_code import fit_sample_codes
from models.graph.exporter import export_graph
from models.verification.lint import lint_graph
from tests.models.forge.routes.sample.test_sample_code import send
from wire.protocol.messages import TensorDType

NUMBERS = 3000
SPEC = InputSpec("tokens", TensorDType.INT64, (12,), 0, NUMBERS - 1)


def tokens(count, seed=1):
    """Ids `[count, 12]`: few are frequent, and the last places of most rows are 0."""
    rng = np.random.default_rng(seed)
    ids = (rng.zipf(1.4, (count, 12)) * 7919) % NUMBERS
    return np.where(np.arange(12) < rng.integers(3, 12, (count, 1)), ids, 0)


TRAINING, OTHERS = tokens(2000), tokens(60, seed=2)
(CODE,) = fit_sample_codes(TRAINING, SPEC, (8, 64))


def test_ids_arrive_exactly_and_take_less_than_packed():
    back = send(CODE, OTHERS)
    assert back.dtype == np.int64
    assert (back == OTHERS).all(1).mean() > 0.95
    assert CODE.payload_bytes < 12 * np.log2(NUMBERS) / 8


def test_ids_that_no_training_sample_had_arrive_too():
    rare = np.setdiff1d(np.arange(NUMBERS), TRAINING)[:4]
    row = np.zeros((1, 12), np.int64)
    row[0, : len(rare)] = rare
    with torch.inference_mode():
        assert np.array_equal(CODE.decoder(CODE.coder(torch.from_numpy(row))).numpy(), row)


def test_ids_outside_the_range_become_its_ends():
    row = np.array([[-5, NUMBERS + 9, *[0] * 10]])
    found = CODE.decoder(CODE.coder(torch.from_numpy(row))).numpy()
    assert found[0, :2].tolist() == [0, NUMBERS - 1]


def test_evenly_spread_ids_are_packed():
    even = np.random.default_rng(0).integers(0, 16, (500, 8))
    (code,) = fit_sample_codes(even, InputSpec("tokens", TensorDType.INT64, (8,), 0, 15), (64,))
    assert (code.codec, code.tables, code.payload_bytes) == ("pack4", b"", 4)
    assert np.array_equal(send(code, even[:20]), even[:20])


def test_ids_that_no_wanted_payload_holds_have_no_code():
    assert fit_sample_codes(TRAINING, SPEC, (2,)) == []
    assert fit_sample_codes(TRAINING, InputSpec("tokens", TensorDType.INT64, (12,), 0, 2**40), (64,)) == []


@pytest.mark.parametrize(
    ("numbers", "positions", "wanted"),
    [(2, 5, (2, 1)), (256, 4, (256, 1)), (257, 4, (17, 2)), (8192, 32, (91, 2)), (30_000, 512, (32, 3))],
)
def test_digits_are_few_and_their_tables_small(numbers, positions, wanted):
    base, count = choose_digits(numbers, positions)
    assert (base, count) == wanted
    assert base**count >= numbers
    digits = split_digits(np.arange(numbers), base, count)
    assert np.array_equal((digits * base ** np.arange(count - 1, -1, -1)).sum(1), np.arange(numbers))


def test_coder_and_decoder_export():
    graph = serialise_model(export_edge_graph(CODE.coder, SPEC, ("codes",)))
    lint_graph(graph)
    codes = CODE.coder(torch.from_numpy(OTHERS))
    assert np.array_equal(run_graph(graph, OTHERS)[0], codes.numpy())
    assert torch.equal(export_graph(CODE.decoder, (codes[:2],))(codes[:2]), CODE.decoder(codes[:2]))
