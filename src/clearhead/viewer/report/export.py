"""`report`: what was seen of a recording as one HTML file that needs nothing else, to keep and to send."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from clearhead._utils.files import replacing
from clearhead.analysis.roles import Roles
from clearhead.recording.recording import Recording
from clearhead.viewer._recording_cache import Gallery
from clearhead.viewer.report._layer_summary import Outline, digest, outline
from clearhead.viewer.report._page import Layers, page_of, squeezed

SIDE = 128  # bins of a map each way, at most
BARS = 2048  # of what keys receive, at most
HEADS = 288  # that have so large maps and so many bars; of more heads there is less
FEWEST_BINS, FEWEST_BARS = 8, 64
LIMIT = 18_000_000  # bytes of all layers' arrays, as they stand in the file; its scripts are another 1.4 million
FEWEST = 32  # queries that are kept even if it gets larger


@dataclass(frozen=True, eq=False)
class Report:
    """One HTML page, offline. In a notebook it shows itself."""

    html: str
    notes: tuple[str, ...]  # what was left out, if anything was
    path: Path | None = None  # where it was written

    def __repr__(self) -> str:
        where = "" if self.path is None else f"{str(self.path)!r}, "
        return f"Report({where}{len(self.html) / 1e6:.1f} MB{''.join(f'; {note}' for note in self.notes)})"

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 50rem; border: 0"
        return f'<iframe srcdoc="{html.escape(self.html)}" title="clearhead report" style="{style}"></iframe>'


def report(
    recording: Recording,
    path: str | os.PathLike[str] | None = None,
    *,
    roles: Roles | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Report:
    """Every head of a recording on one page: its map, where each query looks, its numbers and what it clearly does.

        report(record(model, "The old dog barked."), "report.html")

    Maps have at most 128 × 128 bins. Of texts above 2,048 tokens some queries are kept, and above 4,096 tokens these
    are all that is looked at; the page says so, and so does `Report.notes`.

    Args:
        path: a file to write, too.
        roles: labels from `clearhead.analysis.head_roles` (default: those that follow from this text alone).
        progress: called with the number of layers done and the number of all.
    """
    if not isinstance(recording, Recording):
        raise TypeError(f"recording is {type(recording).__name__}; expected a Recording, such as record(model, text)")
    gallery = Gallery(recording, roles)
    with nullcontext() if path is None else replacing(path) as temporary:  # that it can be written is seen first
        layers = _fitted(recording, _digested(recording, progress))
        notes = _notes(recording, layers.outlines)
        page = page_of(gallery, layers, roles, notes)
        if temporary is not None:
            temporary.write_text(page, encoding="utf-8")
    return Report(page, notes, None if path is None else Path(path))


def _digested(recording: Recording, progress: Callable[[int, int], None]) -> Layers:
    heads = len(list(recording.heads()))
    side = max(FEWEST_BINS, int(SIDE * math.sqrt(min(1.0, HEADS / heads))))
    bars = max(FEWEST_BARS, BARS * HEADS // max(HEADS, heads))
    outlines = {name: outline(stack, side, bars) for name, stack in recording.stacks.items()}
    places = [(name, layer) for name, stack in recording.stacks.items() for layer in range(len(stack.layers))]
    digests = {}
    for number, (name, layer) in enumerate(places):
        digests[name, layer] = digest(name, recording[name], layer, outlines[name])
        progress(number + 1, len(places))
    return Layers(outlines, digests, {})


def _fitted(recording: Recording, layers: Layers) -> Layers:
    """The layers packed, with the data of as many queries as the file has room for."""
    queries = max(len(own.places) for own in layers.outlines.values())
    while True:
        outlines = {name: own.thinned(queries) for name, own in layers.outlines.items()}
        packed = {}
        for (name, layer), own in layers.digests.items():
            raw = own.thinned(queries).packed(outlines[name], len(recording[name].keys))
            packed[name, layer] = squeezed(raw)
        if sum(map(len, packed.values())) <= LIMIT or queries <= FEWEST:
            return Layers(outlines, layers.digests, packed)
        queries //= 2


def _notes(recording: Recording, outlines: dict[str, Outline]) -> tuple[str, ...]:
    notes = []
    for name, own in outlines.items():
        queries, kept = len(recording[name].queries), len(own.places)
        if own.sampled:
            some = f"{own.sampled:,} evenly spaced queries of {queries:,}"
            notes.append(f"{name}: sampled, all that is shown is from {some}, each of them exact")
        if kept < (own.sampled or queries):
            some = f"{kept:,} evenly spaced queries of {queries:,}"
            notes.append(f"{name}: thinned, largest weights and entropy are those of {some}")
    return tuple(notes)
