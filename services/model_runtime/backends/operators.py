"""The operators that a program may call, by overload name. Nothing else is ever looked up.

In: ATen operators that compute new values from their arguments. Out, each for a reason: whatever
writes to its arguments (the weights are mapped read-only: writing is a crash) or draws random
numbers; `empty*` and `as_strided`, which show memory that held other requests; `_unsafe_*`, which
skip bounds checks; sizes that depend on data; devices; everything that is not ATen.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from contracts.types import Scalar

size_max = 2**62
"""Of a computed size; larger is refused as not a size."""

_ONE_TENSOR = """
abs acos acosh alias asin asinh atan atanh bitwise_not ceil contiguous cos cosh deg2rad detach
digamma erf erfc erfinv exp exp2 expm1 floor frac gelu hardsigmoid hardswish isfinite isinf isnan
lgamma log log10 log1p log2 log_sigmoid logical_not mish neg positive rad2deg reciprocal relu relu6
round rsqrt selu sgn sigmoid sign signbit silu sin sinc sinh sqrt square t tan tanh trunc clone
lift_fresh_copy ones_like zeros_like full_like celu elu hardshrink hardtanh leaky_relu softplus
softshrink threshold nan_to_num logit
"""
_LINEAR_ALGEBRA = """
addmm.default addmv.default baddbmm.default addbmm.default bmm.default dot.default einsum.default
linear.default matmul.default mm.default mv.default outer.default bilinear.default
scaled_dot_product_attention.default linalg_vector_norm.default norm.Scalar norm.ScalarOpt_dim
cosine_similarity.default cdist.default linalg_cross.default
"""
_NETWORKS = """
adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_max_pool1d.default
adaptive_max_pool2d.default avg_pool1d.default avg_pool2d.default avg_pool3d.default
batch_norm.default _native_batch_norm_legit_no_training.default conv1d.default conv1d.padding
conv2d.default conv2d.padding conv3d.default conv_transpose1d.default conv_transpose2d.input
convolution.default dropout.default feature_dropout.default embedding.default
embedding_bag.default embedding_bag.padding_idx glu.default group_norm.default
native_group_norm.default layer_norm.default native_layer_norm.default
rms_norm.default max_pool1d.default max_pool2d.default max_pool3d.default
max_pool2d_with_indices.default pixel_shuffle.default pixel_unshuffle.default prelu.default
softmax.int log_softmax.int _softmax.default _log_softmax.default upsample_bilinear2d.vec
upsample_nearest1d.vec upsample_nearest2d.vec channel_shuffle.default im2col.default
"""
_TWO_VALUES = """
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar rsub.Tensor mul.Tensor mul.Scalar
div.Tensor div.Scalar div.Tensor_mode div.Scalar_mode floor_divide.default floor_divide.Scalar
remainder.Tensor remainder.Scalar fmod.Tensor fmod.Scalar pow.Tensor_Tensor pow.Tensor_Scalar
pow.Scalar atan2.default hypot.default copysign.Tensor copysign.Scalar maximum.default
minimum.default fmax.default fmin.default max.other min.other addcmul.default addcdiv.default
lerp.Scalar lerp.Tensor true_divide.Tensor true_divide.Scalar xlogy.Tensor logaddexp.default
eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar
ge.Tensor ge.Scalar logical_and.default logical_or.default logical_xor.default bitwise_and.Tensor
bitwise_and.Scalar bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor bitwise_xor.Scalar
__and__.Tensor __or__.Tensor __xor__.Tensor isclose.default clamp.default clamp.Tensor
clamp_min.default clamp_min.Tensor clamp_max.default clamp_max.Tensor where.self where.ScalarSelf
where.ScalarOther where.Scalar masked_fill.Scalar masked_fill.Tensor fill.Scalar fill.Tensor
"""
_REDUCTIONS = """
all.default all.dim any.default any.dim amax.default amin.default argmax.default argmin.default
argsort.default argsort.stable cummax.default cummin.default cumprod.default cumsum.default
logcumsumexp.default logsumexp.default max.default max.dim mean.default mean.dim median.default
median.dim min.default min.dim prod.default prod.dim_int sort.default sort.stable std.dim
std.correction std_mean.dim sum.default sum.dim_IntList topk.default var.dim var.correction
var_mean.dim var_mean.correction kthvalue.default nansum.default
"""
_SHAPES = """
_to_copy.default _unsafe_view.default arange.default arange.start arange.start_step
broadcast_to.default cat.default chunk.default column_stack.default concat.default
constant_pad_nd.default diag_embed.default diagonal.default expand.default expand_as.default
eye.default eye.m flatten.using_ints flip.default full.default hstack.default linspace.default
meshgrid.indexing movedim.int movedim.intlist moveaxis.int narrow.default new_full.default
new_ones.default new_zeros.default numpy_T.default ones.default pad.default permute.default
repeat.default repeat_interleave.self_int reshape.default roll.default scalar_tensor.default
select.int slice.Tensor split.Tensor split.default split.sizes split_with_sizes.default
squeeze.default squeeze.dim squeeze.dims stack.default swapaxes.default tensor_split.sections
tile.default to.dtype to.dtype_layout transpose.int tril.default triu.default type_as.default
unbind.int unflatten.int unfold.default unsqueeze.default view.default view_as.default
vstack.default zeros.default
"""
_LOOKUPS = """
bucketize.Tensor gather.default index.Tensor index_add.default index_copy.default
index_put.default index_select.default scatter.src scatter.value scatter_add.default
searchsorted.Tensor select_scatter.default slice_scatter.default take.default take_along_dim.default
isin.Tensor_Tensor
"""


def _overloads() -> frozenset[str]:
    names = [f"{name}.default" for name in _ONE_TENSOR.split()]
    for group in (_LINEAR_ALGEBRA, _NETWORKS, _TWO_VALUES, _REDUCTIONS, _SHAPES, _LOOKUPS):
        names += group.split()
    names.append("round.decimals")
    return frozenset(f"aten.{name}" for name in names)


ATEN: frozenset[str] = _overloads()

PINNED: Mapping[str, tuple[int, str, Scalar]] = {
    "aten.batch_norm.default": (5, "training", False),
    "aten.dropout.default": (2, "train", False),
    "aten.feature_dropout.default": (2, "train", False),
    "aten.scaled_dot_product_attention.default": (4, "dropout_p", 0.0),
}
"""Operators that are pure only with this argument (position, name, value): otherwise they would
draw random numbers or write running statistics into the weights."""
ABSENT_IS_PINNED = frozenset({"aten.scaled_dot_product_attention.default"})
"""Those whose default is the pinned value."""
REFUSED_WORDS: Mapping[str, str] = {
    f"aten.div.{overload}": "trunc" for overload in ("Tensor_mode", "Scalar_mode")
}
"""Of whole numbers it divides with the processor's instruction, which ends the process (SIGFPE)
when the smallest number is divided by −1: any request could do that. "floor" is guarded."""
KEYWORDS_LEFT_OUT = frozenset({"device", "layout", "pin_memory", "requires_grad", "non_blocking"})
"""Where values lie is the backend's to choose; no program says it."""


def _bounded(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for numbers that may be sizes: without the bound, products of products would grow
    for ever."""

    def bounded(*numbers: float) -> Any:
        result = compute(*numbers)
        if not abs(result) <= size_max:
            raise ValueError(f"a computed size is {result}, its limit is {size_max}")
        return result

    return bounded


MEASURES: Mapping[str, Callable[..., Any]] = {
    "size.of": torch.Tensor.size,
    "size.count": torch.Tensor.numel,
}
"""A tensor's length along an axis, and how many numbers it has."""
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "size.add": _bounded(operator.add),
    "size.subtract": _bounded(operator.sub),
    "size.multiply": _bounded(operator.mul),
    "size.divide_floor": _bounded(operator.floordiv),
    "size.divide": _bounded(operator.truediv),
    "size.remainder": _bounded(operator.mod),
    "size.negate": _bounded(operator.neg),
    "size.minimum": _bounded(min),
    "size.maximum": _bounded(max),
    "size.root": _bounded(math.sqrt),
    "size.number": _bounded(float),
    "size.whole": _bounded(int),
}
"""Of sizes: functions over numbers; no expression is ever parsed."""


def _checked_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`_native_batch_norm_legit_no_training` by the operator that calls the same kernel: its own
    reads beyond a weight or statistic that is too short, memory that held other requests."""
    normal = torch.ops.aten.batch_norm.default(
        x, weight, bias, mean, variance, False, momentum, eps, False
    )
    return normal, x.new_zeros(0), x.new_zeros(0)


CHECKED: Mapping[str, Callable[..., Any]] = {
    "aten._native_batch_norm_legit_no_training.default": _checked_batch_norm,
}
"""What is called in place of an operator that trusts its caller."""


def is_allowed(name: str) -> bool:
    """Whether a program may call this operator."""
    return name in ATEN or name in MEASURES or name in ARITHMETIC


def resolve(name: str) -> Callable[..., Any]:
    """The function of an allowed operator. Raises LookupError for one that this torch lacks."""
    assert is_allowed(name), "checked before"
    ours = MEASURES.get(name) or ARITHMETIC.get(name) or CHECKED.get(name)
    if ours is not None:
        return ours
    _, packet, overload = name.split(".")
    try:
        found: Callable[..., Any] = getattr(getattr(torch.ops.aten, packet), overload)
    except AttributeError as error:
        raise LookupError(f"torch {torch.__version__} has no {name}") from error
    # The bound C function, which `found` calls after Python has looked at the arguments' types.
    return getattr(found, "_op", found)
