"""The mask function that transformers calls: masks without their n × n cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers import masking_utils

from clearhead.huggingface.mask_functions import (
    MaskFunction,
    Place,
    UnknownFunctionError,
    both,
    evaluate,
    hidden_keys,
    translate,
)
from clearhead.masks import Causal, Mask, Window, positions

ATEN = torch.ops.aten
# with numbers these mean an additive mask, which True and False are not
ARITHMETIC = (ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.mul.Tensor, ATEN.add_.Tensor)


class LazyMask(Tensor):
    """A bool tensor [batch, 1, q_len, kv_len] that has no memory of its own: it carries a mask.

    Models hand masks through to their attention function, which reads `mask` and `query_start`. Whatever else is done
    with one is done with the bool tensor it stands for.
    """

    mask: Mask | None  # None where every query may attend to every key
    query_start: int

    @staticmethod
    def __new__(cls, mask: Mask | None, place: Place) -> LazyMask:
        shape = (place.batch, 1, place.q_len, place.kv_len)
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=place.device)  # pyright: ignore[reportAttributeAccessIssue]
        made.mask, made.query_start = mask, place.query_start
        return made

    def __init__(self, mask: Mask | None, place: Place) -> None:
        pass

    def _again(self) -> LazyMask:
        batch, _, q_len, kv_len = self.shape
        return LazyMask(self.mask, Place(batch, q_len, kv_len, self.query_start, 0, self.device))

    def dense(self) -> Tensor:
        _, _, q_len, kv_len = self.shape
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        lowered = self.mask.lower(positions(q_len, kv_len, self.query_start, self.device), kv_len)
        return lowered.allowed(q_len, torch.arange(kv_len, device=self.device)).expand(self.shape)

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"LazyMask({self.mask}, {list(self.shape)}, query_start={self.query_start})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if function in (ATEN.detach.default, ATEN.alias.default):
            return args[0]._again()
        if function is ATEN.slice.Tensor and _takes_all(*args, **kwargs):
            return args[0]._again()
        if function._schema.is_mutable and isinstance(args[0], cls):
            raise RuntimeError(f"{function} would change {args[0]!r} in place; make a plain tensor of it with .clone()")
        if function in ARITHMETIC and any(isinstance(x, Tensor) and x.is_floating_point() for x in args):
            raise RuntimeError(
                f"{function} with scores and {args[0] if isinstance(args[0], cls) else args[1]!r}: a part of this model"
                " runs attention code of its own, for masks that are added; choose attn_implementation='eager' for it"
            )
        plain = tree_map(lambda x: x.dense() if isinstance(x, cls) else x, (args, kwargs))
        return function(*plain[0], **plain[1])


def _takes_all(mask: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> bool:
    """Whether a slice is the whole, as models cut masks to the keys there are."""
    return range(mask.shape[dim])[slice(start, end, step)] == range(mask.shape[dim])


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Tensor | None:
    """What transformers registers as the mask function of "clearhead": its own `sdpa_mask` in O(n); args as there.

    There, None may stand for "causal or everything, as the module says", and not every module says it right. A lazy
    mask costs nothing, so here there always is one.
    """
    if torch.compiler.is_compiling():
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size,  # pyright: ignore[reportArgumentType]
            allow_is_causal_skip, allow_is_bidirectional_skip, use_vmap, device,
        )  # fmt: skip
    place = Place(batch_size, q_length, kv_length, int(q_offset), kv_offset, torch.device(device))
    try:
        mask = translate(mask_function, place)
        if attention_mask is not None:
            mask = both([mask, _padding(attention_mask, mask, place)])
    except UnknownFunctionError:
        mask = evaluate(mask_function, place, attention_mask, use_vmap)
    return LazyMask(mask, place)


def _padding(attention_mask: Tensor, mask: Mask | None, place: Place) -> Mask | None:
    """Hidden keys, but for those that causality hides anyway, such as the free places of a static cache."""
    allowed = place.keys_of(attention_mask.bool()).to(place.device)
    if isinstance(mask, Causal) or (isinstance(mask, Window) and mask.after == 0):
        allowed = allowed.clone()
        allowed[:, max(0, place.query_start + place.q_len) :] = True
    return hidden_keys(allowed)
