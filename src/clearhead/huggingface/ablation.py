"""Ablation of heads: `ablate` removes them, `head_importance` ranks them by the loss without each."""

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
    """A head, and how much the loss grows without it."""

    stack: str
    layer: int
    head: int
    change: float


@contextmanager
def ablate(model: nn.Module, heads: Iterable[HeadSelector]) -> Iterator[None]:
    """Run a model without the contributions of some heads: what they give to the output projection is 0.

        with ablate(model, {(4, 7), (2, 0)}):     # (layer, head); (stack, layer, head) where there are several stacks
            model(**inputs)

    Everything else is as it was, gradients included. The model runs on clearhead inside, and on what it ran on before
    afterwards. Other threads that run the model meanwhile run it without these heads too, but for those that have
    entered their own `watch` or `ablate` on it.
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
                f"ablate: {remover.attention.stack} has no layer {min(missed)}, so no head of it was removed"
            )


@torch.no_grad()
def head_importance(
    model: nn.Module,
    batches: Sequence[Mapping[str, Any]],
    *,
    heads: Iterable[HeadSelector] | None = None,
    progress: bool = True,
) -> list[HeadImportance]:
    """Rank all heads, or some, by how much the loss grows when each is taken out alone.

    One pass over all batches for each head, and one without ablation: exact, not estimated from gradients. Batches are
    what the model is called with, labels included; the loss is the mean over batches of what the model gives.
    """
    modules = attention_modules(model)
    if not isinstance(batches, Sequence) or not batches:
        raise ValueError(f"batches is {batches!r}; expected a list of at least one batch, to go over it many times")
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
    """Sets some heads' outputs to 0, in the layers of one module."""

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
            raise ValueError(f"ablate: there is no head {max(chosen)}; {self.attention.name} has {count}")
        return output.index_fill(2, torch.tensor(chosen, device=output.device), 0.0) if chosen else output


def _find(modules: list[AttentionModule], head: HeadSelector) -> tuple[AttentionModule, int, int]:
    """Return the module of an address, the layer, and the index of the head in it."""
    stacks = list(dict.fromkeys(attention.stack for attention in modules))
    is_address = isinstance(head, tuple) and len(head) in (2, 3) and all(type(index) is int for index in head[-2:])
    if not is_address or (len(head) == 2 and len(stacks) > 1):
        form = "(layer, head)" if len(stacks) == 1 else f"(stack, layer, head), with a stack of {', '.join(stacks)}"
        raise ValueError(f"heads has {head!r} in it; expected {form}")
    stack, layer, index = (stacks[0], *head) if len(head) == 2 else head
    for attention in modules:
        if attention.stack != stack:
            continue
        # how many layers share a module is known only when it has run
        if attention.layer == layer or (attention.shared and layer > 0):
            if not 0 <= index < (attention.heads or index + 1):
                raise ValueError(
                    f"heads has {head!r} in it, but that layer has heads 0 to {(attention.heads or 1) - 1}"
                )
            return attention, layer, index
    layers = {name: sum(attention.stack == name for attention in modules) for name in stacks}
    ranges = ", ".join(f"{name} has layers 0 to {count - 1}" for name, count in layers.items())
    raise ValueError(f"heads has {head!r} in it, but {ranges}")


def _all_heads(modules: list[AttentionModule]) -> list[tuple[AttentionModule, int, int]]:
    for attention in modules:
        if attention.heads is None:
            raise ValueError(f"{attention.name} does not say how many heads it has; give `heads`")
    return [(attention, attention.layer, index) for attention in modules for index in range(attention.heads or 0)]


def _loss(model: nn.Module, batches: Sequence[Mapping[str, Any]]) -> float:
    total = 0.0
    for index, batch in enumerate(batches):
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise ValueError(
                f"batches[{index}] gives no loss: {type(model).__name__} was called with {', '.join(batch)};"
                " it takes labels"
            )
        total += float(loss)
    return total / len(batches)
