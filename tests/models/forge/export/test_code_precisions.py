"""An edge graph's precision is judged by its codes too: by what the hub keeps of the gain with them."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from models.forge.export import benchmark
from models.forge.export.onnx import serialise_model
from models.forge.export.precisions import static_int8
from models.forge.export.quantise import MAX_CODE_LOSS, build_candidates, choose_precision
from models.forge.export.targets import ActivationType, local_profile
from tests.models.forge.export.test_precisions import CODES, CONSTANTS, WIDE, graph, tensor, value


def sharing():
    """A net whose first layer feeds both its answer and, through a fine grid, its codes."""
    fine = numpy_helper.from_array(np.array(400, np.float32), "fifteen")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["logits"], "last"),
        helper.make_node("Mul", ["r", "fifteen"], ["scaled"], "scale"),
        *CODES[1:],
    ]
    most = numpy_helper.from_array(np.array(255, np.float32), "high")
    weights = [tensor("w", WIDE, WIDE), tensor("v", WIDE, 10), fine, CONSTANTS[1], most]
    outputs = [value("logits", TensorProto.FLOAT, 10), value("codes", TensorProto.UINT8, WIDE)]
    return graph(nodes, weights, [value("x", TensorProto.FLOAT, WIDE)], outputs)


def share_right(model):
    """What a hub would read that knows nothing but the very codes of float32."""
    x = np.random.default_rng(2).normal(size=(64, WIDE)).astype(np.float32)
    exact = benchmark.run_graph(serialise_model(model), x)[1].astype(int)
    return lambda found: float((np.abs(benchmark.run_graph(found, x)[1].astype(int) - exact) <= 1).mean())


def test_codes_that_eight_bits_would_scramble_are_made_in_float_up_to_the_cut():
    model, x = sharing(), np.random.default_rng(3).normal(size=(128, WIDE)).astype(np.float32)
    rough, fine = (
        serialise_model(static_int8(model, x, ActivationType.UNSIGNED, whole_codes=whole)) for whole in (False, True)
    )
    kept = share_right(model)
    assert kept(rough) < 0.9
    assert kept(fine) > 0.99
    found = {each.precision: each for each in build_candidates(model, x, local_profile(), kept)}
    assert found["int8"].graph == fine
    assert not found["int8"].fault
    assert all(each.fault or kept(each.graph) >= 1 - MAX_CODE_LOSS for each in found.values())


def test_a_precision_whose_codes_tell_the_hub_less_does_not_ship_and_says_so():
    judged = []

    def kept(found):
        judged.append(found)
        return 0.71 if found == judged[0] else 0.25  # float32 is the first to be judged

    model, x = sharing(), np.random.default_rng(3).normal(size=(128, WIDE)).astype(np.float32)
    found = build_candidates(model, x, local_profile(), kept)
    assert found[1].fault == "its codes keep 25% of the gain, those of float32 71%"
    assert choose_precision(found, lambda _made: 0.9).shipped.precision == "float32"
