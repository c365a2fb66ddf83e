"""`NextTokens`: the most probable next tokens at each position of a text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_int, describe
from clearhead._utils.tensor_checks import FLOAT_DTYPES
from clearhead._utils.text import count_noun, is_unicode

NEXT_TOKENS = 5  # kept at each position
MAX_SAVED_POSITIONS = 1024  # of deferred predictions, the last ones


@dataclass(frozen=True, eq=False, repr=False)
class NextTokens:
    """Most probable next tokens at each position, most probable first.

    A masked language model predicts the masked tokens only. Its positions are those of the mask tokens.

    Attributes:
        texts: texts of the tokens, by position and rank.
        probabilities: their probabilities, [positions, count].
        positions: index of each row's token in its text, in ascending order.
    """

    texts: tuple[tuple[str, ...], ...]
    probabilities: Float[Tensor, "positions count"]
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        probabilities, rows = self.probabilities, len(self.texts)
        if not isinstance(probabilities, Tensor) or probabilities.dtype not in FLOAT_DTYPES or probabilities.ndim != 2:
            raise ValueError(f"NextTokens: probabilities is {describe(probabilities)}; expected [positions, count]")
        if not rows == len(self.positions) == len(probabilities) or not probabilities.numel():
            raise ValueError(
                f"NextTokens: there are {rows} rows of texts, {len(self.positions)} positions and probabilities"
                f" {list(probabilities.shape)}; expected one row per position"
            )
        if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
            raise ValueError("NextTokens: probabilities has numbers outside of 0 to 1; expected probabilities")
        for index, row in enumerate(self.texts):
            if len(row) != probabilities.shape[1] or not all(
                isinstance(text, str) and is_unicode(text) for text in row
            ):
                raise ValueError(f"NextTokens: texts[{index}] is {describe(row)}; expected a text per probability")
        steps = zip((-1, *self.positions), self.positions, strict=False)
        if any(type(after) is not int or not before < after < 2**31 for before, after in steps):
            raise ValueError("NextTokens: positions is not ascending; expected indices of tokens")

    def at(self, position: int) -> tuple[tuple[str, float], ...]:
        """Return the texts and probabilities at a position, most probable first; empty if nothing is predicted there.

        Args:
            position: index of the token before the predicted one, or of a mask token.
        """
        row = bisect_left(self.positions, check_int("position", position, least=0))
        if self.positions[row : row + 1] != (position,):
            return ()
        return tuple(zip(self.texts[row], self.probabilities[row].tolist(), strict=True))

    def to(self, device: torch.device | str) -> NextTokens:
        """Return a copy on another device."""
        return NextTokens(self.texts, self.probabilities.to(device), self.positions)

    def computed(self) -> NextTokens:
        """Return the object itself."""
        return self

    def __repr__(self) -> str:
        return f"NextTokens({count_noun(len(self.positions), 'position')})"

    def pack(self) -> tuple[Tensor, dict[str, Any]]:
        """Return the probabilities, and the rest as JSON metadata."""
        return self.probabilities, {"texts": self.texts, "positions": self.positions}

    @classmethod
    def unpack(cls, probabilities: Tensor, fields: dict[str, Any]) -> NextTokens:
        """Rebuild the arguments of `pack` from its results."""
        return cls(tuple(tuple(row) for row in fields["texts"]), probabilities, tuple(fields["positions"]))


class DeferredNextTokens:
    """Most probable next tokens that are computed when they are read, because a head's logits take time.

    It refers to the final states of the text and to the parameters of the model's head, not to its layers.

    Attributes:
        positions: indices of the tokens for which there are predictions.
    """

    def __init__(self, predict: Callable[[Sequence[int]], NextTokens | None], positions: Sequence[int]) -> None:
        self._predict, self._known = predict, {}
        self.positions = tuple(positions)

    def at(self, position: int) -> tuple[tuple[str, float], ...]:
        """Return the texts and probabilities at a position, as `NextTokens.at`. The first call computes them."""
        if check_int("position", position, least=0) not in self._known:
            predicted = self._predict([position]) if position in self.positions else None
            self._known[position] = () if predicted is None else predicted.at(position)
        return self._known[position]

    def to(self, device: torch.device | str) -> DeferredNextTokens:
        """Return the object itself. Predictions are computed on the device of the model."""
        return self

    def computed(self) -> NextTokens | None:
        """Compute the predictions at the last 1,024 positions; None if the logits are not finite."""
        return self._predict(self.positions[-MAX_SAVED_POSITIONS:])

    def __repr__(self) -> str:
        return f"DeferredNextTokens({count_noun(len(self.positions), 'position')})"

    def __reduce__(self) -> tuple:
        return _identity, (self.computed(),)


def _identity(value: NextTokens | None) -> NextTokens | None:
    return value


@dataclass(frozen=True, eq=False)
class TopTokens:
    """Ids and probabilities of the most probable tokens at some positions, without their texts."""

    probabilities: Float[Tensor, "positions count"]
    ids: Int[Tensor, "positions count"]
    positions: tuple[int, ...]

    @classmethod
    def of(cls, logits: Float[Tensor, "positions vocabulary"], positions: Sequence[int] | None = None) -> TopTokens:
        """Return the most probable tokens at each position (default: at all positions of a text)."""
        logits = logits.float()
        top = logits.topk(min(NEXT_TOKENS, logits.shape[1]))
        probabilities = (top.values - logits.logsumexp(1, keepdim=True)).exp().clamp(max=1)
        return cls(probabilities, top.indices, tuple(range(len(logits)) if positions is None else positions))

    @classmethod
    def join(cls, parts: Sequence[TopTokens]) -> TopTokens:
        """Concatenate the positions of several parts."""
        probabilities, ids = (
            torch.cat(tensors) for tensors in zip(*((p.probabilities, p.ids) for p in parts), strict=True)
        )
        return cls(probabilities, ids, tuple(position for part in parts for position in part.positions))

    def named(self, text_of: Callable[[int], str]) -> NextTokens | None:
        """Return the tokens with their texts; None if the logits were not finite."""
        if not bool(self.probabilities.isfinite().all()):
            return None
        rows = self.ids.tolist()
        texts = {token: text_of(token) for token in {token for row in rows for token in row}}
        return NextTokens(
            tuple(tuple(texts[token] for token in row) for row in rows), self.probabilities, self.positions
        )
