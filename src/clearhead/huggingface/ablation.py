"""`head_importance`: a ranking of heads by the loss without each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from clearhead._utils.evaluating import evaluating
from clearhead.huggingface._watched_models import known_modules
from clearhead.watching.ablation import ablate
from clearhead.watching.model_adapters import KnownModule
from clearhead.watching.selectors import Chosen, HeadSelector, Selectors


class HeadImportance(NamedTuple):
    """Increase of the loss without one head.

    Attributes:
        stack: stack of the head, such as "decoder".
        layer: index of the layer.
        head: index of the head in its layer.
        change: loss without the head, minus the loss of the whole model.
    """

    stack: str
    layer: int
    head: int
    change: float


@torch.no_grad()
def head_importance(
    model: nn.Module,
    batches: Sequence[Mapping[str, Any]],
    *,
    heads: Iterable[HeadSelector] | None = None,
    progress: bool = True,
) -> list[HeadImportance]:
    """Rank heads by the increase of the loss if only that head is removed.

    Runs the model on all batches once per head, and once without ablation. The result is exact, not a gradient-based
    estimate.

    Args:
        model: a transformers model that returns a loss.
        batches: keyword arguments of each call, including labels. The loss is the mean over batches.
        heads: heads to rank, as for `ablate` (default: all heads).
        progress: show a progress bar on stderr.

    Returns:
        Heads in descending order of importance.
    """
    known = known_modules(model)
    selectors = Selectors("heads", model, known)
    if not isinstance(batches, Sequence) or not batches:
        raise ValueError(f"batches is {batches!r}; expected a list of at least one batch, which is read many times")
    with evaluating(model):
        loss_before = _loss(model, batches)
        chosen = [selectors.head(head) for head in (heads if heads is not None else _every_head(known))]
        ranking = []
        steps = track(chosen, "heads", console=Console(stderr=True), disable=not progress, transient=True)
        for head in steps:
            module = _module_of(head, known)
            with ablate(model, [head.given]):
                change = _loss(model, batches) - loss_before
            assert head.head is not None
            ranking.append(HeadImportance(module.stack, module.layer + (head.layer or 0), head.head, change))
    return sorted(ranking, key=lambda importance: -importance.change)


def _module_of(head: Chosen, known: list[KnownModule]) -> KnownModule:
    for module in known:
        if module.name == head.name:
            return module
    raise ValueError(f"heads contains {head.given!r}, but {head.name} is not an attention module")


def _every_head(known: list[KnownModule]) -> list[HeadSelector]:
    for module in known:
        if module.heads is None:
            raise ValueError(f"the number of heads of {module.name} is unknown; pass heads")
    return [(module.stack, module.layer, head) for module in known for head in range(module.heads or 0)]


def _loss(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> float:
    total = 0.0
    for index, batch in enumerate(batches):
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise ValueError(
                f"batches[{index}] gives no loss: {type(model).__name__} was called with {', '.join(batch)};"
                " expected labels too, and a model with a head, as from load(…, head=True)"
            )
        total += float(loss)
    return total / len(batches)
