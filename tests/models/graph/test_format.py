"""Tests of the graph document: weights under the names that the files give them."""

import json
from collections.abc import Mapping

import pytest

from models.bundle.manifest import BundleError
from models.graph.format import decode_hub_model, encode_hub_model, source_names


def document(**weights: Mapping[str, object]) -> bytes:
    graph = {
        "inputs": [{"dtype": "float32", "shape": [4]}],
        "nodes": [{"op": "aten.relu.default", "args": [{"input": 0}]}],
        "outputs": [{"node": 0}],
    }
    return json.dumps({"format": 1, "weights": weights, "graphs": {"whole": graph}}).encode()


def weight(source: str | None = None) -> Mapping[str, object]:
    found: dict[str, object] = {"dtype": "float32", "shape": [2]}
    return found | ({} if source is None else {"source": source})


def test_a_weight_may_have_another_name_in_the_files():
    form = decode_hub_model(document(w0=weight("bert.pooler.dense.bias"), w1=weight()))
    assert source_names(form.weights) == {"bert.pooler.dense.bias": "w0", "w1": "w1"}
    assert decode_hub_model(encode_hub_model(form)) == form


def test_a_document_without_sources_is_written_as_it_always_was():
    written = encode_hub_model(decode_hub_model(document(w0=weight())))
    assert b"source" not in written


@pytest.mark.parametrize(
    "weights",
    [
        {"w0": weight("a"), "w1": weight("a")},
        {"w0": weight("w1"), "w1": weight()},
        {"w0": weight("x" * 300)},
    ],
    ids=["twice", "the name of another", "endless"],
)
def test_sources_that_cannot_be_told_apart_or_shown_are_refused(weights):
    with pytest.raises(BundleError, match="weights: "):
        decode_hub_model(document(**weights))


def test_an_input_comes_from_no_file():
    raw = document(w0=weight()).replace(b'"shape": [4]', b'"shape": [4], "source": "x"')
    with pytest.raises(BundleError, match="an input of shape"):
        decode_hub_model(raw)
