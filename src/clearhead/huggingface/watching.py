"""`watch`: each layer's attention reduced to statistics while a model runs; no queries or keys are kept."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from clearhead.huggingface.modules import Attention, attention_modules, layer_of, owner_of, tapped
from clearhead.watched import Layer, Watched
from clearhead.weights import AttentionWeights

WHAT = ("entropy", "received", "distance", "top", "pool", "reduce")  # what `AttentionWeights.observe` takes


@contextmanager
def watch(model: nn.Module, *, keep_calls: bool = True, **what: Any) -> Iterator[Watched]:
    """Statistics of every attention matrix of a model, computed while it runs.

        with watch(model, entropy=True, top=8) as seen:
            model(**inputs)                       # or model.generate(**inputs): one call per new token
        seen[3].calls[0].entropy                  # [batch, heads, q_len]
        seen[3].means["entropy"]                  # [heads], over the queries of all calls that are no padding

    The model runs on clearhead inside, whatever it ran on before, and on that again afterwards.

    Args:
        keep_calls: keep each call's tensors, not the means alone; off for long runs over many batches.
        what: as `AttentionWeights.observe` takes it: entropy, received, distance, top, pool, reduce.
    """
    unknown = [name for name in what if name not in WHAT]
    if unknown:
        raise TypeError(f"watch: {unknown[0]} is not something to watch; expected any of {', '.join(WHAT)}")
    if not any(what.get(name) for name in WHAT[:-1]):
        raise ValueError(f"watch: nothing to watch; give it any of {', '.join(WHAT[:-1])}, such as entropy=True")
    modules = attention_modules(model)
    watched = Watched((attention.stack, attention.layer) for attention in modules)
    with ExitStack() as stack:
        padding = _Padding(model, modules, stack)
        taps = {attention.module: _Observer(what, watched, attention, padding, keep_calls) for attention in modules}
        stack.enter_context(tapped(model, taps))
        yield watched


@dataclass(frozen=True, eq=False)
class _Observer:
    """Reduces what it is shown of one module, and lets the output pass."""

    what: dict[str, Any]
    watched: Watched
    attention: Attention
    padding: _Padding
    keep: bool
    looks = True
    keeps = False

    def __call__(self, repeat: int, weights: AttentionWeights | None, output: Tensor) -> Tensor:
        assert weights is not None
        place = (self.attention.stack, layer_of(self.attention, repeat))
        layer = self.watched.layers.setdefault(place, Layer())
        with torch.no_grad():
            layer.add(weights.observe(**self.what), self.padding.real_queries(self.attention, weights), self.keep)
        return output


class _Padding:
    """The attention masks that the parts of a model were last called with, which say what queries are padding."""

    def __init__(self, model: nn.Module, modules: list[Attention], stack: ExitStack) -> None:
        self.owners = {attention: owner_of(model, attention) for attention in modules}
        self.last: dict[nn.Module, Tensor | None] = {}
        for owner in dict.fromkeys(self.owners.values()):
            if "attention_mask" in inspect.signature(owner.forward).parameters:
                stack.callback(owner.register_forward_pre_hook(self._remember, with_kwargs=True).remove)

    def _remember(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        self.last[module] = given.get("attention_mask")

    def real_queries(self, attention: Attention, weights: AttentionWeights) -> Bool[Tensor, "batch q_len"]:
        """Those that may attend to something, and are no padding by the mask their model was called with.

        The last queries of it, where keys are cached. A mask of another length, as over samples of sound, says nothing.
        """
        real = (weights.lse > -torch.inf).any(dim=1)
        batch, q_len = real.shape
        mask = self.last.get(self.owners[attention])
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[0] == batch:
            cached = attention.stack != "encoder" and mask.shape[1] > q_len
            if mask.shape[1] == q_len or cached:
                real = real & mask[:, -q_len:].to(real.device).bool()
        return real
