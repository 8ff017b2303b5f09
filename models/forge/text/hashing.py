"""Hashed n-grams of a text's bytes, in numpy for the training and as an ONNX graph for the device: the same numbers.

A byte counts as one of 166 symbols: letters without case, digits, each byte above 127, and one symbol for all else.
The n-grams are 2 to 6 neighbouring symbols, each a number below `BUCKETS` (Weinberger et al. 2009, feature hashing;
Joulin et al. 2017, fastText): a weighted sum of its symbols modulo the number of buckets. One that would begin in the
middle of a gap does not count. The class scores are the sum of the n-grams' rows over the root of their number.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.bundle.manifest import TEXT_FIELD, InputSpec
from models.forge.export.onnx import BATCH, OPSET, serialise_model, strip_metadata
from models.runtime.onnx_runner import LOGITS

BUCKETS = 1 << 14
SIZES = (2, 3, 4, 5, 6)
GAP = 0
_IR_VERSION = 9
_FACTORS = (1, 8191, 131_071, 524_287, 65_537, 262_139)  # a weighted sum of 6 symbols stays below 2^31

Symbols = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float32]


def fold_table() -> Symbols:
    """Return the symbol of each byte."""
    table = np.full(256, GAP, np.int32)
    for at, letter in enumerate(b"abcdefghijklmnopqrstuvwxyz"):
        table[letter] = table[letter - 32] = 1 + at
    table[ord("0") : ord("9") + 1] = np.arange(27, 37)
    table[128:] = np.arange(38, 166)
    return table


def hash_ngrams(x: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Weights]:
    """Return the n-grams of texts `[n, bytes]`: their numbers `[n, m]`, and the weight of each in the sum."""
    symbols = np.pad(fold_table()[x], ((0, 0), (1, max(SIZES))), constant_values=GAP)
    width = x.shape[1] + 1
    numbers, counted = [], []
    counts = (symbols[:, :width] != GAP) | (symbols[:, 1 : width + 1] != GAP)
    for size in SIZES:
        sums = sum(symbols[:, at : at + width].astype(np.int64) * _FACTORS[at] for at in range(size)) + size
        numbers.append(sums % BUCKETS)
        counted.append(counts)
    weights = np.concatenate(counted, 1).astype(np.float32)
    return np.concatenate(numbers, 1), weights / np.sqrt(weights.sum(1, keepdims=True) + 1)


class _GraphWriter:
    """Nodes and constants of a graph, in the order in which they are computed."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, npt.NDArray[np.generic]] = {}

    def hold(self, name: str, value: object, dtype: type[np.generic]) -> str:
        """Hold a constant; returns its name."""
        self.constants[name] = np.array(value, dtype)
        return name

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node; returns the name of its result."""
        self.nodes.append(helper.make_node(operator, inputs, [output], f"n{len(self.nodes)}", None, None, **attributes))
        return output


def build_text_graph(spec: InputSpec, table: Weights, bias: Weights) -> bytes:
    """Build the device's graph: a text's bytes in; class scores, and the same bytes as the feature, out.

    `table`: `[BUCKETS, labels]`; `bias`: `[labels]`.
    """
    graph = _GraphWriter()
    graph.constants |= {"table": table, "bias": bias, "fold": fold_table()}
    graph.hold("gap", GAP, np.int32)
    graph.hold("columns", [1], np.int64)
    copied = graph.add("Identity", [spec.name], "copied")
    numbers = graph.add("Cast", [copied], "bytes", to=TensorProto.INT32)
    folded = graph.add("Gather", ["fold", numbers], "folded")
    symbols = graph.add("Pad", [folded, graph.hold("pads", [0, 1, 0, max(SIZES)], np.int64), "gap"], "symbols")
    mask = _add_terms(graph, symbols, spec.shape[0] + 1)
    parts = [_add_size(graph, size, mask) for size in SIZES]
    total = graph.add("Sum", parts, "scores")
    scaled = graph.add("Div", [total, _add_length(graph)], "scaled")
    graph.add("Add", [scaled, "bias"], LOGITS)
    graph.add("Identity", [copied], TEXT_FIELD)
    return _encode_graph(graph, spec, table.shape[1])


def _add_terms(graph: _GraphWriter, symbols: str, width: int) -> str:
    """Add each symbol of an n-gram times its factor; returns the mask of the places that count, `[n, width, 1]`."""
    for at in range(max(SIZES)):
        ends = [graph.hold(f"from{at}", [at], np.int64), graph.hold(f"to{at}", [at + width], np.int64)]
        shifted = graph.add("Slice", [symbols, *ends, "columns"], f"shifted{at}")
        graph.add("Mul", [shifted, graph.hold(f"factor{at}", _FACTORS[at], np.int32)], f"term{at}")
    first, second = (graph.add("Equal", [f"shifted{at}", "gap"], f"gap{at}") for at in range(2))
    counts = graph.add("Not", [graph.add("And", [first, second], "inside")], "counts")
    graph.add("Cast", [counts], "counted", to=TensorProto.FLOAT)
    return graph.add("Unsqueeze", ["counted", graph.hold("last", [2], np.int64)], "mask")


def _add_size(graph: _GraphWriter, size: int, mask: str) -> str:
    """Add the n-grams of one size; returns the sum of their rows, `[n, labels]`."""
    total = graph.hold(f"size{size}", size, np.int32)
    for at in range(size):
        total = graph.add("Add", [total, f"term{at}"], f"sum{size}_{at}")
    number = graph.add("Mod", [total, graph.hold("buckets", BUCKETS, np.int32)], f"number{size}")
    rows = graph.add("Gather", ["table", number], f"rows{size}")
    weighed = graph.add("Mul", [rows, mask], f"weighed{size}")
    return graph.add("ReduceSum", [weighed, "columns"], f"part{size}", keepdims=0)


def _add_length(graph: _GraphWriter) -> str:
    """Add the root of one more than the n-grams of a text; returns its name, `[n, 1]`."""
    number = graph.add("ReduceSum", ["counted", "columns"], "number", keepdims=1)
    every = graph.add("Mul", [number, graph.hold("sizes", len(SIZES), np.float32)], "every")
    return graph.add("Sqrt", [graph.add("Add", [every, graph.hold("one", 1, np.float32)], "plus")], "length")


def _encode_graph(graph: _GraphWriter, spec: InputSpec, labels: int) -> bytes:
    tensors = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in graph.constants.items()]
    made = helper.make_graph(
        graph.nodes,
        "edge",
        [helper.make_tensor_value_info(spec.name, TensorProto.UINT8, [BATCH, *spec.shape])],
        [
            helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, [BATCH, labels]),
            helper.make_tensor_value_info(TEXT_FIELD, TensorProto.UINT8, [BATCH, *spec.shape]),
        ],
        tensors,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR_VERSION)
    return serialise_model(strip_metadata(model))
