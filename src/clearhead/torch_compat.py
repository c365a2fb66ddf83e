"""Drop-in replacement of `torch.nn.MultiheadAttention`: same signature, state dict and masks (True = ignore).

Import `MultiheadAttention` from here, or call `replace_attention(model)` on an existing model.
"""

from __future__ import annotations

import warnings
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from clearhead._utils.checks import check_int, check_truth, describe
from clearhead._utils.tensor_checks import (
    FLOAT_DTYPES,
    check_dense_tensor,
    check_device,
    check_float_dtype,
    check_float_tensor,
    reject_inference_tensor,
)
from clearhead._utils.torch_internals import in_functorch_transform, is_jit_tracing
from clearhead.functional import attention
from clearhead.nn.head import join_heads, split_heads
from clearhead.ops.arguments import check_dropout
from clearhead.ops.masks import And, Causal, Dense, Documents, Mask, Padding

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with the same arguments, parameters, outputs and gradients, computed by clearhead.

    It differs from torch only where torch's result depends on the code path:

    - A query that may attend to no key has weights 0 and head outputs 0. torch may return NaN.
    - `attn_mask` always applies. The hint `is_causal` only makes a causal `attn_mask` faster.
    - `is_causal` without `attn_mask` raises an error. torch raises on one path and ignores it on another.
    - Returned weights are those before dropout, so their rows sum to 1.
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        dropout=0.0,
        bias=True,
        add_bias_kv=False,
        add_zero_attn=False,
        kdim=None,
        vdim=None,
        batch_first=False,
        device=None,
        dtype=None,
    ) -> None:
        embed_dim, num_heads = check_int("embed_dim", embed_dim), check_int("num_heads", num_heads)
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim is {embed_dim}; expected a multiple of num_heads {num_heads}")
        switches = {"bias": bias, "add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn}
        switches["batch_first"] = batch_first
        super().__init__(
            embed_dim,
            num_heads,
            check_dropout(dropout),
            kdim=None if kdim is None else check_int("kdim", kdim),
            vdim=None if vdim is None else check_int("vdim", vdim),
            device=check_device("device", device),
            dtype=check_float_dtype("dtype", dtype),
            **{name: check_truth(name, value) for name, value in switches.items()},
        )
        _disable_fast_path(self)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the weights if `need_weights`, averaged over heads if `average_attn_weights`."""
        need_weights = check_truth("need_weights", need_weights)
        average_attn_weights = check_truth("average_attn_weights", average_attn_weights)
        is_causal = check_truth("is_causal", is_causal)
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if not isinstance(tensor, Tensor):
                raise TypeError(f"{name} is {describe(tensor)}; expected a tensor [batch, length, {name}'s width]")
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, which is None; pass the causal mask as attn_mask")
        if query.is_nested or key.is_nested or value.is_nested:
            if query is not key or key is not value or attn_mask is not None or key_padding_mask is not None:
                raise ValueError("query is nested; expected self-attention without masks: it has no padding")
            if self.bias_k is not None or self.add_zero_attn:
                raise ValueError("query is nested; expected a layer without add_bias_kv and add_zero_attn, as in torch")
            return self._attend_nested(query, need_weights, average_attn_weights)
        batched = query.ndim == 3
        self._check_shapes(query, key, value)
        sequence_first = batched and not self.batch_first

        def as_heads(projected: Tensor) -> Float[Tensor, "batch heads n head_dim"]:
            if sequence_first:
                projected = projected.transpose(0, 1)
            return split_heads(projected if batched else projected[None], self.head_dim)

        queries, keys, values = (as_heads(projected) for projected in self._project(query, key, value))
        if key_padding_mask is not None and not batched:
            key_padding_mask = check_dense_tensor("key_padding_mask", key_padding_mask, "a tensor [kv_len]")[None]
        extra = int(self.bias_k is not None) + int(self.add_zero_attn)
        mask, bias = _translate_masks(attn_mask, key_padding_mask, is_causal, queries, keys, extra)
        keys, values = self._with_extra_keys(keys, values)
        attended, weights = self._attend(queries, keys, values, mask, bias, need_weights, average_attn_weights)
        joined = join_heads(attended)
        output = self.out_proj(joined.transpose(0, 1) if sequence_first else joined if batched else joined[0])
        return output, weights if batched or weights is None else weights[0]

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Project by W_Q, W_K and W_V, in one product if all three read the same tensor."""
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            return linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        else:
            weights = self.in_proj_weight.chunk(3)
        return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))

    def _with_extra_keys(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys of `add_bias_kv` and `add_zero_attn`, one each, which every query may attend to."""
        batch = keys.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            extra_key, extra_value = (
                split_heads(bias, self.head_dim).expand(batch, -1, -1, -1) for bias in (self.bias_k, self.bias_v)
            )
            keys = torch.cat([keys, extra_key.to(keys.dtype)], dim=2)
            values = torch.cat([values, extra_value.to(values.dtype)], dim=2)
        if self.add_zero_attn:
            keys, values = pad(keys, (0, 0, 0, 1)), pad(values, (0, 0, 0, 1))
        return keys, values

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Mask | None,
        bias: Tensor | None,
        need_weights: bool,
        average: bool,
    ) -> tuple[Float[Tensor, "batch heads q_len head_dim"], Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            return attention(queries, keys, values, mask=mask, bias=bias, dropout=dropout, query_start=0), None
        # the dense weights are returned anyway, so a fused kernel would compute them a second time
        weights = _dense_weights(queries, keys, mask, bias)
        heads = (torch.dropout(weights, dropout, train=True) if dropout else weights) @ values
        return heads, weights.mean(dim=1) if average else weights

    def _attend_nested(self, x: Tensor, need_weights: bool, average: bool) -> tuple[Tensor, Tensor | None]:
        """Return a nested output for sequences of unequal length, and padded weights, which are 0 in the padding."""
        lengths = [text.shape[0] for text in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        queries, keys, values = (split_heads(t, self.head_dim) for t in self._project(padded, padded, padded))
        if need_weights:  # unlike Padding, Documents also gives padding queries weights of 0
            mask: Mask = Documents([[length] for length in lengths])
        else:
            mask = Padding(lengths)
        heads, weights = self._attend(queries, keys, values, mask, None, need_weights, average)
        output = self.out_proj(join_heads(heads))
        texts = [text[:length] for text, length in zip(output, lengths, strict=True)]
        return torch.nested.as_nested_tensor(texts, layout=x.layout), weights

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        widths = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        weight = self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_float_tensor(name, tensor, "a tensor [batch, length, width]")
            if tensor.device != weight.device:
                raise ValueError(
                    f"{name} is on {tensor.device}, but the layer is on {weight.device}; expected the same device"
                )
            if weight.requires_grad:
                reject_inference_tensor(name, tensor)
            if tensor.dtype != weight.dtype and not torch.is_autocast_enabled(tensor.device.type):
                raise TypeError(
                    f"{name} has dtype {tensor.dtype}, but the layer's parameters have {weight.dtype}; expected the"
                    f" same: {name}.to({weight.dtype}) or layer.to({tensor.dtype})"
                )
        if query.ndim not in (2, 3):
            raise ValueError(f"query has {query.ndim} axes; expected 3, or 2 for a single sequence without a batch")
        for (name, width), tensor in zip(widths.items(), (query, key, value), strict=True):
            if tensor.ndim != query.ndim:
                raise ValueError(f"{name} has {tensor.ndim} axes, but query has {query.ndim}; expected the same")
            if tensor.shape[-1] != width:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {width} columns")
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}; expected equal lengths")
        batch_axis = 0 if self.batch_first else 1
        if query.ndim == 3 and key.shape[batch_axis] != query.shape[batch_axis]:
            batches = query.shape[batch_axis], key.shape[batch_axis]
            raise ValueError(f"query has batch {batches[0]} and key {batches[1]}; expected the same")


def replace_attention(model: ModuleT) -> ModuleT:
    """Replace every `nn.MultiheadAttention` of a model by clearhead's, in place, and return the model.

    This includes layers of `nn.TransformerEncoder` and `nn.TransformerDecoder`. Parameters stay the same objects, so
    optimizers, hooks and state dicts keep working. A subclass of `nn.MultiheadAttention` is not replaced and causes a
    warning.

    Raises:
        ValueError: if the model contains no `nn.MultiheadAttention`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {describe(model)}; expected a torch module")
    has_attention = False
    for name, module in model.named_modules():
        if type(module) is nn.MultiheadAttention:
            # A new module set on the parent would lose the hooks of the old one, and other references to it (a tied
            # layer, a list of layers) would still point to the old one.
            module.__class__ = MultiheadAttention
            _disable_fast_path(module)
        elif isinstance(module, nn.MultiheadAttention) and not isinstance(module, MultiheadAttention):
            warnings.warn(
                f"{name or 'model'} is a {type(module).__name__}, a subclass of nn.MultiheadAttention that may override"
                " its methods; it was not replaced",
                stacklevel=2,
            )
        has_attention = has_attention or isinstance(module, nn.MultiheadAttention)
    if not has_attention:
        raise ValueError(f"model is a {type(model).__name__} without nn.MultiheadAttention; expected at least one")
    return model


def _disable_fast_path(module: nn.Module) -> None:
    """Make torch's encoder layer call the module in eval mode, instead of computing attention from its weights.

    The encoder layer takes its fast path only if the attention module has no hooks. The alternative,
    `torch.backends.mha.set_fastpath_enabled(False)`, would affect every model in the process.
    """
    module.register_forward_pre_hook(_do_nothing)


def _do_nothing(module: nn.Module, inputs: tuple) -> None:
    """Do nothing: the presence of a forward pre-hook disables torch's fast path."""


def _translate_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    queries: Float[Tensor, "batch heads q_len dim"],
    keys: Float[Tensor, "batch heads kv_len dim"],
    extra: int,
) -> tuple[Mask | None, Tensor | None]:
    """Translate torch's masks (True = ignore, floats are added) into a mask (True = may attend) and a bias.

    Both are padded for `extra` keys, which are appended later and visible to every query.
    """
    batch, heads, q_len, _ = queries.shape
    kv_len = keys.shape[2]
    masks: dict[str, Tensor] = {}
    causal = None
    if attn_mask is not None:
        attn_mask = check_dense_tensor("attn_mask", attn_mask, "a tensor [q_len, kv_len]")
        if attn_mask.shape not in ((q_len, kv_len), (batch * heads, q_len, kv_len)):
            raise ValueError(
                f"attn_mask has shape {tuple(attn_mask.shape)}; expected {(q_len, kv_len)}"
                f" or {(batch * heads, q_len, kv_len)}"
            )
        if is_causal and not extra and _is_causal(attn_mask):
            causal = Causal()
        else:
            masks["attn_mask"] = attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (batch, heads))
    if key_padding_mask is not None:
        key_padding_mask = check_dense_tensor("key_padding_mask", key_padding_mask, "a tensor [batch, kv_len]")
        if key_padding_mask.shape != (batch, kv_len):
            raise ValueError(f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; expected {(batch, kv_len)}")
        masks["key_padding_mask"] = key_padding_mask[:, None, None]
    allowed: Tensor | None = None
    bias: Tensor | None = None
    for name, mask in masks.items():
        if mask.device != queries.device:
            raise ValueError(f"{name} is on {mask.device}, but query is on {queries.device}; expected the same device")
        if mask.dtype == torch.bool:
            padded = pad(~mask, (0, extra), value=True)
            allowed = padded if allowed is None else allowed & padded
        elif mask.dtype in FLOAT_DTYPES:
            padded = pad(mask.to(queries.dtype), (0, extra))
            bias = padded if bias is None else bias + padded
        else:
            raise TypeError(f"{name} has dtype {mask.dtype}; expected torch.bool (True = ignore) or a float dtype")
    if allowed is None:
        return causal, bias
    return Dense(allowed) if causal is None else And(causal, Dense(allowed)), bias


def _dense_weights(
    queries: Float[Tensor, "batch heads q_len dim"],
    keys: Float[Tensor, "batch heads kv_len dim"],
    mask: Mask | None,
    bias: Tensor | None,
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Return the dense weights, in as few passes over the matrix as torch; a row without a key is 0."""
    batch, heads, q_len, dim = queries.shape
    kv_len = keys.shape[2]
    query, key = queries.flatten(0, 1) * dim**-0.5, keys.flatten(0, 1)
    additive_mask = bias
    if mask is not None:
        allowed = mask.dense(q_len, kv_len, 0)
        hidden = torch.zeros_like(allowed, dtype=queries.dtype).masked_fill_(~allowed, -torch.inf)
        additive_mask = hidden if bias is None else bias + hidden
    if additive_mask is None:
        return _softmax(query @ key.mT).unflatten(0, (batch, heads))
    additive_mask = additive_mask[(None,) * (4 - additive_mask.ndim)]
    has_key = (additive_mask > -torch.inf).any(dim=-1, keepdim=True)
    # the softmax of a row of -inf is nan, so such a row gets a mask of 0 and its weights are multiplied by 0
    additive_mask = torch.where(has_key, additive_mask, 0.0).expand(batch, heads, -1, -1).flatten(0, 1)
    weights = _softmax(torch.baddbmm(additive_mask, query, key.mT)).unflatten(0, (batch, heads))
    # read only on the CPU: on a GPU it would synchronize
    all_have_keys = has_key.device.type == "cpu" and not _is_traced() and bool(has_key.all())
    return weights if all_have_keys else weights * has_key


def _softmax(scores: Float[Tensor, "batch q_len kv_len"]) -> Float[Tensor, "batch q_len kv_len"]:
    """Compute the softmax, in place if no gradient is recorded: allocating memory costs as much as the arithmetic."""
    in_place = not (torch.is_grad_enabled() or _is_traced())
    return torch.softmax(scores, dim=-1, out=scores) if in_place else torch.softmax(scores, dim=-1)


def _is_causal(mask: Tensor) -> bool:
    """Return whether an attention mask hides exactly the later keys; False if its values cannot be read."""
    if mask.ndim != 2 or mask.requires_grad or _is_traced() or mask.device.type == "meta":
        return False
    later = torch.ones(mask.shape, dtype=torch.bool, device=mask.device).triu(1)
    if mask.dtype == torch.bool:
        return torch.equal(mask, later)
    return torch.equal(mask, torch.zeros_like(mask).masked_fill_(later, -torch.inf))


def _is_traced() -> bool:
    """Return whether tensor values cannot be read: while compiling, while tracing, or under vmap."""
    return torch.compiler.is_compiling() or in_functorch_transform() or is_jit_tracing()
