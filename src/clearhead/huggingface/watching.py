"""`watch`: each layer's attention reduced to statistics while a model runs; no queries or keys are kept."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from clearhead.huggingface.modules import Attention, attention_modules, layer_of, owner_of, tapped
from clearhead.kernels.sweep import Observation
from clearhead.weights import AttentionWeights

WHAT = ("entropy", "received", "distance", "top", "pool", "reduce")  # what `AttentionWeights.observe` takes


@dataclass(eq=False)
class Layer:
    """What was seen of one attention module."""

    calls: list[Observation] = field(default_factory=list)
    sums: dict[str, Float[Tensor, " heads"]] = field(default_factory=dict)
    # a tensor once there is one, for asking a GPU for a number in every layer would make it wait
    counted: Tensor | int = 0

    @property
    def queries(self) -> int:
        """How many the means are over: those that are no padding and may attend to something."""
        return int(self.counted)

    @property
    def means(self) -> dict[str, Float[Tensor, " heads"]]:
        """Per head, over all queries of all calls: "entropy", "distance", and "largest", the weight of the top key."""
        return {name: total / max(1, self.queries) for name, total in self.sums.items()}

    def add(self, seen: Observation, real: Bool[Tensor, "batch q_len"], keep: bool) -> None:
        if keep:
            self.calls.append(seen)
        self.counted = self.counted + real.sum()
        largest = None if seen.top is None else seen.top.weights[..., 0]
        for name, values in (("entropy", seen.entropy), ("distance", seen.distance), ("largest", largest)):
            if values is not None:
                total = values.double().mul(real[:, None]).sum(dim=(0, 2))
                self.sums[name] = self.sums[name] + total if name in self.sums else total


class Watched:
    """What `watch` saw, by layer: `watched[3]`, or `watched["encoder", 3]` where a model has several stacks."""

    def __init__(self, modules: list[Attention]) -> None:
        self.layers = {(attention.stack, attention.layer): Layer() for attention in modules}

    @property
    def stacks(self) -> list[str]:
        return list(dict.fromkeys(stack for stack, _ in self.layers))

    def __getitem__(self, key: int | tuple[str, int]) -> Layer:
        if isinstance(key, int) and len(self.stacks) == 1:
            key = (self.stacks[0], key)
        if key not in self.layers:
            stacks = ", ".join(f"{s!r} 0 to {sum(name == s for name, _ in self.layers) - 1}" for s in self.stacks)
            raise KeyError(f"no layer {key!r}; there are {stacks}, as (stack, layer)")
        return self.layers[key]  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers.values())

    def to_dict(self) -> dict[str, list]:
        """A tidy table, one row per head, as columns: stack, layer, head, queries, and a mean of each statistic."""
        rows = []
        for (stack, layer), seen in self.layers.items():
            means = {name: mean.tolist() for name, mean in seen.means.items()}
            for head in range(len(next(iter(means.values()), []))):
                own = {name: values[head] for name, values in means.items()}
                rows.append({"stack": stack, "layer": layer, "head": head, "queries": seen.queries, **own})
        return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else {})}

    def to_pandas(self) -> Any:
        """The same table as a data frame; needs pandas."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("to_pandas needs pandas; to_dict gives the same table without it") from error
        return pandas.DataFrame(self.to_dict())


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
    watched = Watched(modules)
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
