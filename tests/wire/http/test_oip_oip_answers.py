"""Output tensors of answers: the metadata match the replies, for classifiers and regressors."""

import pytest

from wire.http.answer_tensors import build_answer_tensors, list_answer_outputs, lookup_label_name
from wire.http.oip import NUMPY_DTYPES
from wire.protocol.messages import Prediction

LABELS = ("no", "yes")
CLASSES = [Prediction(1, 0.75, (0.25, 0.75), "m@1"), Prediction(0, 0.5, (0.5, 0.5), "m@1")]
VALUES = [Prediction(-1, 0.9, (87.5,), "m@1"), Prediction(-1, 0.1, (-3.0,), "m@1")]


@pytest.mark.parametrize(("predictions", "labels", "outputs"), [(CLASSES, LABELS, 2), (VALUES, (), 1)])
def test_a_reply_holds_exactly_what_metadata_promises(predictions, labels, outputs):
    tensors = build_answer_tensors(predictions, labels)
    specs = list_answer_outputs(labels, outputs)
    assert [spec.name for spec in specs] == list(tensors)
    for spec in specs:
        found = tensors[spec.name]
        assert found.dtype == NUMPY_DTYPES[spec.datatype]
        assert found.shape == (2, *spec.shape[1:])


def test_a_regressor_has_a_value_and_no_label():
    tensors = build_answer_tensors(VALUES, ())
    assert tensors["value"].tolist() == [[87.5], [-3.0]]
    assert "label" not in tensors


def test_a_number_that_is_no_label_has_no_name():
    assert [lookup_label_name(number, LABELS) for number in (-1, 0, 1, 2)] == ["", "no", "yes", ""]
