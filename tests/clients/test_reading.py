"""Replies of another schema: refused by the name of the field that does not fit; what is new is left out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_client import Answer, APIResponseValidationError, Bill, Device, Job, Rollout
from skerry_client.answers import read_inference
from skerry_client.exchange.commands import Reply, encode_json
from skerry_client.inference import read_predictions
from skerry_client.reading import read_list, read_value

RECORD = {
    "answer_id": "a" * 32, "kind": "answer", "source": "local", "reason": "unsure", "label": 1, "confidence": 0.5,
    "scores": [0.5, 0.5], "model": "m", "model_version": "1",
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*RECORD, "id", "outputs"]), inner),
    max_leaves=12,
)


def test_what_a_newer_server_says_more_is_left_out_and_what_an_older_does_not_say_has_its_default():
    answer = read_value(Answer, {**RECORD, "colour": "blue", "usage": None, "confidence": 1}, "answer")
    assert (answer.event, answer.usage, answer.confidence) == (None, None, 1.0)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"label": None}, "answer.label: None is not a whole number"),
        ({"label": True}, "answer.label: True is not a whole number"),
        ({"label": 1.5}, "answer.label: 1.5 is not a whole number"),
        ({"confidence": "high"}, "answer.confidence: 'high' is not a number"),
        ({"scores": {}}, "answer.scores: {} is not a list"),
        ({"scores": [1, "x"]}, "answer.scores[1]: 'x' is not a number"),
        ({"source": "moon"}, "answer.source: 'moon' is none of local, hub; is the server newer?"),
        ({"usage": {"model": "x"}}, "answer.usage: 'prompt_tokens' is missing"),
        ({"model": "x\n" * 900}, None),
    ],
)
def test_a_field_of_another_type_is_named(change, line):
    if line is None:
        assert read_value(Answer, {**RECORD, **change}, "answer").model.startswith("x")
        return
    with pytest.raises(APIResponseValidationError) as refused:
        read_value(Answer, {**RECORD, **change}, "answer")
    assert line in str(refused.value)


def test_a_missing_field_is_named_and_a_long_value_is_not_shown():
    with pytest.raises(APIResponseValidationError, match="'answer_id' is missing; is the server of another version"):
        read_value(Answer, {}, "answer")
    with pytest.raises(APIResponseValidationError, match=r"str of \d+ characters is not an object"):
        read_value(Answer, "secret" * 50, "answer")


def refusal_of(read):
    """The one line of a refusal; "" where the reply was taken."""
    try:
        read()
    except APIResponseValidationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [Answer, Job, Device, Rollout, Bill])
@given(found=JSON)
def test_no_reply_of_any_shape_makes_another_error(kind, found):
    assert "\n" not in refusal_of(lambda: read_value(kind, found, "reply"))


@given(found=st.dictionaries(st.sampled_from(["outputs", "parameters", "model_name"]), JSON))
def test_no_inference_reply_of_any_shape_makes_another_error(found):
    assert "\n" not in refusal_of(lambda: read_predictions(found, "reply"))
    assert "\n" not in refusal_of(lambda: read_inference(Reply(200, {}, json.dumps(found).encode()), "reply"))


def test_a_list_that_is_none_is_named():
    with pytest.raises(APIResponseValidationError, match=r"reply\.jobs: None is not a list"):
        read_list(Job, {}, "jobs", "reply")


def test_a_batch_whose_parameters_do_not_go_with_its_samples_is_refused():
    outputs = [
        {"name": "confidence", "data": [0.5, 0.5]},
        {"name": "label", "data": [0, 1]},
        {"name": "scores", "data": [1, 0, 0, 1]},
    ]
    told = {"source": "local,local,hub"}
    with pytest.raises(APIResponseValidationError, match="3 values of source for 2 samples"):
        read_inference(Reply(200, {}, encode_json({"outputs": outputs, "parameters": told})), "reply")
