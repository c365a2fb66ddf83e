"""Lazy matrices for tests."""

import torch

from clearhead import ALiBi, AttentionWeights, Causal, Dense, Padding, Window, attention
from clearhead.ops.arguments import build_call
from support.numerics import Case


def both_forms(case: Case, backend: str = "auto") -> list[AttentionWeights]:
    """Return the matrix in both forms: held as queries and keys, and held as scores."""
    _, weights = attention(**case.arguments, return_weights=True, backend=backend)
    call = build_call(**case.arguments)
    factors = AttentionWeights(call, weights.lse)
    scores = AttentionWeights(call.with_scores(factors.scores[...]), weights.lse)
    return [factors, scores]


def sample(q_len: int = 13, kv_len: int = 17, mask=Causal(), **options):  # noqa: B008, masks are immutable
    query = torch.randn(2, 6, q_len, 4, **options)
    key, value = (torch.randn(2, 3, kv_len, 4, **options) for _ in range(2))
    output, weights = attention(query, key, value, mask=mask, return_weights=True)
    return query, key, value, output, weights


DTYPE = torch.float64
MASKED = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])  # [q_len, kv_len]
PROBLEMS = {
    "plain": {},
    "empty rows": {"mask": Causal(), "query_start": -1},
    "softcap, padding": {"softcap": 1.5, "mask": Padding([3, 5])},
    "sinks, window": {"mask": Window(1, 1), "sinks": (4,)},
    "bias, dense mask": {"mask": Dense(MASKED), "bias": (1, 4, 3, 5)},
    "ALiBi, ragged starts": {"mask": Causal(), "bias": ALiBi, "query_start": torch.tensor([2, -1])},
}


class Problem:
    """Small matrix of a float64 call with one set of options, as a function of tensors that require gradients."""

    def __init__(self, name: str = "plain", *, heads: int = 4, kv_heads: int = 2, key_dim: int = 3) -> None:
        options = PROBLEMS[name]
        self.mask, self.softcap = options.get("mask"), options.get("softcap")
        self.query_start, self.alibi = options.get("query_start"), options.get("bias") is ALiBi
        shapes = {"query": (2, heads, 3, key_dim), "key": (2, kv_heads, 5, key_dim)}
        shapes |= {key: options[key] for key in ("bias", "sinks") if isinstance(options.get(key), tuple)}
        self.tensors = {key: torch.randn(shape, dtype=DTYPE).requires_grad_() for key, shape in shapes.items()}
        if self.alibi:
            self.tensors["bias"] = torch.rand(heads, dtype=DTYPE).requires_grad_()

    @property
    def leaves(self) -> list[torch.Tensor]:
        return list(self.tensors.values())

    def weights(self, *leaves: torch.Tensor) -> AttentionWeights:
        """Return the lazy matrix of some leaves; default: those of the problem."""
        tensors = dict(zip(self.tensors, leaves or self.leaves, strict=True))
        if self.alibi:
            tensors["bias"] = ALiBi(tensors["bias"])
        options = {"mask": self.mask, "softcap": self.softcap, "query_start": self.query_start}
        return attention(**tensors, value=tensors["key"], **options, return_weights=True)[1]

    def dense(self, *leaves: torch.Tensor) -> torch.Tensor:
        """Return the matrix by the plain equation; differentiable."""
        tensors = dict(zip(self.tensors, leaves or self.leaves, strict=True))
        bias, key = tensors.get("bias"), tensors["key"]
        options = {"bias": ALiBi(bias) if self.alibi else bias, "sinks": tensors.get("sinks")}
        case = Case(
            tensors["query"], key, key, self.mask, softcap=self.softcap, query_start=self.query_start, **options
        )
        return case.plain()["weights"]


def assert_same(got: torch.Tensor, exact: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Assert that two float64 results and their gradients are equal up to rounding errors."""
    torch.testing.assert_close(got, exact)
    assert got.requires_grad == exact.requires_grad
    if not exact.requires_grad:
        return
    cotangent = torch.randn_like(exact)
    for got_grad, exact_grad in zip(
        *(torch.autograd.grad(t, leaves, cotangent, retain_graph=True, allow_unused=True) for t in (got, exact)),
        strict=True,
    ):
        zeros = [torch.zeros((), dtype=DTYPE) if grad is None else grad for grad in (got_grad, exact_grad)]
        torch.testing.assert_close(*torch.broadcast_tensors(*zeros), rtol=1e-9, atol=1e-11)
