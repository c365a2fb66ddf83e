"""Singular value decomposition of the attention matrix of one head, by products only."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_int, describe
from clearhead.weights.matrix import AttentionWeights


class SVD(NamedTuple):
    """Largest singular values of a matrix and their vectors: A ≈ left · diag(values) · rightᵀ."""

    left: Float[Tensor, "q_len k"]
    values: Float[Tensor, " k"]
    right: Float[Tensor, "kv_len k"]


@torch.no_grad()
def svd(
    weights: AttentionWeights,
    k: int,
    *,
    batch: int = 0,
    head: int = 0,
    oversampling: int = 10,
    iterations: int = 7,
    seed: int = 0,
) -> SVD:
    """Return the `k` largest singular values and vectors of one head, in O(n · k) memory and without gradients.

    Randomized subspace iteration (Halko, Martinsson & Tropp, 2011): random vectors are multiplied by A and Aᵀ in turn
    and orthogonalized after each product. The decomposition of A in the subspace that they span is exact. The error of
    value i decreases by a factor of (σ_{k + oversampling + 1} / σ_i)⁴ with each iteration, down to rounding errors
    relative to the largest value.

    Args:
        weights: attention weights.
        k: number of singular values, at most q_len and kv_len.
        batch: index of the sequence.
        head: index of the head.
        oversampling: number of further random vectors.
        iterations: number of power iterations, of two products each.
        seed: seed of the random vectors. The same seed gives the same result on a device.

    Returns:
        `(left, values, right)`: the values largest first, and the vectors as columns. The entry of largest magnitude of
        each column of `right` is positive.

    Examples:
        >>> from clearhead import attention
        >>> x = torch.randn(1, 2, 100, 8)
        >>> _, weights = attention(x, x, x, return_weights=True)
        >>> left, values, right = svd(weights, 3, head=1)
        >>> left.shape, values.shape, right.shape
        (torch.Size([100, 3]), torch.Size([3]), torch.Size([100, 3]))
        >>> torch.allclose(values, torch.linalg.svdvals(weights[0, 1])[:3], rtol=1e-3)
        True
    """
    if not isinstance(weights, AttentionWeights):
        raise TypeError(f"weights is {describe(weights)}; expected AttentionWeights")
    sequences, heads, q_len, kv_len = weights.shape
    k = check_int("k", k, 1, max(1, min(q_len, kv_len)))
    batch, head = check_int("batch", batch, -sequences, sequences - 1), check_int("head", head, -heads, heads - 1)
    oversampling, iterations = check_int("oversampling", oversampling, 0), check_int("iterations", iterations, 0)
    if min(q_len, kv_len) == 0:
        raise ValueError(f"weights has shape {tuple(weights.shape)}; expected at least one query and one key")
    matrix = weights.part(batch=batch, heads=head)
    generator = torch.Generator().manual_seed(check_int("seed", seed, 0, 2**63 - 1))
    width = min(k + oversampling, q_len, kv_len)
    start = torch.randn(kv_len, width, generator=generator, dtype=weights.dtype).to(weights.device)
    basis = _orthonormal((matrix @ start)[0, 0])
    for _ in range(iterations):
        basis = _orthonormal((matrix @ _orthonormal((matrix.mT @ basis)[0, 0]))[0, 0])
    right, values, rotation = torch.linalg.svd((matrix.mT @ basis)[0, 0], full_matrices=False)
    left, right = (basis @ rotation.mT)[:, :k], right[:, :k]
    signs = torch.where(right.gather(0, right.abs().argmax(dim=0, keepdim=True)) < 0, -1.0, 1.0).to(right.dtype)
    return SVD(left * signs, values[:k], right * signs)


def _orthonormal(vectors: Float[Tensor, "length width"]) -> Float[Tensor, "length width"]:
    return torch.linalg.qr(vectors).Q
