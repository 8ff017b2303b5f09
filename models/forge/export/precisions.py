"""Precision conversion of an ONNX graph: static int8 (QDQ), dynamic int8, int8 weights on disk, float16.

Rule: what follows the last layer that has weights (scaling, clipping and rounding to codes, softmax, quantiles) stays
float32 in all of them: a second rounding there would move codes and coarsen confidences. What feeds nothing but the
codes computes in float32 throughout: activations in eight bits would spoil a transform. Its weights are stored in eight
bits where these are exact, else in sixteen. With `whole_codes` so does everything that feeds the codes, though other
outputs need it too. Equal graph and samples give equal bytes: names come from names, and the order of nodes and tensors
from the names.
"""

import heapq
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from models.forge.export.onnx import strip_metadata
from models.forge.export.stored_weights import WORTH_ELEMENTS, store_closely, store_int8
from models.forge.export.targets import ActivationType

Values = npt.NDArray[Any]
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_DYNAMIC = ("MatMul", "Gemm", "Gather", "LSTM")  # never Conv: ONNX Runtime's integer convolution is 6 to 15 x slower
_FLOAT_RESULT = frozenset({"Gemm", "MatMul"})  # what ONNX Runtime multiplies in eight bits and returns as float
_CALIBRATION_BATCH = 64
_CODES = onnx.TensorProto.UINT8  # codes are the only such outputs of an edge graph


class PrecisionError(Exception):
    """A graph cannot be converted to the requested precision; one line says why."""


def static_int8(
    model: onnx.ModelProto, samples: Values, activation: ActivationType, *, whole_codes: bool = False
) -> onnx.ModelProto:
    """Static int8 in QDQ form: weights per channel, activations in the ranges that `samples` `[n, *shape]` show.

    Source: Jacob et al. 2018. Raises PrecisionError if no layer has weights.
    """
    if not any(node.op_type in WEIGHTED - _RECURRENT for node in model.graph.node):
        raise PrecisionError("no convolution and no product with weights in it")
    with tempfile.TemporaryDirectory(prefix="skerry-forge-") as folder, _silence_quantiser():
        ready, small = (str(Path(folder) / name) for name in ("ready", "small"))
        _prepare_graph(model, ready)
        graph = onnx.load(ready).graph
        ending, own = closing_nodes(graph), code_nodes(graph, shared=whole_codes)
        quantize_static(
            ready,
            small,
            _SampleReader(graph.input[0].name, samples),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8 if activation is ActivationType.UNSIGNED else QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=sorted(ending | own),
            extra_options={"ActivationSymmetric": activation is ActivationType.SYMMETRIC},
        )
        found = onnx.load(small)
    _remove_result_quantisation(found.graph, ending)
    _restore_inputs(found.graph, own)
    store_closely(found.graph, own)
    return sort_graph(strip_metadata(found))


def dynamic_int8(model: onnx.ModelProto, *, whole_codes: bool = False) -> onnx.ModelProto:
    """Dynamic int8: products with weights in int8, the range of activations found anew for each sample.

    Convolutions stay float32. Raises PrecisionError where most weights are convolutions' or there is no such product.
    """
    convolved, multiplied = _weight_elements(model.graph)
    if not multiplied or convolved > multiplied:
        raise PrecisionError("most of its weights are convolutions', which it would make many times slower")
    with tempfile.TemporaryDirectory(prefix="skerry-forge-") as folder, _silence_quantiser():
        ready, small = (str(Path(folder) / name) for name in ("ready", "small"))
        _prepare_graph(model, ready, shapes=False)
        graph = onnx.load(ready).graph
        own = code_nodes(graph, shared=whole_codes)
        quantize_dynamic(
            ready,
            small,
            list(_DYNAMIC),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=sorted(own | _vector_products(graph)),
            extra_options={"MatMulConstBOnly": True},
        )
        found = onnx.load(small)
    store_closely(found.graph, own)
    return sort_graph(strip_metadata(found))


def _vector_products(graph: onnx.GraphProto) -> set[str]:
    """Names of products with a vector, to which the quantiser gives a scale for each row that no runtime takes."""
    vectors = {tensor.name for tensor in graph.initializer if len(tensor.dims) < 2}
    return {node.name for node in graph.node if node.op_type == "MatMul" and node.input[1] in vectors}


def int8_weights(model: onnx.ModelProto, *, whole_codes: bool = False) -> onnx.ModelProto:
    """Int8 weights on disk with one scale per channel, each through a DequantizeLinear; arithmetic is float32.

    What feeds the codes alone is stored as in the other precisions.

    A session with `session.disable_quant_qdq` = 1 computes the products once, at load (ONNX Runtime's constant folding
    skips DequantizeLinear only without that option), and is as quick as the float32 graph. Raises PrecisionError if no
    weight is large enough.
    """
    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    store_closely(graph, code_nodes(graph, shared=whole_codes))
    if not store_int8(graph):
        raise PrecisionError(f"no weight of {WORTH_ELEMENTS} numbers or more")
    return sort_graph(strip_metadata(found))


def convert_float16(model: onnx.ModelProto, *, whole_codes: bool = False) -> onnx.ModelProto:
    """Weights and arithmetic in float16, but for what makes codes alone; inputs and outputs keep their types."""
    from onnxruntime.transformers import float16 as runtime  # noqa: PLC0415  imports much, and few targets want it

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    own = code_nodes(model.graph, shared=whole_codes)
    with _silence_quantiser():
        found = runtime.convert_float_to_float16(
            copy, keep_io_types=True, node_block_list=sorted(closing_nodes(model.graph) | own)
        )
    _restore_inputs(found.graph, own)
    store_closely(found.graph, own)
    return sort_graph(strip_metadata(found))


def closing_nodes(graph: onnx.GraphProto) -> set[str]:
    """Names of the nodes after which no layer with weights comes any more."""
    before_weights: set[str] = set()  # values that some layer with weights still depends on
    ending: set[str] = set()
    for node in reversed(graph.node):
        leads = any(name in before_weights for name in node.output)
        if leads or node.op_type in WEIGHTED:
            before_weights.update(node.input)
        else:
            ending.add(node.name)
    return ending


def code_nodes(graph: onnx.GraphProto, *, shared: bool = False) -> set[str]:
    """Names of the nodes that feed the codes (the outputs of type UINT8) and, unless `shared`, no other output."""
    codes, others = (
        _find_makers(graph, [v.name for v in graph.output if (v.type.tensor_type.elem_type == _CODES) is wanted])
        for wanted in (True, False)
    )
    return codes if shared else codes - others


def _find_makers(graph: onnx.GraphProto, outputs: Sequence[str]) -> set[str]:
    """Names of all nodes that these values depend on."""
    wanted, found = set(outputs), set()
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output):
            found.add(node.name)
            wanted.update(node.input)
    return found


def sort_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put nodes and tensors into the one order that names and dependencies give; the converters iterate over sets."""
    graph = model.graph
    nodes, tensors = _sort_nodes(graph.node), sorted(graph.initializer, key=lambda tensor: tensor.name)
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
    return model


def _sort_nodes(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Topological order of nodes; of those whose inputs are all there, the smallest first output comes first."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [{makers[name] for name in node.input if name in makers} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for index, need in enumerate(needs):
        for maker in need:
            users[maker].append(index)
    left = [len(need) for need in needs]
    ready = [(nodes[index].output[0], index) for index, count in enumerate(left) if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        index = heapq.heappop(ready)[1]
        found.append(nodes[index])
        for user in users[index]:
            left[user] -= 1
            if not left[user]:
                heapq.heappush(ready, (nodes[user].output[0], user))
    return found


def _prepare_graph(model: onnx.ModelProto, path: str, *, shapes: bool = True) -> None:
    """Fold batch normalisations into their convolutions, infer shapes and name every node.

    `shapes` False drops the shapes: the dynamic quantiser transposes weights and then fails on their former shapes.
    """
    source = f"{path}.source"
    onnx.save(model, source)
    quant_pre_process(source, path, skip_symbolic_shape=True)
    ready = onnx.load(path)
    for index, node in enumerate(ready.graph.node):
        node.name = node.name or f"node_{index}"
    if not shapes:
        del ready.graph.value_info[:]
    onnx.save(ready, path)


def _remove_result_quantisation(graph: onnx.GraphProto, ending: set[str]) -> None:
    """The last layer's result is not rounded to eight bits: its pair of Q and DQ goes where only `ending` reads it."""
    outputs = {value.name for value in graph.output}
    makers = {name: node for node in graph.node for name in node.output}
    for quantise in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        readers = _list_readers(graph, quantise.output[0])
        maker = makers.get(quantise.input[0])
        if maker is None or maker.op_type not in _FLOAT_RESULT or [n.op_type for n in readers] != ["DequantizeLinear"]:
            continue
        back = readers[0]
        if all(node.name in ending for node in _list_readers(graph, back.output[0])):
            graph.node.remove(quantise)
            graph.node.remove(back)
            _merge_values(graph, quantise.input[0], back.output[0], outputs)
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _restore_inputs(graph: onnx.GraphProto, names: set[str]) -> None:
    """These nodes read values as they were before they were rounded, which the converters give to every reader."""
    makers = {name: node for node in graph.node for name in node.output}
    for node in [node for node in graph.node if node.name in names]:
        for index, name in enumerate(node.input):
            back = makers.get(name)
            rounding = makers.get(back.input[0]) if back else None
            if back is not None and rounding is not None and _is_rounding(rounding, back):
                node.input[index] = rounding.input[0]


def _is_rounding(there: onnx.NodeProto, back: onnx.NodeProto) -> bool:
    """Whether a pair of nodes rounds a float32: to eight bits and back, or to float16 and back."""
    if (there.op_type, back.op_type) == ("Cast", "Cast"):
        return (there.attribute[0].i, back.attribute[0].i) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    return (there.op_type, back.op_type) == ("QuantizeLinear", "DequantizeLinear")


def _list_readers(graph: onnx.GraphProto, name: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if name in node.input]


def _merge_values(graph: onnx.GraphProto, before: str, after: str, outputs: set[str]) -> None:
    """Make two values one, under the name that the graph's outputs know."""
    old, new = (before, after) if after in outputs else (after, before)
    for names in (names for node in graph.node for names in (node.input, node.output)):
        for index in [index for index, name in enumerate(names) if name == old]:
            names[index] = new


def _weight_elements(graph: onnx.GraphProto) -> tuple[int, int]:
    """Numbers in weights of convolutions; in weights of products, tables and LSTMs."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in graph.initializer}
    totals = [0, 0]
    for node in graph.node:
        if node.op_type in {"Conv", "ConvTranspose", *_DYNAMIC}:
            totals[node.op_type in _DYNAMIC] += sum(sizes.get(name, 0) for name in node.input)
    return totals[0], totals[1]


class _SampleReader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, samples: Values) -> None:
        starts = range(0, len(samples), _CALIBRATION_BATCH)
        self._feeds = iter({name: samples[start : start + _CALIBRATION_BATCH]} for start in starts)

    def get_next(self) -> dict[str, Values] | None:
        return next(self._feeds, None)


@contextmanager
def _silence_quantiser() -> Iterator[None]:
    """Silence the quantisers.

    They warn on the root logger, even of what was done already, and no caller can act on it.
    """
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
