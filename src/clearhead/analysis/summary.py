"""`AttentionSummary`: statistics of every head of a model, accumulated call by call."""

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

AVERAGED = ("entropy", "distance", "largest")  # statistics with a mean per head


@dataclass(eq=False)
class LayerSummary:
    """Statistics of one layer over its calls.

    Attributes:
        calls: statistics of each call, if they are kept.
        sums: sums per head over queries, by statistic.
        query_count: number of queries in the sums.
    """

    calls: list[AttentionStatistics] = field(default_factory=list)
    sums: dict[str, Float[Tensor, " heads"]] = field(default_factory=dict)
    query_count: Tensor | int = 0  # a tensor after the first call: int() would synchronize the device in every layer

    @property
    def queries(self) -> int:
        """Number of queries in the means: those that are not padding and have visible keys."""
        return int(self.query_count)

    @property
    def means(self) -> dict[str, Float[Tensor, " heads"]]:
        """Means per head, over all queries of all calls: "entropy", "distance", "largest" (weight of the top key)."""
        return {name: total / max(1, self.queries) for name, total in self.sums.items()}

    def add(self, observed: AttentionStatistics, valid: Bool[Tensor, "batch q_len"], *, keep: bool) -> None:
        """Add the statistics of one call.

        Args:
            observed: statistics of the call.
            valid: False for queries that are padding or have no visible keys.
            keep: also append the statistics to `calls`.
        """
        if keep:
            self.calls.append(observed)
        self.query_count = self.query_count + valid.sum()
        values = {name: getattr(observed, name) for name in AVERAGED if name in observed}
        if "top" in observed:
            values["largest"] = observed.top.weights[..., 0]
        for name, statistic in values.items():
            total = statistic.double().mul(valid[:, None]).sum(dim=(0, 2))
            self.sums[name] = self.sums[name] + total if name in self.sums else total


class AttentionSummary:
    """Statistics of every layer of a model.

    `summary[3]` is the `LayerSummary` of layer 3, and `summary["encoder", 3]` that of a model with several stacks.
    """

    def __init__(self, addresses: Iterable[tuple[str, int]] = ()) -> None:
        self.layers = {address: LayerSummary() for address in addresses}  # (stack, layer)

    @property
    def stacks(self) -> list[str]:
        """Names of the stacks."""
        return list(dict.fromkeys(stack for stack, _ in self.layers))

    def __getitem__(self, key: int | tuple[str, int]) -> LayerSummary:
        if isinstance(key, int) and len(self.stacks) == 1:
            key = (self.stacks[0], key)
        if key not in self.layers:
            stacks = ", ".join(f"{s!r} 0 to {sum(name == s for name, _ in self.layers) - 1}" for s in self.stacks)
            raise KeyError(f"layer is {key!r}; expected (stack, layer) with {stacks}")
        return self.layers[key]  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerSummary]:
        return iter(self.layers.values())

    def __repr__(self) -> str:
        parts = []
        for stack in self.stacks:
            layers = [layer for (name, _), layer in self.layers.items() if name == stack]
            means = ", ".join(layers[0].sums) or "no means"
            parts.append(f"{stack} {len(layers)} layers, {means} of {layers[0].queries} queries")
        return f"AttentionSummary({'; '.join(parts)})"

    def _repr_html_(self) -> str | None:
        if missing_packages("view"):  # notebooks then show repr()
            return None
        means: dict[str, dict[int, dict[str, list[float]]]] = {stack: {} for stack in self.stacks}
        for (stack, index), layer in self.layers.items():
            means[stack][index] = {name: values.tolist() for name, values in layer.means.items()}
        last = {address: layer.calls[-1] for address, layer in self.layers.items() if layer.calls}
        maps = {address: call.pooled[0].float().cpu().numpy() for address, call in last.items() if "pooled" in call}
        return notebook.means_html(repr(self), means) + notebook.heatmaps_html(maps)

    def to_sums(self, model: str = "") -> HeadSums:
        """Return the sums, which can be added to those of other texts."""
        heads: dict[str, list[int]] = {}
        sums: dict[str, Tensor] = {}
        for (stack, index), layer in self.layers.items():
            heads.setdefault(stack, []).append(max((len(values) for values in layer.sums.values()), default=0))
            sums[f"{stack}.{index}.queries"] = torch.as_tensor(layer.query_count).cpu().double()
            sums |= {f"{stack}.{index}.{name}": values.cpu() for name, values in layer.sums.items()}
        return HeadSums(model, heads, sums)

    @classmethod
    def from_sums(cls, total: HeadSums) -> AttentionSummary:
        """Return the summary of the texts in `total`."""
        summary = cls((stack, index) for stack, layers in total.heads.items() for index in range(len(layers)))
        for (stack, index), layer in summary.layers.items():
            sums = {name: total.sums.get(f"{stack}.{index}.{name}") for name in AVERAGED}
            layer.sums = {name: values for name, values in sums.items() if values is not None}
            layer.query_count = int(total.sums[f"{stack}.{index}.queries"])
        return summary

    def to_dict(self) -> dict[str, list]:
        """Return a table with one row per head, as columns: stack, layer, head, queries and the mean statistics."""
        rows = []
        for (stack, index), layer in self.layers.items():
            means = {name: mean.tolist() for name, mean in layer.means.items()}
            for head in range(len(next(iter(means.values()), []))):
                head_means = {name: values[head] for name, values in means.items()}
                rows.append({"stack": stack, "layer": index, "head": head, "queries": layer.queries, **head_means})
        return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else {})}

    def to_pandas(self) -> Any:
        """Return the table of `to_dict` as a pandas data frame. Requires pandas."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("to_pandas requires pandas; to_dict returns the same table without it") from error
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
