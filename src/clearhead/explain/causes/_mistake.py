"""A usual mistake, and the recomputation of a matrix under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from clearhead.explain._claims import KEY_HEAD_MATRICES, SHARED_MATRICES
from clearhead.explain._recompute import Recomputation

Replacement = Callable[[Recomputation, int], Tensor]  # from the correct matrices and a head, the mistaken matrix


@dataclass(frozen=True, eq=False)
class Mistake:
    """A usual mistake: which steps it changes, and the words of a report about it."""

    name: str
    done: str  # what was done, a clause that starts a sentence
    remedy: str  # what should be done, a clause that ends it
    replacements: Mapping[str, Replacement]  # by step; an earlier step that the text prints is not recomputed
    local: bool = False  # a mistake in printing one matrix, which later matrices do not follow
    complete: bool = False  # count only if it reproduces every written cell


class MistakenCalculation(Recomputation):
    """Every matrix as computed by an author who makes one mistake, in all heads or in some."""

    def __init__(self, correct: Recomputation, mistake: Mistake, heads: frozenset[int]) -> None:
        super().__init__(correct.example, correct.given)
        self.correct, self.mistake, self.heads = correct, mistake, heads

    def _compute(self, name: str, head: int) -> Tensor:
        if name not in SHARED_MATRICES and head not in self._mistaken_heads(name):
            return self.correct.matrix(name, head)
        replacement = self.mistake.replacements.get(name)
        return super()._compute(name, head) if replacement is None else replacement(self.correct, head)

    def _mistaken_heads(self, name: str) -> frozenset[int]:
        """Return the heads of a matrix that are computed with the mistake, key heads for keys and values."""
        if name not in KEY_HEAD_MATRICES:
            return self.heads
        return frozenset(self.example.key_head(head) for head in self.heads)
