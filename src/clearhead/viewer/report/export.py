"""`report`: export a recording as one self-contained HTML file that works offline."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from clearhead._utils.files import replacing
from clearhead.analysis import Roles
from clearhead.recording import Recording, Stack
from clearhead.viewer._media_payload import grid_side
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer.report._page import ReportData, compress, render_page
from clearhead.viewer.report._report_layer import MAX_BARS, SamplingPlan, summarize_layer
from clearhead.watching.seen import Seen

MAX_HEATMAP_BINS = 128  # bins per axis
MAX_FULL_SIZE_HEADS = 288  # models with more heads get fewer bins and bars per head
MIN_HEATMAP_BINS, MIN_BARS = 8, 64  # for any number of heads
MAX_ARRAY_BYTES = 18_000_000  # compressed arrays of all layers; the scripts add 1.4 million
MAX_GRID_CELLS = 6_000_000  # weights of a stack with patches that are all stored: 144 heads of 197 tokens
MIN_STORED_QUERIES = 32  # stored even if the arrays exceed MAX_ARRAY_BYTES


@dataclass(frozen=True, eq=False)
class Report:
    """Self-contained HTML page, which notebooks render inline."""

    html: str
    notes: tuple[str, ...]  # queries that are not stored, if any
    path: Path | None = None  # the file it was written to

    def __repr__(self) -> str:
        path = "" if self.path is None else f"{str(self.path)!r}, "
        return f"Report({path}{len(self.html) / 1e6:.1f} MB{''.join(f'; {note}' for note in self.notes)})"

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 50rem; border: 0"
        return f'<iframe srcdoc="{html.escape(self.html)}" title="clearhead report" style="{style}"></iframe>'


def report(
    recording: Recording | Seen,
    path: str | os.PathLike[str] | None = None,
    *,
    roles: Roles | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Export a recording as one HTML page with the heatmap, top keys, statistics and labels of every head.

        report(record(model, "The old dog barked."), "report.html")

    Heatmaps have at most 128 × 128 bins. Above 2,048 tokens, the page stores a subset of the queries. Above 4,096
    tokens, everything is computed from a sample of queries. The page and `Report.notes` list such omissions.

    Args:
        recording: the recording to export, or the result of `watch`.
        path: a file to write the page to (default: none).
        roles: labels from `clearhead.analysis.head_roles` (default: labels computed from this text alone).
        progress: called after each layer with the number of finished layers and the total number of layers.

    Returns:
        The page. In a notebook, it renders inline.
    """
    if isinstance(recording, Seen):
        recording = recording.recording()
    if not isinstance(recording, Recording):
        raise TypeError(f"recording is {type(recording).__name__}; expected a Recording, such as record(model, text)")
    cache = RecordingCache(recording, roles)
    with nullcontext() if path is None else replacing(path) as temporary:  # an unwritable path fails before the work
        data = _fit_to_size(recording, _summarize(recording, progress))
        notes = _notes(recording, data.plans)
        page = render_page(cache, data, roles, notes)
        if temporary is not None:
            temporary.write_text(page, encoding="utf-8")
    return Report(page, notes, None if path is None else Path(path))


def _summarize(recording: Recording, progress: Callable[[int, int], None]) -> ReportData:
    heads = len(list(recording.heads()))
    max_bins = max(MIN_HEATMAP_BINS, int(MAX_HEATMAP_BINS * math.sqrt(min(1.0, MAX_FULL_SIZE_HEADS / heads))))
    max_bars = max(MIN_BARS, MAX_BARS * MAX_FULL_SIZE_HEADS // max(MAX_FULL_SIZE_HEADS, heads))
    plans = {
        name: SamplingPlan.from_stack(stack, _bins_of(stack, max_bins), max_bars)
        for name, stack in recording.stacks.items()
    }
    addresses = [(name, layer) for name, stack in recording.stacks.items() for layer in range(len(stack.layers))]
    layers = {}
    for done, (name, layer) in enumerate(addresses, start=1):
        layers[name, layer] = summarize_layer(name, recording[name], layer, plans[name])
        progress(done, len(addresses))
    return ReportData(plans, layers, {})


def _bins_of(stack: Stack, max_bins: int) -> int:
    """Return the number of bins per axis. Patches have one bin each, so that maps over a picture are exact."""
    sides = (len(stack.queries), len(stack.keys))
    cells = sum(weights.shape[1] for weights in stack.layers) * sides[0] * sides[1]
    return max(max_bins, *sides) if grid_side(stack) and cells <= MAX_GRID_CELLS else max_bins


def _fit_to_size(recording: Recording, data: ReportData) -> ReportData:
    """Pack and compress the layers, with half the queries until they fit into `MAX_ARRAY_BYTES`."""
    queries = max(len(plan.query_indices) for plan in data.plans.values())
    while True:
        plans = {name: plan.subsampled(queries) for name, plan in data.plans.items()}
        compressed = {}
        for (name, layer_index), layer in data.layers.items():
            packed = layer.subsampled(queries).pack(plans[name], len(recording[name].keys))
            compressed[name, layer_index] = compress(packed)
        if sum(map(len, compressed.values())) <= MAX_ARRAY_BYTES or queries <= MIN_STORED_QUERIES:
            return ReportData(plans, data.layers, compressed)
        queries //= 2


def _notes(recording: Recording, plans: dict[str, SamplingPlan]) -> tuple[str, ...]:
    notes = []
    for name, plan in plans.items():
        q_len, stored = len(recording[name].queries), len(plan.query_indices)
        if plan.sampled:
            queries = f"{plan.sampled:,} evenly spaced queries of {q_len:,}"
            notes.append(f"{name}: sampled, everything is computed from {queries} (exact rows)")
        if stored < (plan.sampled or q_len):
            queries = f"{stored:,} evenly spaced queries of {q_len:,}"
            notes.append(f"{name}: subsampled, top keys and entropy are stored for {queries}")
    return tuple(notes)
