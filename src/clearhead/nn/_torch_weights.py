"""Conversion between the packed parameters of `nn.MultiheadAttention` and the four projections of clearhead's layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.nn.head import heads_columns

PROJECTIONS = ("query", "key", "value")


def unpack_torch(module: nn.MultiheadAttention) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the options and parameters of the `MultiHeadAttention` equivalent to a torch module."""
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
            f"module has {reasons}, which MultiHeadAttention does not support;"
            " use clearhead.torch_compat.MultiheadAttention"
        )
    packed, biases = module.in_proj_weight, module.in_proj_bias
    with torch.enable_grad():  # otherwise chunks would not inherit requires_grad
        if packed is None:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        else:
            weights = packed.chunk(3)
        parameters = {f"{name}.weight": weight for name, weight in zip(PROJECTIONS, weights, strict=True)}
        parameters["output.weight"] = module.out_proj.weight
        if biases is not None:
            parameters |= {f"{name}.bias": bias for name, bias in zip(PROJECTIONS, biases.chunk(3), strict=True)}
            parameters["output.bias"] = module.out_proj.bias
    options: dict[str, Any] = {
        "d_model": module.embed_dim,
        "heads": module.num_heads,
        "kv_input_dim": module.kdim,
        "bias": biases is not None,
        "dropout": module.dropout,
    }
    return options, parameters


def pack_torch(
    options: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the options and parameters of the `nn.MultiheadAttention` equivalent to a layer with split="project"."""
    _check_has_torch_form(options)
    heads, d_model, kv_input_dim = options["heads"], options["d_model"], options["kv_input_dim"]
    group = heads // options["kv_heads"]
    rows = heads_columns([head // group for head in range(heads)], options["key_dim"])  # one key head per query head

    def packed(kind: str) -> list[Tensor]:
        return [parameters[f"query.{kind}"], parameters[f"key.{kind}"][rows], parameters[f"value.{kind}"][rows]]

    with torch.enable_grad():
        torch_parameters = {"out_proj.weight": parameters["output.weight"]}
        if kv_input_dim == d_model:
            torch_parameters["in_proj_weight"] = torch.cat(packed("weight"))
        else:
            names = [f"{name[0]}_proj_weight" for name in PROJECTIONS]
            torch_parameters |= dict(zip(names, packed("weight"), strict=True))
        if options["bias"]:
            torch_parameters["in_proj_bias"] = torch.cat(packed("bias"))
            torch_parameters["out_proj.bias"] = parameters["output.bias"]
    torch_options: dict[str, Any] = {
        "embed_dim": d_model,
        "num_heads": heads,
        "dropout": options["dropout"],
        "bias": options["bias"],
        "kdim": kv_input_dim,
        "vdim": kv_input_dim,
        "batch_first": True,
    }
    return torch_options, torch_parameters


def _check_has_torch_form(options: Mapping[str, Any]) -> None:
    d_model, key_dim, value_dim, output_dim = (
        options[name] for name in ("d_model", "key_dim", "value_dim", "output_dim")
    )
    head_dim = d_model / options["heads"]
    has = {
        f"key_dim {key_dim} and value_dim {value_dim}, where d_model / heads is {head_dim:g}": {key_dim, value_dim}
        != {head_dim},
        f"output_dim {output_dim} ≠ d_model {d_model}": output_dim != d_model,
        "rope": options["rope"] is not None,
        "qk_norm": options["qk_norm"],
        f"scale {options['scale']}": options["scale"] is not None,
        f"softcap {options['softcap']}": options["softcap"] is not None,
        "sinks": options["sinks"],
    }
    if any(has.values()):
        reasons = " and ".join(reason for reason, true in has.items() if true)
        raise ValueError(f"this layer has {reasons}, which nn.MultiheadAttention does not support")
