"""A report's page: what its template is told."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from functools import cache

from bokeh.embed import file_html
from bokeh.resources import INLINE

from clearhead._utils.color_scales import weight_floor
from clearhead._utils.text import short_token
from clearhead._utils.version import __version__
from clearhead.analysis.relations import RelationScore
from clearhead.analysis.roles import Roles
from clearhead.analysis.statistics import HeadStatistics
from clearhead.recording.recording import Address, Tokens, is_self_attention
from clearhead.viewer import _payloads
from clearhead.viewer._charts import PALETTES, HeadChart
from clearhead.viewer._pages import PAGES
from clearhead.viewer._recording_cache import Gallery, clarity, labels_of
from clearhead.viewer.report._layer_summary import Digest, Outline

# statistic, its heading, what it means
_COLUMNS = (
    ("entropy", "entropy", "of a query's weights, in nats"),
    ("spread", "spread", "entropy as a share of the largest there could be: 0 one key, 1 all alike"),
    ("distance", "distance", "between a query and what it attends to, in tokens"),
    ("self", "self", "weight on the query's own position"),
    ("previous", "previous", "weight on the position before"),
    ("next", "next", "weight on the position after"),
    ("sink", "first token", "weight on the first key"),
    ("offset", "offset", "where the most attended key lies most often: key − query"),
    ("positional", "positional", "how often it lies there"),
    ("delimiter", "delimiter", "weight on special tokens, of queries that are none"),
)


@dataclass(frozen=True, eq=False)
class Layers:
    """What is kept of every stack and layer, and the layers' arrays as text."""

    outlines: dict[str, Outline]
    digests: dict[tuple[str, int], Digest]
    packed: dict[tuple[str, int], str]


def squeezed(data: bytes) -> str:
    """As text, for a page to unpack."""
    return base64.b64encode(zlib.compress(data)).decode()


def page_of(gallery: Gallery, layers: Layers, roles: Roles | None, notes: tuple[str, ...]) -> str:
    """The whole file."""
    recording = gallery.recording
    measured = {
        (name, layer, head): own
        for (name, layer), found in layers.digests.items()
        for head, own in enumerate(found.statistics)
    }
    by = Roles(recording.model, measured) if roles is None else roles
    labels = {address: labels_of(by, address) for address in measured}
    last = list(recording.stacks)[-1]
    first = max((own for own in measured if own[0] == last), key=lambda own: clarity(measured[own]))
    tokens, stacks = _stacks(gallery, layers, labels)
    columns = [own for own in _COLUMNS if any(getattr(head, own[0]) is not None for head in measured.values())]
    chart = HeadChart()
    return file_html(
        (chart.map, chart.entropy, chart.received),
        INLINE,
        f"clearhead: {recording.model}",
        template=PAGES.get_template("report.html"),
        template_variables={
            "model": recording.model,
            "notes": notes,
            "facts": {**_payloads.model_facts(gallery), "stacks": stacks, "first": _place(first), "chosen": 0},
            "palettes": PALETTES,
            "live": False,
            "tokens": squeezed(json.dumps([_shown(side) for side in tokens]).encode()),
            "layers": [{"stack": name, "number": layer, "data": text} for (name, layer), text in layers.packed.items()],
            "sampled": any(own.sampled for own in layers.outlines.values()),
            "columns": [own[1:] for own in columns],
            "statistics": [_row(address, own, labels[address], columns) for address, own in measured.items()],
            "relations": [] if roles is None else [_relation(score) for score in roles.relations],
            "version": __version__,
        },
    )


def _stacks(
    gallery: Gallery, layers: Layers, labels: dict[Address, tuple[str, ...]]
) -> tuple[list[Tokens], list[_payloads.Facts]]:
    """The different lists of tokens; and each stack with what is kept of it."""
    recording = gallery.recording
    tokens: list[Tokens] = []
    stacks = _payloads.model_facts(gallery)["stacks"]
    for stack in stacks:
        name = stack["name"]
        own, kept = recording[name], layers.outlines[name]
        for side in (own.queries, own.keys):
            if side not in tokens:
                tokens.append(side)
        heads = [
            [
                {"entropy": found.entropy, "labels": labels[name, layer, head], "received": float(digest.most[head])}
                for head, found in enumerate(digest.statistics)
            ]
            for (stack_name, layer), digest in layers.digests.items()
            if stack_name == name
        ]
        stack |= {
            "tokens": [tokens.index(own.queries), tokens.index(own.keys)],
            "same": is_self_attention(name, own),
            "layers": heads,
            "sampled": kept.sampled,
            "bins": list(kept.bins),
            "kept": len(kept.places),
            "places": kept.places.tolist() if len(kept.places) < len(own.queries) else None,
            "bar": kept.bar,
            "cells": kept.cells,
            "top": layers.digests[name, 0].top_keys.shape[2],
            "floor": weight_floor(len(own.keys)),
        }
    return tokens, stacks


def _row(
    address: Address, own: HeadStatistics, labels: tuple[str, ...], columns: list[tuple[str, str, str]]
) -> _payloads.Facts:
    numbers = []
    for name, _, _ in columns:
        value = getattr(own, name)
        written = "" if value is None else f"{value:+d}" if isinstance(value, int) else f"{value:.3f}"
        numbers.append("0" if written and not float(written) else written.replace("-", "−"))
    return {
        "place": _place(address),
        "head": _read(address),
        "labels": ", ".join(labels),
        "numbers": numbers,
    }


def _relation(score: RelationScore) -> _payloads.Facts:
    return {
        "relation": score.relation,
        "direction": score.direction,
        "head": _read(score.address),
        "right": f"{score.accuracy:.2f}",
        "interval": f"{score.low:.2f}–{score.high:.2f}",
        "fixed": f"{score.baseline:.2f} at {score.offset:+d}",
        "pairs": str(score.count),
    }


def _place(address: Address) -> str:
    return ".".join(map(str, address))


def _read(address: Address) -> str:
    stack, layer, head = address
    return f"{stack} {layer}.{head}"


def _shown(tokens: Tokens) -> list[str]:
    shorten = cache(short_token)  # a long text has few different tokens
    return [shorten(text) for text in tokens.texts]
