"""Random attention problems for the Triton kernels, compared with float64 by the rule of `assert_matches`.

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
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import ALiBi, AttentionWeights, Causal, Dense, Documents, Padding, Prefix, Window, attention
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
SMALLEST_TILE = 64  # queries or keys of a tile in half precision
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
        )


@dataclass
class Problem:
    """Inputs of one attention call, its equation in any dtype, and the check of all results."""

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
        distances = self._distances()
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
            "entropy": torch.special.entr(wide).sum(dim=-1),
            "received": wide.sum(dim=-2),
            "distance": (wide * distances).sum(dim=-1),
        }

    def check(self) -> None:
        """Compute everything with the Triton kernels, and assert that all of it matches."""
        if self.seed % 2:
            self._launch_with_other_values()
        exact, single = (self.plain(dtype) for dtype in (torch.float64, torch.float32))
        naive = single if self.family.dtype == torch.float32 else self.plain(self.family.dtype)
        torch.manual_seed(self.seed)
        output, weights = attention(*self.tensors, **self.options, return_weights=True, backend="triton")
        # the rounding error of a weight is proportional to its logarithm, and weights are computed in float32
        logs = self._score_terms() + math.log(2 + self.tensors[1].shape[2])
        compare("output", output, exact["output"], naive["output"], logs)
        empty = exact["lse"] == -math.inf
        assert torch.equal(weights.lse == -math.inf, empty), "log-sum-exp: other rows are empty"
        compare("log-sum-exp", weights.lse[~empty], exact["lse"][~empty], single["lse"][~empty], logs, terms=1.0)
        generator = torch.Generator(output.device).manual_seed(self.seed)
        cotangent = torch.randn(output.shape, generator=generator, device=output.device).to(self.family.dtype)
        results = {"got": output, "exact": exact["output"], "naive": naive["output"]}
        gradients = {
            name: torch.autograd.grad(result, list(self.leaves.values()), cotangent.to(result.dtype))
            for name, result in results.items()
        }
        terms = self._gradient_terms(exact["weights"].detach(), cotangent.double())
        for name, got, truth, baseline in zip(self.leaves, *gradients.values(), strict=True):
            compare(f"gradient of {name}", got, truth, baseline, logs, terms=terms[name])
        self._check_statistics(weights.detach(), exact, single, logs)

    def _launch_with_other_values(self) -> None:
        """Launch the kernels with other tensors of the same layout, so that the check launches known kernels again."""
        others = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in self.tensors]
        for other, tensor in zip(others, self.tensors, strict=True):
            other.copy_(-0.5 * tensor.detach()).requires_grad_()
        output, weights = attention(*others, **self.options, return_weights=True, backend="triton")
        output.sum().backward()
        weights.detach().observe(entropy=True, received=True, distance=True)

    def _score_terms(self) -> float:
        """Return the largest sum of absolute values of the terms of a score."""
        query, key = (tensor.detach().double().abs() for tensor in self.tensors[:2])
        products = query @ key.repeat_interleave(self.family.group, dim=1).mT
        bias = self.options.get("bias")
        if isinstance(bias, ALiBi):
            bias = bias.slopes * (sum(tensor.shape[2] for tensor in self.tensors[:2]) + 3)  # times the largest distance
        added = 0.0 if bias is None else float(bias.detach().abs().max())
        return float(products.max()) * self.family.key_dim**-0.5 + added

    def _gradient_terms(self, weights: Tensor, cotangent: Tensor) -> dict[str, float]:
        """Return the magnitude of the terms of each gradient.

        The gradient of a score is a difference, which may cancel to 0.
        """
        query, key, value = (tensor.detach().double().abs() for tensor in self.tensors)
        key, value = (tensor.repeat_interleave(self.family.group, dim=1) for tensor in (key, value))
        used = weights / (1 - self.options.get("dropout", 0.0))
        reach = cotangent.abs() @ value.mT
        mean = (used * reach).sum(dim=-1, keepdim=True)
        scores, scale = used * reach + weights * mean, self.family.key_dim**-0.5
        sizes = {
            "query": scores @ key * scale,
            "key": scores.mT @ query * scale,
            "value": used.mT @ cotangent.abs(),
            "sinks": mean.sum(dim=(0, 2, 3)),
        }
        bias = self.options.get("bias")
        if isinstance(bias, ALiBi):
            sizes["slopes"] = (scores * self._distances()).sum(dim=(0, 2, 3))
        elif bias is not None:
            sizes["bias"] = scores.sum_to_size(bias.shape)
        return {name: float(size.max()) for name, size in sizes.items()}

    def _distances(self) -> Tensor:
        """Return |query position − key|, `[batch or 1, 1, q_len, kv_len]`."""
        call = build_call(*(tensor.detach() for tensor in self.tensors), query_start=self.options.get("query_start"))
        keys = torch.arange(call.shape[3], device=call.query.device)
        return (call.positions()[:, None, :, None] - keys).abs()

    def _check_statistics(
        self, weights: AttentionWeights, exact: dict[str, Tensor], single: dict[str, Tensor], logs: float
    ) -> None:
        cells, plain_cells = exact["weights"], single["weights"]
        _, _, q_len, kv_len = cells.shape
        observed = weights.observe(entropy=True, received=True, distance=True, top=min(5, kv_len))
        # each tile's sum is added to the total in float32, which rounds by eps / 2; `compare` multiplies by 2 · eps
        sums = logs + max(q_len, kv_len) / SMALLEST_TILE / 4
        for name in ("entropy", "received", "distance"):
            compare(name, getattr(observed, name), exact[name], single[name], sums, terms=1.0)
        # without column sums, another kernel computes it
        compare("entropy alone", weights.entropy(), exact["entropy"], single["entropy"], sums, terms=1.0)
        for rows in {0, q_len // 2, q_len - 1}:
            compare("a row", weights[:, :, rows], cells[:, :, rows], plain_cells[:, :, rows], logs)
        pooled = {"mean": adaptive_avg_pool2d, "max": adaptive_max_pool2d}[self.family.reduce]
        bins = (-(-q_len // self.family.bins[0]), -(-kv_len // self.family.bins[1]))
        heatmaps = {
            "heatmap": weights.pool(*bins, reduce=self.family.reduce),
            "heatmap with statistics": weights.observe(received=True, pool=bins, reduce=self.family.reduce).pooled,
        }
        for name, heatmap in heatmaps.items():
            compare(name, heatmap, pooled(cells, bins), pooled(plain_cells, bins), logs)
        largest, plain_largest = (tensor.topk(min(5, kv_len)).values for tensor in (cells, plain_cells))
        assert observed.top is not None
        keys = observed.top.keys
        compare("largest weights", observed.top.weights, largest, plain_largest, logs)
        at_keys = cells.gather(-1, keys.clamp(min=0)) * (keys >= 0)
        compare("weights of the largest keys", at_keys.float(), largest, plain_largest, logs)


def compare(name: str, got: Tensor, exact: Tensor, naive: Tensor, logs: float, terms: float = 0.0) -> None:
    """Apply the rule of `assert_matches` on the GPU; its extended precision on the CPU takes seconds per problem.

    Args:
        name: used in the error.
        got: result to check.
        exact: the same in float64.
        naive: the plain formula in the dtype of `got`.
        logs: largest logarithm of a weight. Weights are computed in float32, so it multiplies float32's rounding error.
        terms: size of the terms of a sum whose result may be much smaller.
    """
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}"
    assert got.dtype == naive.dtype, f"{name}: dtype {got.dtype}, expected {naive.dtype}"
    assert got.isfinite().all(), f"{name}: not finite"
    if not got.numel():
        return
    eps, single_eps = torch.finfo(got.dtype).eps, torch.finfo(torch.float32).eps
    got, exact, naive = (tensor.detach().double() for tensor in (got, exact, naive))
    largest = max(float(exact.abs().max()), terms)
    allowed = 2 * float((naive - exact).abs().max()) + 2 * (eps + single_eps * logs) * largest
    worst = float((got - exact).abs().max())
    assert worst <= allowed, f"{name}: {worst:.2e} > {allowed:.2e}"


def draw_mask(
    name: str, batch: int, heads: int, q_len: int, kv_len: int, choices: random.Random, generator: torch.Generator
) -> Mask:
    """Return a random mask of a kind."""
    lengths = [choices.randint(0, kv_len) for _ in range(batch)]
    if name == "dense":
        shape = (choices.choice((1, batch)), choices.choice((1, heads)), q_len, kv_len)
        return Dense(torch.rand(shape, generator=generator, device=generator.device) < 0.6)
    if name == "documents":
        return Documents([choices.randint(0, kv_len) for _ in range(choices.randint(1, 5))])
    return {
        "causal": lambda: Causal(),
        "window": lambda: Window(choices.randint(0, kv_len), choices.randint(0, 5)),
        "padding": lambda: Padding(lengths),
        "left padding": lambda: Padding.left(lengths),
        "prefix": lambda: Prefix(choices.randint(0, kv_len)),
    }[name]()
