"""The same weights in torch's arrangement: what `nn.MultiheadAttention` packs together stands apart in ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.nn._projections import Projections
from clearhead.nn.head import heads_columns

NAMES = ("query", "key", "value")


def read(module: nn.MultiheadAttention) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options and the parameters of a `MultiHeadAttention` that does what a torch module does."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"module is a {type(module).__name__}; expected a torch.nn.MultiheadAttention")
    has = {
        "add_bias_kv": module.bias_k is not None,
        "add_zero_attn": module.add_zero_attn,
        f"kdim {module.kdim} and vdim {module.vdim} that differ": module.kdim != module.vdim,
    }
    if any(has.values()):
        reasons = " and ".join(reason for reason, true in has.items() if true)
        raise ValueError(
            f"module has {reasons}, which MultiHeadAttention does not know;"
            " clearhead.torch_compat.MultiheadAttention does"
        )
    packed, biases = module.in_proj_weight, module.in_proj_bias
    with torch.enable_grad():  # so that each part knows whether it is to be trained
        if packed is None:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        else:
            weights = packed.chunk(3)
        state = {f"{name}.weight": weight for name, weight in zip(NAMES, weights, strict=True)}
        state["output.weight"] = module.out_proj.weight
        if biases is not None:
            state |= {f"{name}.bias": part for name, part in zip(NAMES, biases.chunk(3), strict=True)}
            state["output.bias"] = module.out_proj.bias
    options: dict[str, Any] = {
        "d_model": module.embed_dim,
        "heads": module.num_heads,
        "kv_input_dim": module.kdim,
        "bias": biases is not None,
        "dropout": module.dropout,
    }
    return options, state


def written(layer: Projections) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The options and the parameters of an `nn.MultiheadAttention` that does what a projected layer does."""
    widths = f"key_dim {layer.key_dim} and value_dim {layer.value_dim}, where d_model / heads is"
    has = {
        f"{widths} {layer.d_model / layer.heads:g}": {layer.key_dim, layer.value_dim} != {layer.d_model / layer.heads},
        f"output_dim {layer.output_dim} beside d_model {layer.d_model}": layer.output_dim != layer.d_model,
        "rope": layer.rope is not None,
        "qk_norm": layer.query_norm is not None,
        f"scale {layer.scale}": layer.scale is not None,
        f"softcap {layer.softcap}": layer.softcap is not None,
        "sinks": layer.sinks is not None,
    }
    if any(has.values()):
        reasons = " and ".join(reason for reason, true in has.items() if true)
        raise ValueError(f"this layer has {reasons}, which nn.MultiheadAttention does not know")
    group = layer.heads // layer.kv_heads
    rows = heads_columns([head // group for head in range(layer.heads)], layer.key_dim)  # a key head for every head
    held = layer.tensors()
    biased = "output.bias" in held
    with torch.enable_grad():

        def parts(kind: str) -> list[Tensor]:
            return [held[f"query.{kind}"], held[f"key.{kind}"][rows], held[f"value.{kind}"][rows]]

        state = {"out_proj.weight": held["output.weight"]}
        if layer.kv_input_dim == layer.d_model:
            state["in_proj_weight"] = torch.cat(parts("weight"))
        else:
            state |= {f"{name[0]}_proj_weight": part for name, part in zip(NAMES, parts("weight"), strict=True)}
        if biased:
            state |= {"in_proj_bias": torch.cat(parts("bias")), "out_proj.bias": held["output.bias"]}
    options: dict[str, Any] = {
        "embed_dim": layer.d_model,
        "num_heads": layer.heads,
        "dropout": layer.dropout,
        "bias": biased,
        "kdim": layer.kv_input_dim,
        "vdim": layer.kv_input_dim,
        "batch_first": True,
    }
    return options, state
