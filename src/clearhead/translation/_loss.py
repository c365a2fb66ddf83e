"""Cross-entropy loss of the next token, for training and validation."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.translation.tokenizer import PAD


def cross_entropy(
    logits: Float[Tensor, "batch target vocabulary"],
    expected: Int[Tensor, "batch target"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the loss in nats, summed over all non-padding tokens."""
    return nn.functional.cross_entropy(
        logits.flatten(0, -2).float(),
        expected.flatten(),
        ignore_index=PAD,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
