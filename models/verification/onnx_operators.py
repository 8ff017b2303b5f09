"""Allow-list of ONNX operators for a device's graph, and what the lint relies on in each.

Rule: an operator is here because models of our kinds need it and its memory follows from shapes. None of them runs a
subgraph, draws random numbers, keeps a state between calls, reads a file or returns a text; none has an output whose
size follows from the values it is given, unless `SIZE_INPUTS` names the inputs that decide, and these must not come
from a sample. Source: the operator schemas of ONNX and of ONNX Runtime's `com.microsoft` domain.
"""

ONNX, MICROSOFT = "", "com.microsoft"
DOMAINS = {"": ONNX, "ai.onnx": ONNX, MICROSOFT: MICROSOFT}
IR_VERSIONS = range(7, 11)
OPSETS = {ONNX: range(13, 22), MICROSOFT: range(1, 2)}  # up to what ONNX Runtime 1.20, our oldest, knows

OPERATOR_GROUPS = {
    "layers": "Conv ConvTranspose Gemm MatMul LSTM GRU RNN",
    "quantised": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger "
    "MatMulInteger",
    "normalisation": "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization "
    "LpNormalization LRN MeanVarianceNormalization",
    "activation": "Celu Clip Elu Erf Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu "
    "Shrink Sigmoid Softmax Softplus Softsign Tanh ThresholdedRelu",
    "pooling": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool",
    "arithmetic": "Abs Add And Ceil Cos CumSum Div Equal Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual "
    "Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sqrt Sub Sum Where Xor",
    "reduction": "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
    "ReduceProd ReduceSum ReduceSumSquare TopK",
    "shape": "Cast CastLike Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND "
    "Identity Pad Reshape Resize ScatterElements ScatterND "
    "Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze",
}
QUANTISED_BY_RUNTIME = (
    "DequantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulIntegerToFloat MatMulNBits QGemm QLinearAdd "
    "QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean "
    "QLinearSigmoid QLinearSoftmax QLinearWhere QuantizeLinear"
)
ALLOWED_OPERATORS = {
    ONNX: frozenset(name for names in OPERATOR_GROUPS.values() for name in names.split()),
    MICROSOFT: frozenset(QUANTISED_BY_RUNTIME.split()),
}

_AXES = (1,)
SIZE_INPUTS: dict[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Squeeze": _AXES,
    "Unsqueeze": _AXES,
    **{name: _AXES for name in OPERATOR_GROUPS["reduction"].split() if name.startswith("Reduce")},
}
SHAPE_ONLY = frozenset({"Shape", "Size"})  # what they return follows from shapes, not from values

# TensorProto.DataType -> bits of one element, and the field that may carry elements instead of raw_data
ELEMENT_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 21: 4, 22: 4}
ELEMENT_FIELDS = {1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data"}
ELEMENT_FIELDS |= dict.fromkeys((2, 3, 4, 5, 6, 9, 10), "int32_data")

# AttributeProto.AttributeType -> the field that carries it; those of graphs, types, sparse tensors are not here
ATTRIBUTE_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}
