"""Valid calls of every public callable, whose arguments `wrong_calls.py` replaces one at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from clearhead import (
    ALiBi,
    AttentionWeights,
    Causal,
    Dense,
    Documents,
    KVCache,
    MultiHeadAttention,
    Padding,
    Prefix,
    Window,
    attention,
)
from clearhead.distributed import (
    ZigzagLayout,
    context_parallel_attention,
    gather,
    parallelize_heads,
    sharded_kv_attention,
    tensor_parallel_plan,
)
from clearhead.explain import load_draft, parse_draft
from clearhead.nn import LinearScaling, Llama3, Rotary, WindowedKVCache, YaRN, sinusoidal
from clearhead.ops.alibi import alibi_slopes
from clearhead.torch_compat import MultiheadAttention, replace_attention
from clearhead.translation import Config, Transformer
from clearhead.translation.config import ModelConfig, TrainingConfig
from support.paths import ROOT
from support.public_model_calls import heads_calls, intervention_calls, model_calls
from support.wrong_calls import Call


def tensors(**options: Any) -> dict[str, Any]:
    """Return queries, keys and values of 2 sequences, with grouped heads."""
    return {
        "query": torch.randn(2, 6, 5, 7),
        "key": torch.randn(2, 3, 11, 7),
        "value": torch.randn(2, 3, 11, 7),
        **options,
    }


def weights(**options: Any) -> AttentionWeights:
    return attention(**tensors(mask=Causal(), **options), return_weights=True)[1]


def small() -> MultiHeadAttention:
    return MultiHeadAttention(12, 4, kv_heads=2)


def rotated() -> MultiHeadAttention:
    return MultiHeadAttention(16, 4, rope=True)


def transformer() -> Transformer:
    return Transformer(ModelConfig(d_model=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=16), 11)


def filled_cache() -> KVCache:
    cache = KVCache(16)
    cache.append(torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 7))
    return cache


def method_of(make: Callable[[], object], method: str) -> Callable[..., object]:
    """Return a function that creates an object and calls its method."""
    return lambda **arguments: getattr(make(), method)(**arguments)


def attention_calls() -> list[Call]:
    mask = torch.ones(5, 11, dtype=torch.bool)
    every: dict[str, Any] = {
        "scale": 0.5,
        "softcap": None,
        "dropout": 0.0,
        "query_start": None,
        "return_weights": False,
        "backend": "auto",
    }
    same = {"query": ("key", "mask", "bias")}  # a misfit of query may be reported for these
    found = [
        Call("attention", attention, lambda: tensors(mask=None, bias=None, sinks=None, **every), same),
        Call(
            "attention in training",
            attention,
            lambda: {name: tensor.requires_grad_() for name, tensor in tensors().items()},
            same,
        ),
        Call(
            "attention with everything",
            attention,
            lambda: tensors(
                mask=mask.clone(),
                bias=torch.randn(6, 5, 11),
                sinks=torch.randn(6),
                **{**every, "softcap": 3.0, "dropout": 0.5, "return_weights": True},
            ),
            same,
        ),
        Call("attention with starts", attention, lambda: tensors(mask=Causal(), query_start=torch.tensor([3, 6]))),
    ]
    for backend in ("sdpa", "streaming", "reference"):
        found.append(
            Call(
                f"attention by {backend}",
                attention,
                lambda backend=backend: tensors(bias=torch.randn(5, 11), backend=backend),
                same,
            )
        )
    return found


def mask_calls() -> list[Call]:
    lengths = {"q_len": 3, "kv_len": 5, "query_start": None}
    operand = {"other": ("right operand",)}
    return [
        Call("Causal", Causal, dict),
        Call("Window", Window, lambda: {"before": 3, "after": 1}),
        Call("Padding", Padding, lambda: {"lengths": torch.tensor([3, 5]), "side": "left"}),
        Call("Padding.left", Padding.left, lambda: {"lengths": [3, 5]}),
        Call("Documents", Documents, lambda: {"lengths": [[3, 5], [1]]}),
        Call("Documents of a tensor", Documents, lambda: {"lengths": torch.tensor([[3, 5], [2, 2]])}),
        Call("Prefix", Prefix, lambda: {"length": 3}),
        Call("Dense", Dense, lambda: {"allowed": torch.ones(3, 5, dtype=torch.bool)}),
        *(Call(f"Causal().{name}", getattr(Causal(), name), lambda: dict(lengths)) for name in ("ranges", "dense")),
        Call("Causal().picture", Causal().picture, lambda: dict(lengths)),
        Call("mask & other", lambda other: Causal() & other, lambda: {"other": Prefix(3)}, aliases=operand),
        Call("mask | other", lambda other: Causal() | other, lambda: {"other": Prefix(3)}, aliases=operand),
        Call("ALiBi", ALiBi, lambda: {"slopes": torch.rand(3)}),
        Call("ALiBi of a list", ALiBi, lambda: {"slopes": [0.5, 0.25]}),
    ]


def layer_calls() -> list[Call]:
    sizes: dict[str, Any] = {
        "d_model": 12,
        "heads": 4,
        "kv_heads": 2,
        "key_dim": 4,
        "value_dim": 5,
        "kv_input_dim": 8,
        "output_dim": 9,
        "bias": True,
        "dropout": 0.1,
        "split": "project",
        "rope": None,
        "qk_norm": True,
        "scale": 0.5,
        "softcap": 2.0,
        "sinks": True,
        "device": None,
        "dtype": None,
    }
    given: dict[str, Any] = {"mask": None, "bias": None, "query_start": None, "ablate": None, "return_weights": False}
    return [
        Call("MultiHeadAttention", MultiHeadAttention, lambda: dict(sizes)),
        Call("MultiHeadAttention, two sizes", MultiHeadAttention, lambda: {"d_model": 12, "heads": 4}),
        Call("MultiHeadAttention, slices", MultiHeadAttention, lambda: {"d_model": 12, "heads": 4, "split": "slice"}),
        Call("layer", small(), lambda: {"x": torch.randn(2, 5, 12), "memory": torch.randn(2, 7, 12), **given}),
        Call("layer alone", small(), lambda: {"x": torch.randn(2, 5, 12), "mask": Causal()}),
        Call("layer, slices", MultiHeadAttention(12, 4, split="slice"), lambda: {"x": torch.randn(2, 5, 12)}),
        Call(
            "layer with a cache",
            lambda **arguments: MultiHeadAttention(21, 3)(**arguments),
            lambda: {"x": torch.randn(2, 5, 21), "cache": filled_cache(), "mask": Causal()},
        ),
        Call("layer with rope", rotated(), lambda: {"x": torch.randn(2, 5, 16), "positions": torch.arange(5)}),
        Call("layer.head", small().head, lambda: {"index": 1}),
        Call("layer.drop_heads", small().drop_heads, lambda: {"heads": [1]}),
        Call("layer.from_torch", MultiHeadAttention.from_torch, lambda: {"module": nn.MultiheadAttention(8, 2)}),
        Call("Rotary", Rotary, lambda: {"base": 1e4, "layout": "half", "dims": 4, "scaling": None}),
        Call("rotary", Rotary(), lambda: {"x": torch.randn(2, 3, 5, 8), "positions": torch.arange(5)}),
        Call("LinearScaling", LinearScaling, lambda: {"factor": 2.0}),
        Call(
            "Llama3",
            Llama3,
            lambda: {"factor": 2.0, "original_length": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        Call("YaRN", YaRN, lambda: {"factor": 2.0, "original_length": 64, "beta_slow": 1.0, "beta_fast": 4.0}),
        Call(
            "sinusoidal",
            sinusoidal,
            lambda: {"positions": torch.arange(3), "dim": 4, "base": 1e4, "dtype": torch.float64},
        ),
        Call("alibi_slopes", alibi_slopes, lambda: {"heads": 3}),
    ]


def cache_calls() -> list[Call]:
    def new() -> dict[str, Tensor]:
        return {"key": torch.randn(2, 3, 1, 7), "value": torch.randn(2, 3, 1, 7)}

    return [
        Call("KVCache", KVCache, lambda: {"capacity": 8, "grow": True}),
        Call("WindowedKVCache", WindowedKVCache, lambda: {"window": 8}),
        Call("cache.positions", method_of(filled_cache, "positions"), lambda: {"count": 3, "device": None}),
        Call("cache.update", method_of(filled_cache, "update"), lambda: {**new(), "immutable": False}),
        Call("cache.append", method_of(filled_cache, "append"), lambda: {**new(), "immutable": False}),
        Call("empty cache.append", method_of(KVCache, "append"), lambda: {**new(), "immutable": False}),
        Call("cache.commit", method_of(filled_cache, "commit"), lambda: {"view": filled_cache().update(**new())}),
        Call("cache.truncate", method_of(filled_cache, "truncate"), lambda: {"lengths": torch.tensor([3, 5])}),
        Call("cache.select", method_of(filled_cache, "select"), lambda: {"sequences": torch.tensor([1, 0, 1])}),
        Call("empty cache.truncate", method_of(KVCache, "truncate"), lambda: {"lengths": 0}, {"lengths": ("cache",)}),
        Call("windowed cache.append", method_of(lambda: WindowedKVCache(4), "append"), new),
    ]


def weights_calls() -> list[Call]:
    folder = Path(tempfile.mkdtemp())
    weights().save(folder / "weights")
    statistics = {"entropy": True, "received": True, "distance": True, "top": 2, "pool": (2, 2), "reduce": "mean"}
    axes = ("index", "indices", "slice")

    def index(part: object) -> Tensor:
        return weights()[part]

    def every(name: str) -> Call:
        return Call(f"weights.{name}()", method_of(weights, name), dict)

    return [
        Call("AttentionWeights", AttentionWeights, lambda: {"call": weights()._call, "lse": weights().lse}),
        Call("weights[part]", index, lambda: {"part": (0, 1)}, {"part": axes}),
        Call("weights[0, part]", lambda part: weights()[0, part], lambda: {"part": 1}, {"part": axes}),
        Call(
            "weights[:, part]",
            lambda part: weights()[:, part],
            lambda: {"part": torch.tensor([0, 3])},
            {"part": (*axes, "mask")},
        ),
        Call("weights.scores[part]", lambda part: weights().scores[part], lambda: {"part": (0, 1)}, {"part": axes}),
        Call("weights.size", method_of(weights, "size"), lambda: {"dim": 1}),
        Call("weights.dense", method_of(weights, "dense"), lambda: {"limit": 10_000}),
        Call("weights.diagonal", method_of(weights, "diagonal"), lambda: {"offset": -1}),
        Call("weights.topk", method_of(weights, "topk"), lambda: {"k": 2}),
        Call("weights.observe", method_of(weights, "observe"), lambda: dict(statistics), {"pool": ("rows", "cols")}),
        Call(
            "weights.pool",
            method_of(weights, "pool"),
            lambda: {"rows": 2, "cols": 3, "reduce": "max", "window": ((0, 3), (1, 5))},
        ),
        Call(
            "weights.part",
            method_of(weights, "part"),
            lambda: {"batch": 0, "heads": [1, 2], "queries": slice(0, 3)},
            {"queries": ("q_len",)},
        ),
        Call("weights.hiding", method_of(weights, "hiding"), lambda: {"keys": [0, 1]}, {"keys": ("kv_len",)}),
        Call("weights.to", method_of(weights, "to"), lambda: {"device": "cpu", "dtype": None}),
        Call("weights.save", method_of(weights, "save"), lambda: {"path": folder / "again"}),
        Call("AttentionWeights.load", AttentionWeights.load, lambda: {"path": folder / "weights", "device": "cpu"}),
        *map(every, ("entropy", "received", "distance", "detach", "cpu", "without_values")),
    ]


def torch_calls() -> list[Call]:
    sizes: dict[str, Any] = {
        "embed_dim": 12,
        "num_heads": 4,
        "dropout": 0.1,
        "bias": True,
        "add_bias_kv": False,
        "add_zero_attn": False,
        "kdim": 12,
        "vdim": 12,
        "batch_first": True,
        "device": None,
        "dtype": None,
    }
    masks = {"key_padding_mask": torch.zeros(2, 7, dtype=torch.bool), "attn_mask": torch.zeros(5, 7)}
    flags = {"need_weights": True, "average_attn_weights": True, "is_causal": False}

    def given(*names: str) -> dict[str, Any]:
        inputs = {"query": torch.randn(2, 5, 12), "key": torch.randn(2, 7, 12), "value": torch.randn(2, 7, 12)}
        return inputs | {name: masks[name].clone() for name in names} | flags

    same = dict.fromkeys(("query", "key", "value"), ("query", "key", "value", "attn_mask"))
    return [
        Call("torch_compat.MultiheadAttention", MultiheadAttention, lambda: dict(sizes)),
        Call("torch_compat layer", MultiheadAttention(12, 4, batch_first=True).eval(), given, same),
        Call(
            "torch_compat layer with masks",
            MultiheadAttention(12, 4, batch_first=True).eval(),
            lambda: given("key_padding_mask", "attn_mask"),
            same,
        ),
        Call(
            "torch_compat layer without weights",
            MultiheadAttention(12, 4, batch_first=True).eval(),
            lambda: given("attn_mask") | {"need_weights": False},
            same,
        ),
        Call("replace_attention", replace_attention, lambda: {"model": nn.TransformerEncoderLayer(8, 2)}),
    ]


def parallel_calls() -> list[Call]:
    """Return the calls of `clearhead.distributed`. Some need a process group, such as the fixture `one_rank`."""
    layout = ZigzagLayout(10, 2)
    found = [
        Call("ZigzagLayout", ZigzagLayout, lambda: {"length": 10, "ranks": 2}),
        Call("layout.chunks", layout.chunks, lambda: {"rank": 1}),
        Call("layout.count", layout.count, lambda: {"rank": 1}),
        Call(
            "layout.shard",
            layout.shard,
            lambda: {"tensor": torch.randn(2, 10, 3), "rank": 1, "dim": -2},
            {"tensor": ("dim",), "dim": ("axis",)},
        ),
        Call(
            "layout.unshard",
            layout.unshard,
            lambda: {"shards": [torch.randn(2, layout.count(rank), 3) for rank in (0, 1)], "dim": -2},
        ),
    ]
    if not distributed.is_initialized():
        return found
    mesh = init_device_mesh("cpu", (1,))

    def given(**options: Any) -> dict[str, Any]:
        whole = {name: torch.randn(2, 6, 5, 7) for name in ("query", "key", "value")}
        whole |= {"layout": ZigzagLayout(5, 1), "bias": torch.randn(6, 5, 5), "sinks": torch.randn(6)}
        return whole | {"mask": torch.ones(5, 5, dtype=torch.bool), "scale": 0.5, "softcap": 2.0} | options

    group = {"group": None, "backend": "auto"}
    fit = {"query": ("bias", "key", "sinks")}
    return [
        *found,
        Call(
            "context_parallel_attention", context_parallel_attention, lambda: given(return_weights=True, **group), fit
        ),
        Call("sharded_kv_attention", sharded_kv_attention, lambda: given(query_start=0, **group), fit),
        Call("tensor_parallel_plan", tensor_parallel_plan, lambda: {"layer": small(), "mesh": mesh}),
        Call("parallelize_heads", parallelize_heads, lambda: {"layer": small(), "mesh": mesh}),
        Call("gather", gather, lambda: {"statistics": torch.randn(2, 3, 5), "mesh": mesh}),
    ]


def transformer_calls() -> list[Call]:
    def texts() -> dict[str, Any]:
        return {"source": torch.randint(11, (2, 5)), "target": torch.randint(11, (2, 3))}

    return [
        Call("Config", Config, lambda: {"model": Config().model, "training": Config().training, "text": Config().text}),
        Call("ModelConfig", lambda **given: Config(model=ModelConfig(**given)), lambda: asdict(ModelConfig())),
        Call(
            "TrainingConfig", lambda **given: Config(training=TrainingConfig(**given)), lambda: asdict(TrainingConfig())
        ),
        Call("Config.from_dict", Config.from_dict, lambda: {"table": {"model": {"heads": 2}}}, {"table": ("key",)}),
        Call(
            "Config.from_file", Config.from_file, lambda: {"path": "no_such_file"}, {"path": ("there is no such file",)}
        ),
        Call("Transformer", Transformer, lambda: {"config": Config().model, "vocabulary": 11}),
        Call(
            "transformer",
            transformer().eval(),
            lambda: {**texts(), "lengths": torch.tensor([5, 3]), "ablate": (), "return_weights": False},
        ),
    ]


def reading_calls() -> list[Call]:
    text = "X = [[1, 2], [3, 4]]"
    path = ROOT / "tests" / "explain" / "reading" / "three-errors.md"
    return [
        Call(
            "parse_draft",
            parse_draft,
            lambda: {"text": text, "name": "a.md", "answers": {1: "input"}},
            {"text": ("no matrices", "answers")},
        ),
        Call("load_draft", load_draft, lambda: {"path": path, "answers": None}, {"path": ("neither a file",)}),
    ]


def calls() -> list[Call]:
    return [
        *attention_calls(),
        *mask_calls(),
        *layer_calls(),
        *cache_calls(),
        *weights_calls(),
        *torch_calls(),
        *parallel_calls(),
        *transformer_calls(),
        *model_calls(),
        *heads_calls(),
        *intervention_calls(),
        *reading_calls(),
    ]
