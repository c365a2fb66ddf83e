"""Attention calls at real sizes on a GPU, and their equation in any dtype."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window
from clearhead.ops.arguments import build_call

BATCH, HEADS, KV_HEADS, QUERIES, KEYS = 2, 6, 2, 523, 787
UNION = Window(before=50) | (Causal() & Prefix(4))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


@contextmanager
def synchronization_forbidden() -> Iterator[None]:
    """Raise an error at an operation that waits for the GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@dataclass
class Setting:
    """Inputs of one attention call, and its equation in any dtype."""

    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    key_dim: int = 64
    value_dim: int = 64
    queries: int = QUERIES
    keys: int = KEYS

    def tensors(self) -> list[Tensor]:
        shapes = ((HEADS, self.queries, self.key_dim), (KV_HEADS, self.keys, self.key_dim))
        shapes += ((KV_HEADS, self.keys, self.value_dim),)
        return [normal(BATCH, *shape, seed=i, dtype=self.dtype).requires_grad_() for i, shape in enumerate(shapes)]

    def plain(self, tensors: list[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        query, key, value = (tensor.to(dtype) for tensor in tensors)
        key, value = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (key, value))
        options = self.options
        scores = query @ key.mT * options.get("scale", self.key_dim**-0.5)
        if "softcap" in options:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        start = options.get("query_start", self.keys - self.queries)
        start = start.view(-1, 1, 1, 1) if isinstance(start, Tensor) else start
        positions = start + torch.arange(self.queries, device="cuda")[:, None]
        distances = (positions - torch.arange(self.keys, device="cuda")).abs().expand(BATCH, 1, -1, -1)
        bias = options.get("bias")
        if isinstance(bias, ALiBi):
            scores = scores - (bias.slopes.double()[:, None, None] * distances).to(dtype)
        elif bias is not None:
            scores = scores + bias.to(dtype)
        if "mask" in options:
            call = build_call(*(t.detach() for t in tensors), **options)
            allowed = call.lower().allowed(self.queries, torch.arange(self.keys, device="cuda"))
            scores = torch.where(allowed, scores, -math.inf)
        sinks = options.get("sinks")
        sink = [] if sinks is None else [sinks.to(dtype)[:, None, None].expand(*scores.shape[:3], 1)]
        logits = torch.cat([scores, *sink], dim=-1)
        has_key = (logits > -math.inf).any(dim=-1, keepdim=True)
        weights = torch.softmax(torch.where(has_key, logits, 0.0), dim=-1)[..., : self.keys] * has_key
        wide = weights.to(torch.promote_types(dtype, torch.float32))
        return {
            "output": weights @ value,
            "lse": torch.logsumexp(logits.to(wide.dtype), dim=-1),
            "weights": wide,
            "entropy": torch.special.entr(wide).sum(dim=-1),
            "received": wide.sum(dim=-2),
            "distance": (wide * distances).sum(dim=-1),
        }


ALIBI = ALiBi(torch.linspace(0.01, 0.5, HEADS))
SETTINGS = {
    "plain": Setting(),
    "causal": Setting({"mask": Causal()}, key_dim=128, value_dim=128),
    "causal float16": Setting({"mask": Causal(), "query_start": 0}, dtype=torch.float16, key_dim=128, value_dim=128),
    "window": Setting({"mask": Window(before=100, after=3)}, key_dim=128, value_dim=64),
    "documents": Setting({"mask": Documents([[300, 0, 400], [87, 600]]) & Causal()}),
    "padding": Setting({"mask": Padding([787, 0])}, key_dim=40, value_dim=72),
    "union": Setting({"mask": UNION}, dtype=torch.float32, key_dim=32, value_dim=32),
    "dense": Setting({"mask": "dense"}, key_dim=16, value_dim=256),
    "wide": Setting({"mask": Causal()}, key_dim=256, value_dim=256),
    "float32": Setting({"mask": Causal()}, dtype=torch.float32, key_dim=128, value_dim=128),
    "odd width": Setting({"mask": Causal()}, key_dim=13, value_dim=7),
    "alibi": Setting({"bias": ALIBI, "mask": Causal()}),
    "softcap": Setting({"softcap": 2.0, "mask": Window(before=300)}),
    "sinks": Setting({"sinks": torch.linspace(-1, 3, HEADS), "mask": Causal()}),
    "bias": Setting({"bias": (1, HEADS, QUERIES, KEYS)}),
    "starts": Setting({"mask": Causal(), "query_start": torch.tensor([3, -20])}),
    "negative scale": Setting({"scale": -0.3, "mask": Causal()}),
    "one query": Setting({"mask": Padding([3000, 17])}, queries=1, keys=3001, key_dim=128, value_dim=128),
    "few queries": Setting({"mask": Causal(), "bias": ALIBI}, queries=5, keys=3001),
}


def on_gpu(setting: Setting) -> Setting:
    """Return the setting with its tensors created on the GPU or moved to it."""

    def move(value: Any) -> Any:
        if isinstance(value, ALiBi):
            return ALiBi(value.slopes.cuda().requires_grad_())
        if value == "dense":
            return Dense(normal(BATCH, 1, setting.queries, setting.keys) < 0.3)
        if isinstance(value, tuple):
            return normal(*value, dtype=setting.dtype).requires_grad_()
        return value.cuda() if isinstance(value, Tensor) else value

    options = {name: move(value) for name, value in setting.options.items()}
    return Setting(options, setting.dtype, setting.key_dim, setting.value_dim, setting.queries, setting.keys)
