"""`AttentionSummary`: statistics of every head of a model, summed up call by call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.extras import missing_packages
from clearhead.analysis.accumulate import HeadSums
from clearhead.ops.statistics import AttentionStatistics
from clearhead.recording.recording import Recording
from clearhead.weights import notebook

STATISTICS = ("entropy", "distance", "largest")  # those there are means of


@dataclass(eq=False)
class LayerSummary:
    """What was seen of one attention module."""

    calls: list[AttentionStatistics] = field(default_factory=list)
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

    def add(self, seen: AttentionStatistics, real: Bool[Tensor, "batch q_len"], keep: bool) -> None:
        if keep:
            self.calls.append(seen)
        self.counted = self.counted + real.sum()
        values = {name: getattr(seen, name) for name in STATISTICS if name in seen}
        if "top" in seen:
            values["largest"] = seen.top.weights[..., 0]
        for name, statistic in values.items():
            total = statistic.double().mul(real[:, None]).sum(dim=(0, 2))
            self.sums[name] = self.sums[name] + total if name in self.sums else total


class AttentionSummary:
    """What was seen, by layer: `watched[3]`, or `watched["encoder", 3]` where a model has several stacks."""

    def __init__(self, places: Iterable[tuple[str, int]] = ()) -> None:
        self.layers = {place: LayerSummary() for place in places}

    @property
    def stacks(self) -> list[str]:
        return list(dict.fromkeys(stack for stack, _ in self.layers))

    def __getitem__(self, key: int | tuple[str, int]) -> LayerSummary:
        if isinstance(key, int) and len(self.stacks) == 1:
            key = (self.stacks[0], key)
        if key not in self.layers:
            stacks = ", ".join(f"{s!r} 0 to {sum(name == s for name, _ in self.layers) - 1}" for s in self.stacks)
            raise KeyError(f"no layer {key!r}; there are {stacks}, as (stack, layer)")
        return self.layers[key]  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerSummary]:
        return iter(self.layers.values())

    def __repr__(self) -> str:
        parts = []
        for stack in self.stacks:
            own = [layer for (name, _), layer in self.layers.items() if name == stack]
            parts.append(
                f"{stack} {len(own)} layers, {', '.join(own[0].sums) or 'no means'} of {own[0].queries} queries"
            )
        return f"AttentionSummary({'; '.join(parts)})"

    def _repr_html_(self) -> str | None:
        if missing_packages("view"):  # the notebook shows repr() instead
            return None
        means: dict[str, dict[int, dict[str, list[float]]]] = {stack: {} for stack in self.stacks}
        for (stack, number), layer in self.layers.items():
            means[stack][number] = {name: own.tolist() for name, own in layer.means.items()}
        last = {address: layer.calls[-1] for address, layer in self.layers.items() if layer.calls}
        maps = {address: call.pooled[0].float().cpu().numpy() for address, call in last.items() if "pooled" in call}
        return notebook.of_means(repr(self), means) + notebook.of_maps(maps)

    def tally(self, model: str = "") -> HeadSums:
        """Its sums, to be added to those of other texts."""
        heads: dict[str, list[int]] = {}
        sums: dict[str, Tensor] = {}
        for (stack, number), layer in self.layers.items():
            heads.setdefault(stack, []).append(max((len(own) for own in layer.sums.values()), default=0))
            sums[f"{stack}.{number}.queries"] = torch.as_tensor(layer.counted).cpu().double()
            sums |= {f"{stack}.{number}.{name}": own.cpu() for name, own in layer.sums.items()}
        return HeadSums(model, heads, sums)

    @classmethod
    def from_sums(cls, total: HeadSums) -> AttentionSummary:
        """What was seen of all texts that were added up."""
        seen = cls((stack, number) for stack, layers in total.heads.items() for number in range(len(layers)))
        for (stack, number), layer in seen.layers.items():
            own = {name: total.sums.get(f"{stack}.{number}.{name}") for name in STATISTICS}
            layer.sums = {name: values for name, values in own.items() if values is not None}
            layer.counted = int(total.sums[f"{stack}.{number}.queries"])
        return seen

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


def summarize(recording: Recording) -> AttentionSummary:
    """Return entropy, distance and largest weight of every head, over all queries of a recording."""
    summary = AttentionSummary()
    for name, stack in recording.stacks.items():
        valid = torch.ones(1, len(stack.queries), dtype=torch.bool)
        for index, weights in enumerate(stack.layers):
            layer = summary.layers.setdefault((name, index), LayerSummary())
            layer.add(weights.observe(entropy=True, distance=True, top=1), valid.to(weights.device), keep=False)
    return summary
