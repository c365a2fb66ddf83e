"""`report`: export a recording as one self-contained HTML file that works offline."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from clearhead._utils.checks import check_path, describe
from clearhead._utils.files import replacing
from clearhead._utils.suffixes import check_suffix
from clearhead.analysis import Roles
from clearhead.recording import Recording, Stack
from clearhead.recording.addresses import find_address
from clearhead.viewer._media_payload import grid_side
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer.report._details import ReportDetails, focused_queries
from clearhead.viewer.report._page import ReportData, compress, compress_next_tokens, render_page
from clearhead.viewer.report._report_layer import MAX_BARS, ReportLayer, SamplingPlan, summarize_layer
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
    title: str | None = None,
    note: str | None = None,
    command: str | None = None,
    view: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Export a recording as one HTML page with the heatmap, top keys, statistics and labels of every head.

        report(record(model, "The old dog barked."), "report.html")

    Heatmaps have at most 128 × 128 bins. Above 2,048 tokens, the page stores a subset of the queries. It always
    includes the last tokens, the query of `view`, and the tokens that these attend to most. Above 4,096 tokens,
    everything is computed from a sample of queries. The page and `Report.notes` list such omissions.

    The page also shows the text, the translation if there is one, and the date: that of SOURCE_DATE_EPOCH if it is set.

    Args:
        recording: the recording to export, or the result of `watch`.
        path: a file to write the page to (default: none).
        roles: labels from `clearhead.analysis.head_roles` (default: labels computed from this text alone).
        title: title of the page (default: the name of the model).
        note: a note to the reader, as plain text.
        command: the command that wrote the report.
        view: URL fragment of the view to open on, such as "head=cross.2.5&cell=4-2" (default: the clearest head).
        progress: called after each layer with the number of finished layers and the total number of layers.

    Returns:
        The page. In a notebook, it renders inline.
    """
    if isinstance(recording, Seen):
        recording = recording.recording()
    if not isinstance(recording, Recording):
        raise TypeError(f"recording is {type(recording).__name__}; expected a Recording, such as record(model, text)")
    if path is not None:
        check_suffix("path", check_path("path", path), "html")
    if not callable(progress):
        raise TypeError(f"progress is {describe(progress)}; expected a function of done and total")
    cache = RecordingCache(recording, roles)
    details = ReportDetails.checked(title=title, note=note, command=command, view=view)
    if details.head is not None:
        find_address(recording, details.head)  # raises for a head that the recording does not have
    with nullcontext() if path is None else replacing(path) as temporary:  # an unwritable path fails before the work
        plans = sampling_plans(cache, details)
        total = sum(len(stack.layers) for stack in recording.stacks.values())
        layers = {}
        for address, layer in summarize_layers(cache, plans):
            layers[address] = layer
            progress(len(layers), total)
        written = finish_report(cache, fit_to_size(cache, plans, layers), details)
        if temporary is not None:
            temporary.write_text(written.html, encoding="utf-8")
    return replace(written, path=None if path is None else Path(path))


def sampling_plans(cache: RecordingCache, details: ReportDetails) -> dict[str, SamplingPlan]:
    """Return the sampling plan of each stack."""
    recording, cursor = cache.recording, details.cursor(cache.recording)
    heads = len(list(recording.heads()))
    max_bins = max(MIN_HEATMAP_BINS, int(MAX_HEATMAP_BINS * math.sqrt(min(1.0, MAX_FULL_SIZE_HEADS / heads))))
    max_bars = max(MIN_BARS, MAX_BARS * MAX_FULL_SIZE_HEADS // max(MAX_FULL_SIZE_HEADS, heads))
    return {
        name: SamplingPlan.from_stack(
            stack,
            _bins_of(stack, max_bins),
            max_bars,
            focused_queries(cache, name, cursor),
            cache.hidden_keys(name),
        )
        for name, stack in recording.stacks.items()
    }


def _bins_of(stack: Stack, max_bins: int) -> int:
    """Return the number of bins per axis. Patches have one bin each, so that maps over a picture are exact."""
    sides = (len(stack.queries), len(stack.keys))
    cells = sum(weights.shape[1] for weights in stack.layers) * sides[0] * sides[1]
    return max(max_bins, *sides) if grid_side(stack) and cells <= MAX_GRID_CELLS else max_bins


def summarize_layers(
    cache: RecordingCache, plans: dict[str, SamplingPlan]
) -> Iterator[tuple[tuple[str, int], ReportLayer]]:
    """Yield the stack, the index and the data of each layer."""
    for name, stack in cache.recording.stacks.items():
        for layer in range(len(stack.layers)):
            yield (name, layer), summarize_layer(name, stack, layer, plans[name], cache.value_shares(name, layer))


def finish_report(cache: RecordingCache, data: ReportData, details: ReportDetails) -> Report:
    """Return the report with its page. In a server, call it in the thread of the event loop.

    Bokeh's current document is a global variable, which the callbacks of the event loop use too.
    """
    notes = _notes(cache.recording, data)
    return Report(render_page(cache, data, details, notes), notes)


def fit_to_size(
    cache: RecordingCache, plans: dict[str, SamplingPlan], layers: dict[tuple[str, int], ReportLayer]
) -> ReportData:
    """Compress the next tokens and the layers, so that the layers fit into `MAX_ARRAY_BYTES`.

    Value-weighted maps are left out first. Then the number of queries is halved until the layers fit.
    """
    queries = max(len(plan.query_indices) for plan in plans.values())
    weighted = {name for (name, _), layer in layers.items() if layer.shares is not None}
    while True:
        positions = {name: plan.positions(queries) for name, plan in plans.items()}
        stored = {name: plan.subsampled(positions[name]) for name, plan in plans.items()}
        compressed = {}
        for (name, index), layer in layers.items():
            kv_len = len(cache.recording[name].keys)
            packed = layer.subsampled(positions[name]).pack(stored[name], kv_len, weighted=name in weighted)
            compressed[name, index] = compress(packed)
        size = sum(map(len, compressed.values()))
        if size <= MAX_ARRAY_BYTES or (queries <= MIN_STORED_QUERIES and not weighted):
            return ReportData(stored, layers, compressed, compress_next_tokens(cache.recording), frozenset(weighted))
        if weighted:
            weighted = set()
        else:
            queries //= 2


def _notes(recording: Recording, data: ReportData) -> tuple[str, ...]:
    notes = []
    if not data.weighted and any(layer.shares is not None for layer in data.layers.values()):
        notes.append("value-weighted maps are left out, because the file would be too large")
    for name, plan in data.plans.items():
        q_len, stored = len(recording[name].queries), len(plan.query_indices)
        if plan.sampled:
            queries = f"{plan.sampled:,} evenly spaced queries of {q_len:,}"
            notes.append(f"{name}: sampled, everything is computed from {queries} (exact rows)")
        if stored < q_len:
            queries = f"{stored:,} of {q_len:,} queries: evenly spaced, and the tokens at the end and in focus"
            notes.append(f"{name}: subsampled, top keys and entropy are stored for {queries}")
    return tuple(notes)
