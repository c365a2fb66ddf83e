"""`LowRank`: a matrix as the product of two factors, such as the circuit of a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from clearhead._utils.tensor_checks import check_float_tensor


class SVD(NamedTuple):
    """Singular value decomposition: `U @ diag(S) @ Vh`."""

    U: Float[Tensor, "rows rank"]
    S: Float[Tensor, " rank"]
    Vh: Float[Tensor, "rank columns"]


@dataclass(frozen=True, eq=False)
class LowRank:
    """Matrix `left @ right`, which is never computed unless `dense()` is called.

    Memory and time are those of the factors. Everything is differentiable.

    Attributes:
        left: first factor.
        right: second factor.
    """

    left: Float[Tensor, "rows rank"]
    right: Float[Tensor, "rank columns"]

    def __post_init__(self) -> None:
        for name, factor in (("left", self.left), ("right", self.right)):
            if check_float_tensor(name, factor, "a matrix").ndim != 2:
                raise ValueError(f"{name} has shape {list(factor.shape)}; expected a matrix")
        if self.left.shape[1] != self.right.shape[0]:
            raise ValueError(
                f"left has {self.left.shape[1]} columns, but right has {self.right.shape[0]} rows; expected the same"
            )

    @property
    def shape(self) -> torch.Size:
        """Numbers of rows and columns."""
        return torch.Size((self.left.shape[0], self.right.shape[1]))

    @property
    def rank(self) -> int:
        """Number of columns of `left`, an upper bound of the rank."""
        return self.left.shape[1]

    @property
    def T(self) -> LowRank:  # noqa: N802, torch's name
        """Transpose."""
        return LowRank(self.right.T, self.left.T)

    def dense(self) -> Float[Tensor, "rows columns"]:
        """Return the matrix."""
        return self.left @ self.right

    def __matmul__(self, other: LowRank | Tensor) -> LowRank | Tensor:
        """Multiply by a tensor, or by another product of factors, which gives one of the smaller rank."""
        if isinstance(other, LowRank):
            inner = self.right @ other.left
            if self.rank < other.rank:
                return LowRank(self.left, inner @ other.right)
            return LowRank(self.left @ inner, other.right)
        return self.left @ (self.right @ other) if isinstance(other, Tensor) else NotImplemented

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return (other @ self.left) @ self.right if isinstance(other, Tensor) else NotImplemented

    def eigenvalues(self) -> Complex[Tensor, " rank"]:
        """Return the eigenvalues of a square matrix that may differ from 0: those of `right @ left`."""
        self._check_square()
        inner = _full(self.right) @ _full(self.left)
        if not inner.isfinite().all():
            raise ValueError("the matrix contains numbers that are not finite, so it has no eigenvalues")
        return torch.linalg.eigvals(inner)

    def trace(self) -> Float[Tensor, ""]:
        """Return the sum of the diagonal of a square matrix."""
        self._check_square()
        return (self.left * self.right.T).sum()

    def norm(self) -> Float[Tensor, ""]:
        """Return the Frobenius norm, from the Gram matrices of the factors."""
        left, right = self.left.double(), self.right.double()  # the squares of float32 would lose half of the digits
        squared = ((left.T @ left) * (right @ right.T)).sum()
        return squared.clamp(min=0).sqrt().to(_full(self.left).dtype)

    def singular_values(self) -> Float[Tensor, " rank"]:
        """Return the singular values in descending order."""
        return torch.linalg.svdvals(_triangle(self.left) @ _triangle(self.right.T).T)

    def svd(self) -> SVD:
        """Return the singular value decomposition, from QR decompositions of the factors."""
        q_left, r_left = torch.linalg.qr(_full(self.left))
        q_right, r_right = torch.linalg.qr(_full(self.right.T))
        u, s, vh = torch.linalg.svd(r_left @ r_right.T, full_matrices=False)
        return SVD(q_left @ u, s, vh @ q_right.T)

    def copying_score(self) -> Float[Tensor, ""]:
        """Return the sum of the eigenvalues divided by the sum of their absolute values, from −1 to 1.

        It is 1 if all eigenvalues are positive: on average the matrix maps vectors to vectors of the same direction.
        """
        eigenvalues = self.eigenvalues()
        return eigenvalues.sum().real / eigenvalues.abs().sum()

    def _check_square(self) -> None:
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"the matrix is {self.shape[0]} × {self.shape[1]}; expected a square matrix")

    def __repr__(self) -> str:
        return f"LowRank({self.shape[0]} × {self.shape[1]}, rank {self.rank}, {self.left.dtype})"


def _full(factor: Tensor) -> Tensor:
    """Return a factor in float32 or float64, because torch has no decompositions of smaller dtypes."""
    return factor if factor.dtype == torch.float64 else factor.float()


def _triangle(factor: Float[Tensor, "rows rank"]) -> Float[Tensor, "smaller rank"]:
    """Return the triangular matrix of the QR decomposition, which has the same Gram matrix."""
    return torch.linalg.qr(_full(factor)).R  # mode "r" has no gradients
