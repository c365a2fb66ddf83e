"""Sums and maxima of the statistics of heads, which can be added over forward passes and over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.json_numbers import json_numbers
from clearhead.analysis.summary import LayerSummary
from clearhead.distributed.process_group import ProcessGroup

MEANS = ("entropy", "distance", "sink")


class HeadTotals(NamedTuple):
    """Statistics of the heads of one module, over some queries.

    Attributes:
        sums: number of queries, and sums of `MEANS` over them.
        peaks: the largest score.
    """

    sums: Float[Tensor, "heads 4"]
    peaks: Float[Tensor, " heads"]

    @classmethod
    def of(cls, summary: LayerSummary) -> HeadTotals:
        """Return the totals of a module that was watched with one span, the sink."""
        entropy, distance, mass = (summary.sums[name] for name in ("entropy", "distance", "mass"))
        queries = torch.as_tensor(summary.query_count).to(entropy).expand_as(entropy)
        peaks = summary.maxima.get("peak", torch.full_like(entropy, -torch.inf))
        return cls(torch.stack([queries, entropy, distance, mass[:, 0]], dim=1), peaks.to(entropy))

    def merged(self, other: HeadTotals) -> HeadTotals:
        """Return the totals over the queries of both."""
        return HeadTotals(self.sums + other.sums, torch.maximum(self.peaks, other.peaks))


def over_ranks(
    totals: dict[str, HeadTotals], error: Exception | None, process_group: ProcessGroup
) -> dict[str, HeadTotals]:
    """Return the totals over all ranks, on the CPU. A module may be missing on some ranks.

    Args:
        totals: totals of this rank, by module.
        error: error of this rank, which all ranks raise: a rank that left alone would leave the others waiting.
        process_group: the ranks.
    """
    layouts = process_group.all_gather(({name: len(each.peaks) for name, each in totals.items()}, error))
    if error is not None:
        raise error
    heads: dict[str, int] = {}
    for rank, (layout, rank_error) in enumerate(layouts):
        if rank_error is not None:
            raise ValueError(f"rank {rank}: {rank_error}")
        for name, count in layout.items():
            if heads.setdefault(name, count) != count:
                raise ValueError(
                    f"rank {rank} has {count} heads in {name}, but a rank before it has {heads[name]}; expected the"
                    " same on all ranks"
                )
    device = next(iter(totals.values())).sums.device
    absent = {
        name: HeadTotals(
            torch.zeros(count, 1 + len(MEANS), dtype=torch.float64), torch.full((count,), -torch.inf).double()
        )
        for name, count in heads.items()
        if name not in totals
    }
    ordered = [{**totals, **absent}[name] for name in heads]
    sums = process_group.all_reduce(torch.cat([each.sums.to(device) for each in ordered])).cpu()
    peaks = process_group.all_reduce_max(torch.cat([each.peaks.to(device) for each in ordered])).cpu()
    peaks = peaks.masked_fill(sums[:, 1].isnan(), torch.nan)  # a maximum over ranks may drop NaN, a sum does not
    counts = list(heads.values())
    parts = map(HeadTotals, sums.split(counts), peaks.split(counts))
    return dict(zip(heads, parts, strict=True))


def to_record(totals: dict[str, HeadTotals]) -> dict[str, Any]:
    """Return the means over all heads, and those of each head by module, with numbers for JSON."""
    modules = {}
    for name, (sums, peaks) in totals.items():
        columns = (sums[:, 1:] / sums[:, :1]).mT.tolist()  # nan for a module whose queries are all padding
        values = {statistic: json_numbers(column) for statistic, column in zip(MEANS, columns, strict=True)}
        modules[name] = {"queries": int(sums[0, 0]), **values, "peak": json_numbers(peaks.tolist())}
    return {**mean_over_heads(totals.values()), "modules": modules}


def mean_over_heads(totals: Iterable[HeadTotals]) -> dict[str, float | None]:
    """Return the mean of each statistic over all heads of some modules, and the largest score.

    Modules without queries are left out; the values are None if there are no others.
    """
    observed = [each for each in totals if each.sums[0, 0] > 0]
    if not observed:
        return dict.fromkeys((*MEANS, "peak"))
    means = torch.cat([sums[:, 1:] / sums[:, :1] for sums, _ in observed]).mean(dim=0).tolist()
    peak = torch.cat([peaks for _, peaks in observed]).amax().item()
    return dict(zip((*MEANS, "peak"), json_numbers([*means, peak]), strict=True))
