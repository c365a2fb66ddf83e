"""Tensor operators and methods of the lazy matrix, which compute the dense matrix first.

Code written for plain attention tensors (`attentions[0].mean(dim=1)`) works unchanged. All of it calls `dense()`, which
raises an error for matrices above its size limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead._utils.torch_internals import tree_map

# functions that a subclass computes without the dense matrix, by the names of its methods
_STREAMED: dict[Callable, str] = {
    torch.sum: "sum", torch.mean: "mean", torch.max: "max", torch.amax: "amax", torch.argmax: "argmax",
    torch.matmul: "matmul",
}  # fmt: skip


def _dense_operator(name: str) -> Callable[..., Any]:
    def operator(self: TensorLike, *others: Any) -> Any:
        others = tuple(other.dense() if isinstance(other, TensorLike) else other for other in others)
        return getattr(self.dense(), name)(*others)

    operator.__name__ = name
    return operator


def _dense_method(name: str) -> Callable[..., Any]:
    def method(self: TensorLike, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.dense(), name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"Compute the matrix and return `Tensor.{name}` of it."
    return method


class TensorLike:
    """Operators and methods of `Tensor` that do not modify it. A subclass defines `dense()`."""

    def dense(self) -> Tensor:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if copy is False:
            raise ValueError("copy is False; expected None or True, because the array must be computed")
        return np.asarray(self.dense().detach().cpu().numpy(), dtype=dtype)

    @classmethod
    def __torch_function__(cls, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        streamed = _STREAMED.get(function)
        if streamed is not None:
            options = dict(kwargs or {})
            first, *rest = args or (options.pop("input", None),)
            if isinstance(first, TensorLike):
                return getattr(first, streamed)(*rest, **options)
        plain = tree_map(lambda x: x.dense() if isinstance(x, TensorLike) else x, (args, kwargs or {}))
        return function(*plain[0], **plain[1])

    __hash__ = object.__hash__  # `__eq__` compares elementwise, as for tensors

    __abs__ = _dense_operator("__abs__")
    __add__ = _dense_operator("__add__")
    __eq__ = _dense_operator("__eq__")
    __ge__ = _dense_operator("__ge__")
    __gt__ = _dense_operator("__gt__")
    __le__ = _dense_operator("__le__")
    __lt__ = _dense_operator("__lt__")
    __matmul__ = _dense_operator("__matmul__")
    __mul__ = _dense_operator("__mul__")
    __ne__ = _dense_operator("__ne__")
    __neg__ = _dense_operator("__neg__")
    __pow__ = _dense_operator("__pow__")
    __radd__ = _dense_operator("__radd__")
    __rmatmul__ = _dense_operator("__rmatmul__")
    __rmul__ = _dense_operator("__rmul__")
    __rpow__ = _dense_operator("__rpow__")
    __rsub__ = _dense_operator("__rsub__")
    __rtruediv__ = _dense_operator("__rtruediv__")
    __sub__ = _dense_operator("__sub__")
    __truediv__ = _dense_operator("__truediv__")

    # reductions and sorting
    all = _dense_method("all")
    allclose = _dense_method("allclose")
    amax = _dense_method("amax")
    amin = _dense_method("amin")
    any = _dense_method("any")
    argmax = _dense_method("argmax")
    argmin = _dense_method("argmin")
    argsort = _dense_method("argsort")
    cumsum = _dense_method("cumsum")
    equal = _dense_method("equal")
    max = _dense_method("max")
    mean = _dense_method("mean")
    median = _dense_method("median")
    min = _dense_method("min")
    nonzero = _dense_method("nonzero")
    norm = _dense_method("norm")
    prod = _dense_method("prod")
    quantile = _dense_method("quantile")
    sort = _dense_method("sort")
    std = _dense_method("std")
    sum = _dense_method("sum")
    var = _dense_method("var")

    # shapes and indexing
    chunk = _dense_method("chunk")
    clone = _dense_method("clone")
    contiguous = _dense_method("contiguous")
    expand = _dense_method("expand")
    expand_as = _dense_method("expand_as")
    flatten = _dense_method("flatten")
    flip = _dense_method("flip")
    gather = _dense_method("gather")
    index_select = _dense_method("index_select")
    masked_fill = _dense_method("masked_fill")
    masked_select = _dense_method("masked_select")
    movedim = _dense_method("movedim")
    narrow = _dense_method("narrow")
    new_ones = _dense_method("new_ones")
    new_zeros = _dense_method("new_zeros")
    permute = _dense_method("permute")
    repeat = _dense_method("repeat")
    repeat_interleave = _dense_method("repeat_interleave")
    reshape = _dense_method("reshape")
    roll = _dense_method("roll")
    select = _dense_method("select")
    split = _dense_method("split")
    squeeze = _dense_method("squeeze")
    swapaxes = _dense_method("swapaxes")
    take_along_dim = _dense_method("take_along_dim")
    tile = _dense_method("tile")
    transpose = _dense_method("transpose")
    tril = _dense_method("tril")
    triu = _dense_method("triu")
    unbind = _dense_method("unbind")
    unflatten = _dense_method("unflatten")
    unfold = _dense_method("unfold")
    unsqueeze = _dense_method("unsqueeze")
    view = _dense_method("view")
    view_as = _dense_method("view_as")

    # elementwise
    abs = _dense_method("abs")
    add = _dense_method("add")
    clamp = _dense_method("clamp")
    div = _dense_method("div")
    eq = _dense_method("eq")
    exp = _dense_method("exp")
    ge = _dense_method("ge")
    gt = _dense_method("gt")
    isclose = _dense_method("isclose")
    isfinite = _dense_method("isfinite")
    isinf = _dense_method("isinf")
    isnan = _dense_method("isnan")
    le = _dense_method("le")
    log = _dense_method("log")
    lt = _dense_method("lt")
    matmul = _dense_method("matmul")
    mul = _dense_method("mul")
    nan_to_num = _dense_method("nan_to_num")
    ne = _dense_method("ne")
    pow = _dense_method("pow")
    round = _dense_method("round")
    sqrt = _dense_method("sqrt")
    square = _dense_method("square")
    sub = _dense_method("sub")
    where = _dense_method("where")

    # dtypes, devices and Python
    bfloat16 = _dense_method("bfloat16")
    bool = _dense_method("bool")
    cuda = _dense_method("cuda")
    double = _dense_method("double")
    float = _dense_method("float")
    half = _dense_method("half")
    is_floating_point = _dense_method("is_floating_point")
    item = _dense_method("item")
    numpy = _dense_method("numpy")
    tolist = _dense_method("tolist")
    type = _dense_method("type")
    type_as = _dense_method("type_as")
