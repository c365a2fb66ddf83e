"""`AttentionSummary`: statistics of every head of a model, accumulated call by call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead._utils.extras import missing_packages
from clearhead._utils.text import count_noun
from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.spans import SpansOfStacks, StackSpansLike
from clearhead.ops.statistics import AttentionStatistics
from clearhead.recording.recording import Recording
from clearhead.weights import notebook
from clearhead.weights.statistics import observe_with_entropy

AVERAGED = ("entropy", "distance", "largest", "mass")  # statistics with a mean per head
COLUMNS = ("stack", "layer", "module", "head", "queries", "entropy", "distance", "largest", "peak")  # except spans


@dataclass(eq=False)
class LayerSummary:
    """Statistics of one layer over its calls.

    Attributes:
        sums: sums per head over queries, by statistic.
        maxima: maxima per head over queries, by statistic: "peak", the largest score.
        query_count: number of queries in the sums.
        heads: indices of the heads in the model; None for all heads.
        spans: names of the spans of keys, in the order of "mass".
        module: index of the attention module among all of a watched model, as in `seen[3]`; None if unknown.
        name: name of the module, for the warning of NaN.
        kept: the last calls, if they are kept.
        warned: names of the modules whose NaN a warning has named. The layers of a model share the list.
    """

    sums: dict[str, Float[Tensor, "heads ..."]] = field(default_factory=dict)
    maxima: dict[str, Float[Tensor, " heads"]] = field(default_factory=dict)
    query_count: Tensor | int = 0  # a tensor after the first call: int() would synchronize the device in every layer
    heads: Sequence[int] | None = None
    spans: Sequence[str] = ()
    module: int | None = None
    name: str = ""
    kept: Sequence[AttentionStatistics] = ()
    warned: list[str] = field(default_factory=list)
    call_count: int = 0
    calls_before_nan: Tensor | int = 0  # a tensor after the first call, like query_count

    @property
    def queries(self) -> int:
        """Number of queries in the means: those that are not padding and have visible keys."""
        return int(self.query_count)

    @property
    def means(self) -> dict[str, Float[Tensor, "heads ..."]]:
        """Means per head, over all queries of all calls; nan if there were none.

        They are "entropy", "distance", "largest" (weight of the top key) and "mass", `[heads, spans]`.
        """
        self.warn_of_nan()
        queries = self.queries
        return {name: total / queries if queries else total * torch.nan for name, total in self.sums.items()}

    def add(self, observed: AttentionStatistics, valid: Bool[Tensor, "batch q_len"] | int) -> None:
        """Add the statistics of one call.

        Args:
            observed: statistics of the call.
            valid: False for queries that are padding or have no visible keys; or the number of queries, if all are
                valid.
        """
        every = isinstance(valid, int)
        self.query_count = self.query_count + (valid if every else valid.sum())
        values = {name: getattr(observed, name) for name in AVERAGED if name in observed}
        if "top" in observed:
            values["largest"] = observed.top.weights[..., 0]
        for name, statistic in values.items():
            if not every:
                excluded = ~(valid[:, None, :, None] if name == "mass" else valid[:, None])
                statistic = statistic.masked_fill(excluded, 0)  # a product with 0 would keep NaN
            total = statistic.sum(dim=(0, 2), dtype=torch.float64)
            self.sums[name] = self.sums[name] + total if name in self.sums else total
        if "peak" in observed and observed.peak.numel():
            peak = observed.peak if every else observed.peak.masked_fill(~valid[:, None], -torch.inf)
            largest = peak.amax(dim=(0, 2))
            before = self.maxima.get("peak")
            self.maxima["peak"] = largest if before is None else torch.maximum(before, largest)
        self.call_count += 1
        total = next(iter((self.sums | self.maxima).values()), None)
        if total is not None:  # NaN stays in a sum and in a maximum
            self.calls_before_nan = self.calls_before_nan + ~total.isnan().any()

    def warn_of_nan(self) -> None:
        """Warn of NaN in the statistics, once for all layers of a model. Name the module and its first such call."""
        totals = (*self.sums.values(), *self.maxima.values())
        if self.warned or not any(bool(total.isnan().any()) for total in totals):
            return
        self.warned.append(self.name)
        call = int(self.calls_before_nan)
        position = call - self.call_count + len(self.kept)
        sequences = _sequences_with_nan(self.kept[position]) if 0 <= position < len(self.kept) else []
        where = f" in {_named_indices('sequence', sequences)}" if sequences else ""
        warnings.warn(
            f"{self.name}: the statistics of call {call} are NaN{where}, so means and maxima over all calls are NaN too"
            " (indices count from 0)",
            stacklevel=4,
        )

    def columns(self) -> dict[str, list[float]]:
        """Return the means and maxima as lists with one entry per head. The mean attention on each span is one list."""
        columns: dict[str, list[float]] = {}
        for name, mean in self.means.items():
            if name == "mass":
                columns |= dict(zip(self.spans, mean.mT.tolist(), strict=True))
            else:
                columns[name] = mean.tolist()
        return columns | {name: largest.tolist() for name, largest in self.maxima.items()}


class AttentionSummary:
    """Statistics of every layer of a model.

    `summary[3]` is the `LayerSummary` of layer 3, and `summary["encoder", 3]` that of a model with several stacks.

    Attributes:
        layers: summaries by (stack, layer).
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]] = (),
        *,
        spans: Sequence[str] | Mapping[str, Sequence[str]] = (),
    ) -> None:
        """Build a summary of layers without calls.

        Args:
            addresses: the layers, as (stack, layer).
            spans: names of the spans of keys, for all stacks or by stack.
        """
        by_stack = spans if isinstance(spans, Mapping) else {stack: spans for stack, _ in addresses}
        for names in by_stack.values():
            check_span_names(names)
        self.layers = {(stack, index): LayerSummary(spans=tuple(by_stack.get(stack, ()))) for stack, index in addresses}

    @property
    def spans(self) -> tuple[str, ...]:
        """Names of the spans of keys. Those of one stack are in the order of "mass"."""
        return tuple(dict.fromkeys(name for layer in self for name in layer.spans))

    @property
    def stacks(self) -> list[str]:
        """Names of the stacks."""
        return list(dict.fromkeys(stack for stack, _ in self.layers))

    def __getitem__(self, key: int | tuple[str, int]) -> LayerSummary:
        if isinstance(key, int) and len(self.stacks) == 1:
            key = (self.stacks[0], key)
        if key not in self.layers:
            stacks = ", ".join(f"{stack!r} {_as_ranges(self._layers_of(stack))}" for stack in self.stacks)
            raise KeyError(f"layer is {key!r}; expected (stack, layer) with {stacks}")
        return self.layers[key]  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[LayerSummary]:
        return iter(self.layers.values())

    def __repr__(self) -> str:
        parts = []
        for stack in self.stacks:
            layers = [self.layers[stack, index] for index in self._layers_of(stack)]
            names = ", ".join([*layers[0].sums, *layers[0].maxima]) or "no means"
            modules = [layer.module for layer in layers if layer.module is not None]
            indices = f" ({_named_indices('module', modules)})" if modules else ""
            queries = "1 query" if layers[0].queries == 1 else f"{layers[0].queries} queries"
            parts.append(f"{stack} {count_noun(len(layers), 'layer')}{indices}, {names} of {queries}")
        return f"AttentionSummary({'; '.join(parts)})"

    def _repr_html_(self) -> str | None:
        if missing_packages("view"):  # notebooks then show repr()
            return None
        self._share_warning()
        means: dict[str, dict[str, dict[str, list[float]]]] = {stack: {} for stack in self.stacks}
        heads: dict[str, Sequence[int] | None] = {}
        for (stack, index), layer in self.layers.items():
            columns = layer.columns()
            row = f"{index}" if layer.module is None else f"{index} (module {layer.module})"
            means[stack][row] = {name: values for name, values in columns.items() if name not in layer.maxima}
            heads[stack] = layer.heads  # the same choice in all layers
        return notebook.means_html(repr(self), means, heads)

    def to_sums(self, model: str = "") -> HeadSums:
        """Return the sums, which can be added to those of other texts. Maxima are not included.

        Raises:
            ValueError: if layers or heads are missing, because sums are stored without their indices.
        """
        for stack in self.stacks:
            indices = self._layers_of(stack)
            chosen = any(self.layers[stack, index].heads is not None for index in indices)
            if chosen or sorted(indices) != list(range(len(indices))):
                raise ValueError(f"summary has some layers or heads of {stack!r}; expected all of them for to_sums()")
        self._share_warning()
        heads: dict[str, list[int]] = {}
        sums: dict[str, Tensor] = {}
        for (stack, index), layer in self.layers.items():
            layer.warn_of_nan()
            heads.setdefault(stack, []).append(max((len(values) for values in layer.sums.values()), default=0))
            sums[f"{stack}.{index}.queries"] = torch.as_tensor(layer.query_count).cpu().double()
            sums |= {f"{stack}.{index}.{name}": values.cpu() for name, values in layer.sums.items()}
        return HeadSums(model, heads, sums)

    @classmethod
    def from_sums(cls, total: HeadSums, *, spans: Sequence[str] | Mapping[str, Sequence[str]] = ()) -> AttentionSummary:
        """Return the summary of the texts in `total`.

        Args:
            total: sums over texts, from `to_sums`.
            spans: names of the spans of keys, for all stacks or by stack.
        """
        addresses = [(stack, index) for stack, layers in total.heads.items() for index in range(len(layers))]
        summary = cls(addresses, spans=spans)
        for (stack, index), layer in summary.layers.items():
            sums = {name: total.sums.get(f"{stack}.{index}.{name}") for name in AVERAGED}
            layer.sums = {name: values for name, values in sums.items() if values is not None}
            layer.query_count = int(total.sums[f"{stack}.{index}.queries"])
            layer.warned = [layer.name]  # to_sums has warned of NaN, or run_jobs
        return summary

    def to_dict(self) -> dict[str, list]:
        """Return a table with one row per head, as columns: stack, layer, head, queries and the mean statistics.

        The mean attention on each span is a column of its name, and `peak` is the largest score over all queries. A
        value is None if a stack has no such span. The summary of a watched model also has a column `module`: `seen[3]`
        is module 3.
        """
        self._share_warning()
        rows: list[dict[str, Any]] = []
        for (stack, index), layer in self.layers.items():
            columns = layer.columns()
            count = len(next(iter(columns.values()), []))
            for row, head in enumerate(range(count) if layer.heads is None else layer.heads):
                values = {name: column[row] for name, column in columns.items()}
                module = {} if layer.module is None else {"module": layer.module}
                address = {"stack": stack, "layer": index, **module, "head": head}
                rows.append({**address, "queries": layer.queries, **values})
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def to_pandas(self) -> Any:
        """Return the table of `to_dict` as a pandas data frame. Requires pandas."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("to_pandas requires pandas; to_dict returns the same table without it") from error
        return pandas.DataFrame(self.to_dict())

    def _share_warning(self) -> None:
        """Let the layers share one warning of NaN."""
        for (stack, index), layer in self.layers.items():
            layer.name = layer.name or f"layer {index} of {stack!r}"
            layer.warned = next(iter(self)).warned

    def _layers_of(self, stack: str) -> list[int]:
        return [index for name, index in self.layers if name == stack]


def _sequences_with_nan(call: AttentionStatistics) -> list[int]:
    tensors = [result for result in call.results().values() if isinstance(result, Tensor)]
    return sorted({index for each in tensors for index in each.flatten(1).isnan().any(dim=1).nonzero()[:, 0].tolist()})


def _as_ranges(indices: Sequence[int]) -> str:
    """Return indices as text, such as "0 to 11" or "2, 5"."""
    ordered = sorted(indices)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered))


def _named_indices(noun: str, indices: Sequence[int]) -> str:
    """Return indices with their noun, such as "layer 3" or "layers 0 to 11"."""
    return f"{noun}{'s' if len(indices) > 1 else ''} {_as_ranges(indices)}"


def check_span_names(names: Sequence[str]) -> None:
    """Raise if a name is used twice or is that of another column of the table."""
    for index, name in enumerate(names):
        if name in COLUMNS or name in names[:index]:
            raise ValueError(
                f"spans has the name {name!r}, which is another column of the table; expected distinct names"
                f" other than {', '.join(COLUMNS)}"
            )


def summarize(recording: Recording, *, spans: StackSpansLike | None = None) -> AttentionSummary:
    """Return entropy, distance and largest weight of every head, over all queries of a recording.

    Args:
        recording: the recording.
        spans: spans of keys, whose mean attention is also returned, as in `AttentionWeights.mass`. If the recording
            has several stacks, a dict of spans by stack, such as `{"decoder": {"image": (0, 16)}}`; "*" is any stack.
    """
    chosen = None if spans is None else SpansOfStacks(spans)
    for group in () if chosen is None else chosen.groups:
        check_span_names(group.names)
    summary = AttentionSummary()
    for name, stack in recording.stacks.items():
        group, names = None, ()
        if chosen is not None:
            chosen.enter(name, recording.stacks)
            group, names = chosen.of_stack(name), chosen.names_of(name)
        valid = torch.ones(1, len(stack.queries), dtype=torch.bool)
        for index, weights in enumerate(stack.layers):
            layer = summary.layers[name, index] = LayerSummary(spans=names)
            call_spans: Any = None if group is None else group.of_call(weights.shape[3])
            observed = observe_with_entropy(weights, distance=True, top=1, spans=call_spans)
            layer.add(observed, valid.to(weights.device))
    if chosen is not None:
        chosen.check()
    return summary
