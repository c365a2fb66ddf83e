"""Comparison of all results of a random problem with float64, by the rule of `assert_matches`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import ALiBi, AttentionWeights, attention
from clearhead.weights.mean_heads import MeanHeads
from support.random_problems import Problem

SMALLEST_TILE = 64  # queries or keys of a tile in half precision
Results = dict[str, Tensor]


def check(problem: Problem) -> None:
    """Compute everything with the Triton kernels, and assert that all of it matches."""
    if problem.seed % 2:
        _launch_with_other_values(problem)
    dtype = problem.family.dtype
    exact, single = (problem.plain(precision) for precision in (torch.float64, torch.float32))
    naive = single if dtype == torch.float32 else problem.plain(dtype)
    torch.manual_seed(problem.seed)
    output, weights = attention(*problem.tensors, **problem.options, return_weights=True, backend="triton")
    # the rounding error of a weight is proportional to its logarithm, and weights are computed in float32
    logs = _score_terms(problem) + math.log(2 + problem.tensors[1].shape[2])
    checks = _Checks(problem, exact, single, naive, logs)
    compare("output", output, exact["output"], naive["output"], logs)
    empty = exact["lse"] == -math.inf
    assert torch.equal(weights.lse == -math.inf, empty), "log-sum-exp: other rows are empty"
    compare("log-sum-exp", weights.lse[~empty], exact["lse"][~empty], single["lse"][~empty], logs, terms=1.0)
    checks.output_gradients(output)
    checks.statistics(weights.detach())
    {
        "product": checks.product,
        "transposed product": checks.transposed_product,
        "mass": checks.mass,
        "gradient": checks.statistics_gradients,
        "divergence": lambda weights: checks.divergence(weights.detach()),
        "divergence of the mean": lambda weights: checks.divergence(_mean_heads(problem, weights.detach())),
    }[problem.family.operator](weights)


def _mean_heads(problem: Problem, weights: AttentionWeights) -> AttentionWeights | MeanHeads:
    """Return the mean over heads, or the weights themselves if their heads have different masks."""
    mask, (batch, _, q_len, kv_len) = problem.options.get("mask"), weights.shape
    return weights.mean_heads() if mask is None or mask.shape_error(batch, 1, q_len, kv_len) is None else weights


def _launch_with_other_values(problem: Problem) -> None:
    """Launch the kernels with other tensors of the same layout, so that the check launches known kernels again."""
    others = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in problem.tensors]
    for other, tensor in zip(others, problem.tensors, strict=True):
        other.copy_(-0.5 * tensor.detach()).requires_grad_()
    output, weights = attention(*others, **problem.options, return_weights=True, backend="triton")
    output.sum().backward()
    weights.detach().observe(entropy=True, received=True, distance=True)


def _score_terms(problem: Problem) -> float:
    """Return the largest sum of absolute values of the terms of a score."""
    query, key = (tensor.detach().double().abs() for tensor in problem.tensors[:2])
    products = query @ key.repeat_interleave(problem.family.group, dim=1).mT
    bias = problem.options.get("bias")
    if isinstance(bias, ALiBi):
        # times the largest distance
        bias = bias.slopes * (sum(tensor.shape[2] for tensor in problem.tensors[:2]) + 3)
    added = 0.0 if bias is None else float(bias.detach().abs().max())
    return float(products.max()) * problem.family.key_dim**-0.5 + added


@dataclass
class _Checks:
    """Results by the equation in three precisions, and the comparisons with them."""

    problem: Problem
    exact: Results
    single: Results
    naive: Results
    logs: float  # largest logarithm of a weight

    def output_gradients(self, output: Tensor) -> None:
        problem = self.problem
        cotangent = self.random(*output.shape).to(problem.family.dtype)
        value = problem.tensors[2].detach().double().abs().repeat_interleave(problem.family.group, dim=1)
        size, dropout = cotangent.double().abs(), problem.options.get("dropout", 0.0)
        terms = self.gradient_terms(size @ value.mT / (1 - dropout))
        used = self.exact["weights"].detach() / (1 - dropout)
        terms["value"] = float((used.mT @ size).max())
        self.gradients((output, self.exact["output"], self.naive["output"]), cotangent, terms)

    def gradients(self, results: tuple[Tensor, Tensor, Tensor], cotangent: Tensor, terms: dict[str, float]) -> None:
        """Compare the gradients of a result: by the kernels, exact, and by the plain formula."""
        leaves = {name: tensor for name, tensor in self.problem.leaves.items() if name in terms}
        found = (
            torch.autograd.grad(result, list(leaves.values()), cotangent.to(result.dtype), retain_graph=True)
            for result in results
        )
        for name, got, truth, baseline in zip(leaves, *found, strict=True):
            compare(f"gradient of {name}", got, truth, baseline, self.logs, terms=terms[name])

    def gradient_terms(self, reach: Tensor) -> dict[str, float]:
        """Return the magnitude of the terms of each gradient, from that of the gradient of each weight.

        The gradient of a score is a difference, which may cancel to 0.
        """
        problem, weights = self.problem, self.exact["weights"].detach()
        query, key = (tensor.detach().double().abs() for tensor in problem.tensors[:2])
        key = key.repeat_interleave(problem.family.group, dim=1)
        mean = (weights * reach).sum(dim=-1, keepdim=True)
        scores, scale = weights * (reach + mean), problem.family.key_dim**-0.5
        sizes = {
            "query": scores @ key * scale,
            "key": scores.mT @ query * scale,
            "sinks": mean.sum(dim=(0, 2, 3)),
        }
        bias = problem.options.get("bias")
        if isinstance(bias, ALiBi):
            sizes["slopes"] = (scores * problem.distances()).sum(dim=(0, 2, 3))
        elif bias is not None:
            sizes["bias"] = scores.sum_to_size(bias.shape)
        return {name: float(size.max()) for name, size in sizes.items()}

    def statistics(self, weights: AttentionWeights) -> None:
        exact, single, logs, family = self.exact, self.single, self.logs, self.problem.family
        cells, plain_cells = exact["weights"], single["weights"]
        _, _, q_len, kv_len = cells.shape
        observed = weights.observe(entropy=True, received=True, distance=True, top=min(5, kv_len))
        for name in ("entropy", "received", "distance"):
            compare(name, getattr(observed, name), exact[name], single[name], self.logs_of_sums(), terms=1.0)
        # without column sums, another kernel computes it
        compare("entropy alone", weights.entropy(), exact["entropy"], single["entropy"], self.logs_of_sums(), terms=1.0)
        for rows in {0, q_len // 2, q_len - 1}:
            compare("a row", weights[:, :, rows], cells[:, :, rows], plain_cells[:, :, rows], logs)
        pooled = {"mean": adaptive_avg_pool2d, "max": adaptive_max_pool2d}[family.reduce]
        bins = (-(-q_len // family.bins[0]), -(-kv_len // family.bins[1]))
        heatmaps = {
            "heatmap": weights.pool(*bins, reduce=family.reduce),
            "heatmap with statistics": weights.observe(received=True, pool=bins, reduce=family.reduce).pooled,
        }
        for name, heatmap in heatmaps.items():
            compare(name, heatmap, pooled(cells, bins), pooled(plain_cells, bins), logs)
        largest, plain_largest = (tensor.topk(min(5, kv_len)).values for tensor in (cells, plain_cells))
        assert observed.top is not None
        keys = observed.top.keys
        compare("largest weights", observed.top.weights, largest, plain_largest, logs)
        at_keys = cells.gather(-1, keys.clamp(min=0)) * (keys >= 0)
        compare("weights of the largest keys", at_keys.float(), largest, plain_largest, logs)

    def product(self, weights: AttentionWeights) -> None:
        factor = self.random(weights.shape[3], self.problem.family.value_dim).to(self.problem.family.dtype)
        exact, naive = self.exact["weights"] @ factor.double(), self.in_dtype() @ factor
        compare("product", weights.detach() @ factor, exact, naive, self.logs)

    def transposed_product(self, weights: AttentionWeights) -> None:
        factor = self.random(*weights.shape[:3], self.problem.family.value_dim).to(self.problem.family.dtype)
        exact, naive = self.exact["weights"].mT @ factor.double(), self.in_dtype().mT @ factor
        terms = float((self.exact["weights"].detach().mT @ factor.double().abs()).max())
        compare("transposed product", weights.detach().mT @ factor, exact, naive, self.logs, terms=terms)

    def mass(self, weights: AttentionWeights) -> None:
        kv_len = weights.shape[3]
        segments = torch.randint(-1, 4, (weights.shape[0], kv_len), generator=self.generator(), device=weights.device)
        segments[:, 0] = 4  # so that there are five spans
        members = torch.nn.functional.one_hot(segments + 1, 6)[:, None, :, 1:]
        exact, single = (found["weights"] @ members.to(found["weights"].dtype) for found in (self.exact, self.single))
        compare("mass", weights.detach().mass(segments), exact, single, self.logs_of_sums(), terms=1.0)

    def statistics_gradients(self, weights: AttentionWeights) -> None:
        """Gradients of entropy and column sums together, with random factors."""
        entropy, received = (self.random(*self.exact[name].shape) for name in ("entropy", "received"))
        received = received.to(self.problem.family.dtype).float()
        observed = weights.observe(entropy=True, received=True)
        results = tuple(
            (found["entropy"] * entropy).sum() + (found["received"] * received).sum()
            for found in ({name: getattr(observed, name) for name in ("entropy", "received")}, self.exact, self.naive)
        )
        logarithms = self.exact["weights"].detach().clamp(min=1e-300).log().abs()
        reach = entropy[..., None].double().abs() * (1 + logarithms) + received[..., None, :].double().abs()
        terms = self.gradient_terms(reach)
        # the sum of a row's weights is 1 minus the share of its sink, also if the row has no keys
        shares = 1 - self.exact["weights"].detach().sum(dim=-1)
        terms["sinks"] += float((entropy.double().abs() * shares).sum(dim=(0, 2)).max())
        self.gradients(results, torch.ones_like(results[0]), terms)  # pyright: ignore

    def divergence(self, teacher: AttentionWeights | MeanHeads) -> None:
        """KL divergence to a student of the same mask, and the gradients of the student's queries and keys."""
        problem, (batch, heads, q_len, kv_len) = self.problem, teacher.shape
        dtype, width = problem.family.dtype, problem.family.value_dim
        query, key = (self.random(batch, count, n, width).to(dtype) for count, n in ((heads, q_len), (1, kv_len)))
        leaves = {"query": query.requires_grad_(), "key": key.requires_grad_()}
        kept = {name: problem.options[name] for name in ("mask", "query_start") if name in problem.options}
        student = attention(query, key, key.detach(), return_weights="keep_qk", backend="triton", **kept)[1]
        allowed = student.lowered_mask.allowed(q_len, torch.arange(kv_len, device=key.device))

        def plain(results: Results) -> Tensor:
            weights = results["weights"].detach().unflatten(1, (heads, -1)).mean(dim=2)
            scores = query.to(weights.dtype) @ key.to(weights.dtype).mT * width**-0.5
            logarithms = torch.log_softmax(torch.where(allowed, scores, -1e30), dim=-1)
            ratios = torch.where(weights > 0, weights, 1.0).log() - logarithms
            return torch.where(weights > 0, weights * ratios, 0.0).sum(dim=-1)

        got, exact, single = teacher.kl(student), plain(self.exact), plain(self.single)
        size = float((query.detach().double().abs() @ key.detach().double().abs().mT).max()) * width**-0.5
        terms = self.logs + size + math.log(2 + kv_len)
        compare("divergence", got, exact, single, terms, terms=terms)
        cotangent = self.random(*exact.shape)
        sizes = {  # of the terms, at most 2 for each row's scores
            "query": 2 * float(cotangent.abs().max() * key.detach().abs().max()) * width**-0.5,
            "key": 2 * float((cotangent[..., None].abs() * query.detach().abs()).sum(dim=(1, 2)).max()) * width**-0.5,
        }
        found = (
            torch.autograd.grad(result, list(leaves.values()), cotangent.to(result.dtype))
            for result in (got, exact, single)
        )
        for name, computed, truth, baseline in zip(leaves, *found, strict=True):
            compare(f"divergence: gradient of {name}", computed, truth, baseline, terms, terms=sizes[name])

    def in_dtype(self) -> Tensor:
        """Return the weights by the plain formula, in the dtype of the problem."""
        return self.naive["weights"].to(self.problem.family.dtype)

    def logs_of_sums(self) -> float:
        """Return `logs` for sums over tiles: each tile's sum is added in float32, which rounds by eps / 2.

        `compare` multiplies by 2 · eps.
        """
        return self.logs + max(self.exact["weights"].shape[2:]) / SMALLEST_TILE / 4

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator(), device=self.exact["lse"].device)

    def generator(self) -> torch.Generator:
        return torch.Generator(self.exact["lse"].device).manual_seed(self.problem.seed)


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
