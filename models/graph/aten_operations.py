"""Allow-list of ATen operations for the hub's graphs, and what is relied on in each.

Rule: an operation is here because models of our kinds need it. None writes to what it is given, draws random numbers,
keeps a state, reads uninitialised memory, or gives a tensor whose size follows from values. A name is only ever looked
up in this table: nothing in a file can reach another attribute of torch.
"""

import operator
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import torch

# overload "default" unless said: `add.Tensor`
OPERATION_GROUPS = {
    "layers": "linear bilinear matmul mm bmm addmm baddbmm mv dot einsum embedding conv1d conv1d.padding conv2d "
    "conv2d.padding conv3d conv3d.padding convolution conv_transpose1d conv_transpose2d.input conv_transpose3d.input "
    "gru.input lstm.input rnn_tanh.input rnn_relu.input scaled_dot_product_attention",
    "normalisation": "batch_norm _native_batch_norm_legit_no_training layer_norm native_layer_norm group_norm "
    "native_group_norm instance_norm rms_norm linalg_vector_norm",
    "activation": "relu relu6 leaky_relu elu celu selu gelu silu mish hardtanh hardswish hardsigmoid sigmoid tanh "
    "softplus softmax.int _softmax log_softmax.int _log_softmax prelu _prelu_kernel log_sigmoid threshold glu "
    "softshrink hardshrink rrelu dropout feature_dropout alpha_dropout feature_alpha_dropout",
    "pooling": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d "
    "avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "arithmetic": "abs add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar "
    "div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode floor_divide floor_divide.Scalar remainder.Tensor "
    "remainder.Scalar fmod.Tensor fmod.Scalar neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh erf "
    "erfc sign sgn ceil floor round round.decimals trunc frac clamp clamp.Tensor clamp_min clamp_min.Tensor "
    "clamp_max clamp_max.Tensor maximum minimum lerp.Scalar lerp.Tensor addcmul addcdiv logaddexp logit nan_to_num "
    "cumsum cumprod cosine_similarity _cdist_forward",
    "logic": "__and__.Tensor __and__.Scalar __or__.Tensor __or__.Scalar __xor__.Tensor bitwise_and.Tensor "
    "bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar bitwise_not "
    "logical_and logical_or logical_not logical_xor eq.Tensor eq.Scalar ne.Tensor ne.Scalar ge.Tensor ge.Scalar "
    "gt.Tensor gt.Scalar le.Tensor le.Scalar lt.Tensor lt.Scalar isnan isinf isfinite where.self where.Scalar "
    "where.ScalarSelf where.ScalarOther masked_fill.Scalar masked_fill.Tensor",
    "reduction": "sum sum.dim_IntList mean mean.dim amax amin max max.dim max.other min min.dim min.other prod "
    "prod.dim_int var var.dim var.correction std std.dim std.correction var_mean.correction argmax argmin topk sort "
    "argsort logsumexp any any.dim any.dims all all.dim norm.ScalarOpt_dim median.dim",
    "shape": "view _unsafe_view reshape flatten.using_ints unflatten.int transpose.int t permute unsqueeze squeeze "
    "squeeze.dim squeeze.dims select.int slice.Tensor narrow cat concat stack split.Tensor split.sizes "
    "split_with_sizes chunk unbind.int expand expand_as view_as reshape_as repeat tile repeat_interleave.self_int "
    "gather index_select index.Tensor index_put masked_scatter scatter.src scatter.value scatter_add "
    "scatter_reduce.two select_scatter slice_scatter fill.Scalar fill.Tensor copy constant_pad_nd pad "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "pixel_shuffle pixel_unshuffle channel_shuffle roll flip movedim.int swapaxes triu tril im2col col2im unfold "
    "diagonal",
    "resize": "upsample_nearest1d upsample_nearest1d.vec upsample_nearest2d upsample_nearest2d.vec "
    "upsample_nearest3d upsample_nearest3d.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec "
    "upsample_linear1d upsample_linear1d.vec upsample_bilinear2d upsample_bilinear2d.vec upsample_bicubic2d "
    "upsample_bicubic2d.vec upsample_trilinear3d upsample_trilinear3d.vec grid_sampler_2d",
    "cast": "to.dtype to.dtype_layout to.device to.other _to_copy type_as clone contiguous alias detach "
    "lift_fresh_copy",
    "constant": "zeros ones full arange arange.start arange.start_step scalar_tensor linspace eye zeros_like "
    "ones_like full_like new_zeros new_ones new_full",
    "size": "sym_size.int sym_numel",
}
# Operations of torch's core set that are not above, by what speaks against them.
REFUSED_GROUPS = {
    "a size or a branch would follow from values": "nonzero _local_scalar_dense",
    "it draws random numbers": "rand randn randperm native_dropout",
    "a sample's answer would depend on the others of its batch": "_native_batch_norm_legit "
    "_native_batch_norm_legit.no_stats _pdist_forward",
    "it makes complex numbers, for which bundles have no type": "_fft_r2c _fft_c2r",
    "it reads memory that it was not given, or that was never written": "as_strided empty.memory_format empty_strided "
    "sym_stride.int sym_storage_offset sym_is_contiguous _embedding_bag",
    "it writes into what it is given": "atan2.out resize_",
    "training alone needs it": "_adaptive_avg_pool2d_backward avg_pool2d_backward convolution_backward "
    "embedding_dense_backward max_pool2d_with_indices_backward native_group_norm_backward native_layer_norm_backward",
}
OPERATIONS_PAGE = "docs/operations.md"
ALLOWED_OPERATIONS = frozenset(
    f"aten.{n if '.' in n else n + '.default'}" for names in OPERATION_GROUPS.values() for n in names.split()
)


def _overload_names(group: str, without: str = "") -> set[str]:
    return {name if "." in name else f"{name}.default" for name in OPERATION_GROUPS[group].split()} - set(
        without.split()
    )


# Each element of the result depends on the elements at the same place of what is given, after broadcasting.
POINTWISE = frozenset(
    f"aten.{name}"
    for name in (
        *_overload_names(
            "arithmetic", "cumsum.default cumprod.default cosine_similarity.default _cdist_forward.default"
        ),
        *_overload_names(
            "activation",
            "softmax.int _softmax.default log_softmax.int _log_softmax.default prelu.default _prelu_kernel.default "
            "glu.default rrelu.default dropout.default feature_dropout.default alpha_dropout.default "
            "feature_alpha_dropout.default",
        ),
        *_overload_names("logic", "any.default any.dim any.dims all.default all.dim"),
        *_overload_names("cast", "lift_fresh_copy.default"),
        *("zeros_like.default", "ones_like.default", "full_like.default", "contiguous.default"),
    )
)
# arithmetic on sizes
SIZE_OPERATORS: Mapping[str, Callable[..., Any]] = {
    f"operator.{call.__name__}": call for call in (operator.add, operator.sub, operator.mul, operator.floordiv)
}
GETITEM = "operator.getitem"
RECURRENT = frozenset(f"aten.{name}.input" for name in ("gru", "lstm", "rnn_tanh", "rnn_relu"))

# What an argument must be (one of the alternatives), so that nothing is random and nothing is remembered.
_NOT_TRAINING: tuple[Mapping[str, object], ...] = ({"train": False},)
REQUIRED_VALUES: dict[str, tuple[Mapping[str, object], ...]] = {
    **dict.fromkeys(RECURRENT, _NOT_TRAINING),
    **{
        f"aten.{n}.default": _NOT_TRAINING
        for n in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    },
    "aten.batch_norm.default": ({"training": False},),
    "aten.instance_norm.default": (
        {"use_input_stats": False},
        {"use_input_stats": True, "running_mean": None, "running_var": None},
    ),
    "aten.rrelu.default": ({"training": False},),
    "aten.scaled_dot_product_attention.default": ({"dropout_p": 0.0},),
    "aten.grid_sampler_2d.default": tuple(
        {"interpolation_mode": mode, "padding_mode": padding} for mode in range(3) for padding in range(3)
    ),  # others are not checked by torch
}
NO_PINNED_MEMORY: Mapping[str, object] = {"pin_memory": False}  # or None: a file may not ask for page-locked memory
_ALLOWED_STRINGS = re.compile(
    r"none|tanh|floor|trunc|same|valid|constant|reflect|replicate|circular|sum|prod|mean|amax|amin"
)
_EINSUM_EQUATION = re.compile(r"[A-Za-z., ]{1,64}(?:->[A-Za-z. ]{0,32})?")

DTYPES = {
    name: getattr(torch, name)
    for name in "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()  # noqa: SIM905 - one line
}
LAYOUTS = {"strided": torch.strided}
MEMORY_FORMATS = {
    n: getattr(torch, n) for n in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}


class ResultKind(StrEnum):
    """Kind of a node's result: one tensor, several, or a size.

    Only tensors may be outputs of a graph; several tensors must be taken apart by `getitem` first.
    """

    TENSOR = "tensor"
    TENSORS = "tensors"  # several, to be taken apart by getitem
    SIZE = "size"  # a whole number that follows from shapes


class ArgumentKind(NamedTuple):
    """Type of an argument, from the operation's schema.

    `base`: "Tensor", "int", "float", "number", "bool", "str", "ScalarType", "Device", "Layout" or "MemoryFormat".
    `listed`: a list of them; `optional`: None is allowed.
    """

    base: str
    optional: bool = False
    listed: bool = False
    holes: bool = False  # elements of the list may be None


class OperationArgument(NamedTuple):
    """Argument of an operation: name, type, whether it is required or keyword-only, and its default."""

    name: str
    kind: ArgumentKind
    required: bool
    keyword: bool
    default: object


class AllowedOperation(NamedTuple):
    """Allowed operation with its callable and its schema.

    `pieces`: how many tensors it gives, 0 = that follows from shapes. `gives`: tensor, tensors or a size.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[OperationArgument, ...]
    gives: ResultKind
    pieces: int


@cache
def find_operation(name: str) -> AllowedOperation | None:
    """Look up an allowed operation by name, as in `aten.linear.default`; its arguments come from torch's schema.

    None for everything that is not allowed, or that the installed torch does not have. Cached: the table is closed.
    """
    if name not in ALLOWED_OPERATIONS:
        return None
    _, base, overload = name.split(".")
    try:
        call = getattr(getattr(torch.ops.aten, base), overload)
    except AttributeError:
        return None
    schema = call._schema  # noqa: SLF001 - torch has no public access to an overload's schema
    arguments = tuple(
        OperationArgument(
            a.name, parse_argument_kind(str(a.real_type)), not a.has_default_value(), a.kwarg_only, a.default_value
        )
        for a in schema.arguments
    )
    returns = [str(result.real_type) for result in schema.returns]
    return AllowedOperation(name, call, arguments, *_result_kind(returns))


def _result_kind(returns: list[str]) -> tuple[ResultKind, int]:
    """Return kind and number of results from the types that a schema returns."""
    if returns in (["int"], ["SymInt"]):
        return ResultKind.SIZE, 1
    if returns == ["Tensor"]:
        return ResultKind.TENSOR, 1
    return ResultKind.TENSORS, 0 if returns == ["List[Tensor]"] else len(returns)


def parse_argument_kind(written: str) -> ArgumentKind:
    """Parse an argument type as torch's schema prints it: `Optional[List[int]]` and the like.

    "SymInt" counts as "int". A type that is none of `ArgumentKind.base` fits no value, so such an argument must keep
    its default.
    """
    optional, written = _strip_wrapper(written, "Optional[")
    listed, written = _strip_wrapper(written, "List[")
    holes, written = _strip_wrapper(written, "Optional[")
    return ArgumentKind("int" if written == "SymInt" else written, optional, listed, holes)


def _strip_wrapper(written: str, shell: str) -> tuple[bool, str]:
    """Strip one wrapper such as `List[`: (whether it was there, what is inside)."""
    if written.startswith(shell):
        return True, written.removeprefix(shell).removesuffix("]")
    return False, written


def string_allowed(operation: str, text: str) -> bool:
    """Tell whether a string may be given to an operation.

    Allowed are a few modes and paddings, and for `einsum` an equation of at most 64 characters before the arrow.
    """
    pattern = _EINSUM_EQUATION if operation == "aten.einsum.default" else _ALLOWED_STRINGS
    return pattern.fullmatch(text) is not None
