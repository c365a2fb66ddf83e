"""Ablation of heads: `ablate` removes heads, `head_importance` ranks heads by the loss without each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from clearhead._utils.evaluating import evaluating
from clearhead.huggingface.modules import AttentionModule, attention_modules, hooked, layer_of
from clearhead.weights.matrix import AttentionWeights

HeadSelector = tuple[int, int] | tuple[str, int, int]  # (layer, head) or (stack, layer, head)


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


@contextmanager
def ablate(model: nn.Module, heads: Iterable[HeadSelector]) -> Iterator[None]:
    """Remove heads from a model within a `with` block: their outputs are 0 before the output projection.

        with ablate(model, {(4, 7), (2, 0)}):     # (layer, head), or (stack, layer, head) with several stacks
            model(**inputs)

    The rest of the model is unchanged, including gradients. Within the block the model uses the implementation
    "clearhead"; afterwards it uses the previous one again. The block also affects other threads that run the model,
    except those within a `watch` or `ablate` block of the same model.

    Args:
        model: a transformers model.
        heads: heads to remove.

    Raises:
        ValueError: if the model has no such head.
    """
    modules = attention_modules(model)
    chosen: dict[AttentionModule, dict[int, list[int]]] = {}
    for head in heads:
        attention, layer, index = _find(modules, head)
        chosen.setdefault(attention, {}).setdefault(layer, []).append(index)
    removers = [_Remover(attention, by_layer) for attention, by_layer in chosen.items()]
    with hooked(model, {remover.attention.module: remover for remover in removers}):
        yield
    for remover in removers:
        missed = remover.heads.keys() - remover.layers_run
        if remover.layers_run and missed:
            raise ValueError(
                f"ablate: {remover.attention.stack} has no layer {min(missed)}, so its heads were not removed"
            )


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
    modules = attention_modules(model)
    if not isinstance(batches, Sequence) or not batches:
        raise ValueError(f"batches is {batches!r}; expected a list of at least one batch, which is read many times")
    with evaluating(model):
        with ablate(model, ()):
            loss_before = _loss(model, batches)
        chosen = [_find(modules, head) for head in heads] if heads is not None else _all_heads(modules)
        ranking = []
        steps = track(chosen, "heads", console=Console(stderr=True), disable=not progress, transient=True)
        for attention, layer, index in steps:
            with ablate(model, {(attention.stack, layer, index)}):
                change = _loss(model, batches) - loss_before
            ranking.append(HeadImportance(attention.stack, layer, index, change))
    return sorted(ranking, key=lambda importance: -importance.change)


@dataclass(frozen=True, eq=False)
class _Remover:
    """Hook that sets the outputs of some heads to 0, in the layers of one module."""

    attention: AttentionModule
    heads: dict[int, list[int]]  # by layer
    layers_run: set[int] = field(default_factory=set)
    needs_weights = False
    retains_weights = False
    keep_qk = False

    def __call__(
        self, repeat: int | None, weights: AttentionWeights | None, output: Tensor, attention_mask: Tensor | None
    ) -> Tensor:
        layer = layer_of(self.attention, repeat)
        self.layers_run.add(layer)
        chosen = self.heads.get(layer, [])
        count = output.shape[2]
        if chosen and max(chosen) >= count:
            raise ValueError(f"ablate: head is {max(chosen)}; expected 0 to {count - 1} in {self.attention.name}")
        return output.index_fill(2, torch.tensor(chosen, device=output.device), 0.0) if chosen else output


def _find(modules: list[AttentionModule], head: HeadSelector) -> tuple[AttentionModule, int, int]:
    """Return the attention module, the layer and the head index of a selector."""
    stacks = list(dict.fromkeys(attention.stack for attention in modules))
    is_address = isinstance(head, tuple) and len(head) in (2, 3) and all(type(index) is int for index in head[-2:])
    if not is_address or (len(head) == 2 and len(stacks) > 1):
        form = "(layer, head)" if len(stacks) == 1 else f"(stack, layer, head), with stack one of {', '.join(stacks)}"
        raise ValueError(f"heads contains {head!r}; expected {form}")
    stack, layer, index = (stacks[0], *head) if len(head) == 2 else head
    for attention in modules:
        if attention.stack != stack:
            continue
        # the number of layers that share a module is unknown until it has run
        if attention.layer == layer or (attention.shared and layer > 0):
            if not 0 <= index < (attention.heads or index + 1):
                raise ValueError(f"heads contains {head!r}, but that layer has heads 0 to {(attention.heads or 1) - 1}")
            return attention, layer, index
    layers = {name: sum(attention.stack == name for attention in modules) for name in stacks}
    ranges = ", ".join(f"{name} has layers 0 to {count - 1}" for name, count in layers.items())
    raise ValueError(f"heads contains {head!r}, but {ranges}")


def _all_heads(modules: list[AttentionModule]) -> list[tuple[AttentionModule, int, int]]:
    for attention in modules:
        if attention.heads is None:
            raise ValueError(f"the number of heads of {attention.name} is unknown; pass heads")
    return [(attention, attention.layer, index) for attention in modules for index in range(attention.heads or 0)]


def _loss(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> float:
    total = 0.0
    for index, batch in enumerate(batches):
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise ValueError(
                f"batches[{index}] gives no loss: {type(model).__name__} was called with {', '.join(batch)};"
                " expected labels too"
            )
        total += float(loss)
    return total / len(batches)
