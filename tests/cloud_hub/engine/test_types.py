"""Input validation by a model card: shape, type and range as its manifest says."""

import numpy as np
import pytest

from cloud_hub.api.oip import describe_model
from cloud_hub.engine.base import ModelCard
from wire.protocol.messages import ModelRef

IDS = ModelCard(
    ModelRef("intents", 1, "c", "pack4"), (), ("a", "b"), "ids", "INT64", (3,), input_low=0.0, input_high=49.0
)
ENGINES = ModelCard(ModelRef("engines", 2, "c", "base3"), (), (), "x", "FP32", (2, 2), outputs=1)


@pytest.mark.parametrize(
    ("batch", "taken"),
    [
        ([[0, 49, 7]], True),
        ([[0, 50, 7]], False),
        ([[0, -1, 7]], False),
        ([[0, 2**62, 7]], False),
        ([[0, 1]], False),
        (np.zeros((0, 3)), False),
    ],
)
def test_whole_numbers_stay_inside_the_table_they_index(batch, taken):
    assert IDS.accepts_inputs(np.array(batch, np.int64)) is taken


def test_another_type_is_not_taken():
    assert not IDS.accepts_inputs(np.zeros((1, 3), np.int32))
    assert not IDS.accepts_inputs(np.zeros((1, 3), np.float32))
    assert not ENGINES.accepts_inputs(np.full((1, 2, 2), np.nan, np.float32))
    assert ENGINES.accepts_inputs(np.full((1, 2, 2), 1e30, np.float32))


def test_a_regressor_is_described_by_its_value():
    card = describe_model(ENGINES, ["2"])
    assert [(output.name, output.shape) for output in card.outputs] == [("value", (-1, 1)), ("confidence", (-1,))]
    assert [output.name for output in describe_model(IDS, ["1"]).outputs] == [
        "scores",
        "label",
        "confidence",
        "label_name",
    ]
