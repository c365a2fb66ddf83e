"""Random attention problems for the Triton kernels; `random_checks` compares their results with float64.

Compiling takes most of the time. So problems come in families: a `Family` fixes what kernels are compiled for, and its
problems differ in lengths, values and masks of the same kind. Triton compiles a kernel again for sizes of 1 and for
strides that are multiples of 16, so a family also fixes the batch, the number of heads and whether lengths are odd.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window
from clearhead.ops._dropout import keep_mask, row_indices
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import Mask
from clearhead.ops.statistics import Reduce

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDTHS = (8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 136, 160, 192, 256)
SIMPLE_MASKS = ("causal", "window", "padding", "left padding", "documents", "prefix", "dense")
BIAS_AXES = {
    "full": ("batch", "heads", "q_len", "kv_len"),
    "heads": ("heads", "q_len", "kv_len"),
    "keys": ("kv_len",),
    "rows": ("heads", "q_len"),
}
OPERATORS = ("product", "transposed product", "mass", "gradient", "divergence", "divergence of the mean")
MAX_CELLS = 2**25  # the equation in float64 stores about ten matrices


@dataclass(frozen=True)
class Family:
    """Features of a call that kernels are compiled for."""

    dtype: torch.dtype
    key_dim: int
    value_dim: int
    batch: int
    kv_heads: int
    group: int
    odd: bool  # lengths are odd, otherwise even
    masks: tuple[str, ...]  # combined by & or |
    combine: str
    bias: str
    softcap: bool
    sinks: bool
    dropout: bool
    starts: str
    strided: bool
    decoding: bool  # few queries, as for a KV cache
    bins: tuple[int, int]  # rows and keys per bin of a heatmap
    reduce: Reduce
    operator: str  # one of OPERATORS, which is compiled and checked too

    @classmethod
    def draw(cls, generator: random.Random) -> Family:
        choose = generator.choice
        key_dim = choose(WIDTHS)
        return cls(
            dtype=choose(DTYPES),
            key_dim=key_dim,
            value_dim=key_dim if generator.random() < 0.6 else choose(WIDTHS),
            batch=choose((1, 2, 3)),
            kv_heads=choose((1, 2)),
            group=choose((1, 1, 2, 4, 7)),
            odd=generator.random() < 0.5,
            masks=tuple(generator.sample(SIMPLE_MASKS, choose((0, 1, 1, 1, 2, 3)))),
            combine=choose(("&", "&", "|")),
            bias=choose(("none", "none", "none", "alibi", *BIAS_AXES)),
            softcap=generator.random() < 0.2,
            sinks=generator.random() < 0.2,
            dropout=generator.random() < 0.2,
            starts=choose(("default", "default", "zero", "number", "each")),
            strided=generator.random() < 0.3,
            decoding=generator.random() < 0.15,
            bins=(choose((1, 2, 3, 4, 8, 16, 30, 64)), choose((1, 2, 3, 4, 8, 16, 30, 64))),
            reduce=choose(("mean", "max")),
            operator=choose(OPERATORS),
        )


@dataclass
class Problem:
    """Inputs of one attention call, and its equation in any dtype."""

    family: Family
    tensors: list[Tensor]  # query, key, value
    options: dict[str, Any]
    seed: int
    leaves: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.leaves = dict(zip(("query", "key", "value"), self.tensors, strict=True))
        bias = self.options.get("bias")
        optional = {"sinks": self.options.get("sinks"), "slopes": None, "bias": bias}
        if isinstance(bias, ALiBi):
            optional |= {"slopes": bias.slopes, "bias": None}
        self.leaves |= {name: tensor for name, tensor in optional.items() if tensor is not None}
        for tensor in self.leaves.values():
            tensor.requires_grad_()

    @classmethod
    def draw(cls, family: Family, seed: int, device: str, longest: int) -> Problem:
        choices = random.Random(seed)
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).to(family.dtype)

        def strided(*shape: int) -> Tensor:
            if not family.strided:
                return normal(*shape)
            batch, heads, length, width = shape
            return normal(batch, 2 * length, heads, width).transpose(1, 2)[:, :, ::2]

        def length() -> int:
            return min(longest, int(math.exp(choices.uniform(0, math.log(longest + 1)))))

        def of_parity(length: int) -> int:
            return length // 2 * 2 + 1 if family.odd else max(2, length // 2 * 2)

        batch, kv_heads = family.batch, family.kv_heads
        heads = kv_heads * family.group
        q_len, kv_len = choices.randint(1, min(16, longest)) if family.decoding else length(), length()
        while batch * heads * q_len * kv_len > MAX_CELLS:
            q_len, kv_len = (-(-q_len // 2), kv_len) if q_len > kv_len else (q_len, -(-kv_len // 2))
        q_len, kv_len = of_parity(q_len), of_parity(kv_len)
        tensors = [
            strided(batch, heads, q_len, family.key_dim) * choices.choice((0.5, 1.0, 2.0)),
            strided(batch, kv_heads, kv_len, family.key_dim),
            strided(batch, kv_heads, kv_len, family.value_dim),
        ]
        options: dict[str, Any] = {}
        for name in family.masks:
            mask = draw_mask(name, batch, heads, q_len, kv_len, choices, generator)
            combined = options.get("mask")
            if combined is not None:
                mask = combined & mask if family.combine == "&" else combined | mask
            options["mask"] = mask
        if family.bias in BIAS_AXES:
            lengths = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
            axes = BIAS_AXES[family.bias]
            options["bias"] = normal(*(length if axis in axes else 1 for axis, length in lengths.items()))
        elif family.bias == "alibi":
            options["bias"] = ALiBi(normal(heads).abs())
        if family.softcap:
            options["softcap"] = 5.0
        if family.sinks:
            options["sinks"] = normal(heads)
        if family.dropout:
            options["dropout"] = 0.2
        starts = {"zero": 0, "number": choices.randint(-3, kv_len)}
        if family.starts in starts:
            options["query_start"] = starts[family.starts]
        elif family.starts == "each":
            options["query_start"] = torch.tensor([choices.randint(-3, kv_len) for _ in range(batch)], device=device)
        return cls(family, tensors, options, seed)

    def describe(self) -> str:
        shapes = " ".join(str(tuple(tensor.shape)) for tensor in self.tensors)
        return f"{shapes}, {self.family}, {self.options.get('mask')}, seed {self.seed}"

    def plain(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return all results by the equation in a dtype."""
        query, key, value = (tensor.to(dtype) for tensor in self.tensors)
        group, device = self.family.group, query.device
        key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
        batch, heads, q_len, _ = query.shape
        kv_len, options = key.shape[2], self.options
        scores = query @ key.mT * self.family.key_dim**-0.5
        if "softcap" in options:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        torch.manual_seed(self.seed)
        call = build_call(*(tensor.detach() for tensor in self.tensors), **options)
        distances = self.distances()
        bias = options.get("bias")
        if isinstance(bias, ALiBi):
            scores = scores - bias.slopes.to(dtype)[:, None, None] * distances.to(dtype)
        elif bias is not None:
            scores = scores + bias.to(dtype)
        if "mask" in options:
            allowed = call.lower().allowed(q_len, torch.arange(kv_len, device=device))
            scores = torch.where(allowed, scores, -math.inf)
        sinks = options.get("sinks")
        sink = [] if sinks is None else [sinks.to(dtype)[:, None, None].expand(batch, heads, q_len, 1)]
        logits = torch.cat([scores, *sink], dim=-1)
        has_key = (logits > -math.inf).any(dim=-1, keepdim=True)
        weights = torch.softmax(torch.where(has_key, logits, 0.0), dim=-1)[..., :kv_len] * has_key
        used = weights
        if call.seed is not None:
            rows = row_indices(slice(0, batch), torch.arange(heads, device=device), slice(0, q_len), heads, q_len)
            kept = keep_mask(call.seed, call.dropout, rows, torch.arange(kv_len, device=device))
            used = weights * kept / (1 - call.dropout)
        wide = weights.to(torch.promote_types(dtype, torch.float32))
        return {
            "output": used @ value,
            "lse": torch.logsumexp(logits.to(wide.dtype), dim=-1),
            "weights": wide,
            # unlike `entr`, it has finite gradients
            "entropy": -(wide * torch.where(wide > 0, wide, 1.0).log()).sum(dim=-1),
            "received": wide.sum(dim=-2),
            "distance": (wide * distances).sum(dim=-1),
        }

    def distances(self) -> Tensor:
        """Return |query position − key|, `[batch or 1, 1, q_len, kv_len]`."""
        call = build_call(*(tensor.detach() for tensor in self.tensors), query_start=self.options.get("query_start"))
        keys = torch.arange(call.shape[3], device=call.query.device)
        return (call.positions()[:, None, :, None] - keys).abs()


def draw_mask(
    name: str, batch: int, heads: int, q_len: int, kv_len: int, choices: random.Random, generator: torch.Generator
) -> Mask:
    """Return a random mask of a kind."""
    lengths = [choices.randint(0, kv_len) for _ in range(batch)]
    if name == "dense":
        shape = (choices.choice((1, batch)), choices.choice((1, heads)), q_len, kv_len)
        return Dense(torch.rand(shape, generator=generator, device=generator.device) < 0.6)
    if name == "documents":
        ends = sorted(choices.randint(0, kv_len) for _ in range(choices.randint(1, 5)))
        return Documents([end - start for start, end in zip([0, *ends], ends, strict=False)], strict=False)
    return {
        "causal": lambda: Causal(),
        "window": lambda: Window(choices.randint(0, kv_len), choices.randint(0, 5)),
        "padding": lambda: Padding(lengths),
        "left padding": lambda: Padding.left(lengths),
        "prefix": lambda: Prefix(choices.randint(0, kv_len)),
    }[name]()
