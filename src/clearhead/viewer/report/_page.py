"""HTML page of a report."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from dataclasses import dataclass

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.io.doc import patch_curdoc
from bokeh.resources import INLINE

from clearhead._utils.color_scales import weight_floor
from clearhead._utils.fonts import embed_font
from clearhead._utils.modules import inline_modules
from clearhead._utils.text import short_token, visible_text
from clearhead._utils.version import __version__
from clearhead.analysis import RelationScore, Roles
from clearhead.recording import Address, Recording, Tokens, is_self_attention
from clearhead.recording.row_labels import LABEL_COLUMNS, row_label, written_texts
from clearhead.viewer._charts import PALETTES, HeadChart
from clearhead.viewer._media_payload import media_payload
from clearhead.viewer._payloads import Payload, model_payload
from clearhead.viewer._recording_cache import RecordingCache, labels_of
from clearhead.viewer._search import searchable_tokens
from clearhead.viewer._statistics_table import head_id, head_title, head_values, statistics_row, used_columns
from clearhead.viewer._templates import STATIC_FOLDER, TEMPLATES
from clearhead.viewer.report._details import ReportDetails
from clearhead.viewer.report._report_layer import ReportLayer, SamplingPlan
from clearhead.viewer.report._stored_maps import hidden_bins
from clearhead.viewer.report._visible_keys import packed, visible_ranges


@dataclass(frozen=True, eq=False)
class ReportData:
    """Data of a report: sampling plans by stack, layers and their compressed arrays by stack and layer index.

    `next_tokens` is the compressed list of the most probable next tokens. `weighted` are the stacks whose
    value-weighted maps are stored.
    """

    plans: dict[str, SamplingPlan]
    layers: dict[tuple[str, int], ReportLayer]
    compressed: dict[tuple[str, int], str]
    next_tokens: str
    weighted: frozenset[str] = frozenset()


def compress(data: bytes) -> str:
    """Return deflated bytes in base64, as the page's script expects them."""
    return base64.b64encode(zlib.compress(data)).decode()


def uncompress(text: str) -> str:
    """Return the JSON that `compress` was given."""
    return zlib.decompress(base64.b64decode(text)).decode()


def render_page(cache: RecordingCache, data: ReportData, details: ReportDetails, notes: tuple[str, ...]) -> str:
    """Return the report as one HTML document."""
    recording, roles = cache.recording, cache.roles
    statistics = {
        (name, layer_index, head): head_statistics
        for (name, layer_index), layer in data.layers.items()
        for head, head_statistics in enumerate(layer.statistics)
    }
    label_source = Roles(recording.model, statistics) if roles is None else roles
    labels = {address: labels_of(label_source, address) for address in statistics}
    texts, searchable, stacks = _stack_payloads(cache, data, labels)
    masks = _add_masks(recording, stacks)
    columns = used_columns(statistics)
    chart = HeadChart()
    shown_texts = details.template_variables(recording)
    # after an exception in a viewer's callback, Bokeh's current document stays a destroyed one, and file_html raises
    document = Document()
    with patch_curdoc(document):
        page = file_html(
            (chart.map, chart.entropy, chart.received),
            INLINE,
            visible_text(details.title) if details.title else f"clearhead: {recording.model}",
            template=TEMPLATES.get_template("report.html"),
            template_variables={
                "model": recording.model,
                "notes": notes,
                **shown_texts,
                "model_payload": {
                    **model_payload(cache),
                    "stacks": stacks,
                    "first": head_id(cache.clearest_head()),
                    "view": details.view,
                    "chosen": 0,
                },
                "palettes": PALETTES,
                "media": media_payload(recording),
                "import_map": inline_modules(STATIC_FOLDER),
                "live": False,
                "weighted": bool(data.weighted),
                "tokens": compress(json.dumps(texts).encode()),
                "labels": compress(json.dumps(list(_narrow_labels(recording).items())).encode()),
                "searchable": compress(json.dumps(searchable).encode()),
                "next_tokens": data.next_tokens,
                "masks": masks,
                "layers": [
                    {"stack": name, "index": layer_index, "data": text}
                    for (name, layer_index), text in data.compressed.items()
                ],
                "sampled": any(plan.sampled for plan in data.plans.values()),
                "columns": [column[1:] for column in columns],
                "statistics": [
                    statistics_row(address, head_statistics, labels[address], columns)
                    for address, head_statistics in statistics.items()
                ],
                "relations": [] if roles is None else [_relation_row(score) for score in roles.relations],
                "version": __version__,
            },
        )
    return embed_font(page, json.dumps([recording.model, *shown_texts.values(), *texts]) + uncompress(data.next_tokens))


def _stack_payloads(
    cache: RecordingCache, data: ReportData, labels: dict[Address, tuple[str, ...]]
) -> tuple[list[list[str]], list[Payload], list[Payload]]:
    """Return the texts of the distinct token lists, their normalized texts, and the payload of each stack."""
    tokens: list[Tokens] = []
    written: list[list[str]] = []
    payloads = model_payload(cache)["stacks"]
    for payload in payloads:
        name = payload["name"]
        stack, plan = cache.recording[name], data.plans[name]
        for side in (stack.queries, stack.keys):
            if side not in tokens:
                tokens.append(side)
        heads = [
            [
                {
                    "entropy": statistics.entropy,
                    "labels": labels[name, layer_index, head],
                    "statistics": head_values(statistics),
                    "received": float(layer.max_received[head]),
                }
                for head, statistics in enumerate(layer.statistics)
            ]
            for (stack_name, layer_index), layer in data.layers.items()
            if stack_name == name
        ]
        indices = plan.query_indices
        payload |= {
            "tokens": [tokens.index(stack.queries), tokens.index(stack.keys), None],
            "same": is_self_attention(name, stack),
            "layers": heads,
            "sampled": plan.sampled,
            "bins": list(plan.bin_size),
            "kept": len(indices),
            "places": indices.tolist() if len(indices) < len(stack.queries) else None,
            "bar": plan.keys_per_bar,
            "cells": plan.single_cells,
            "top": data.layers[name, 0].top_keys.shape[2],
            "floor": weight_floor(len(stack.keys)),
            "hidden": list(plan.hidden),
            "hidden_bins": hidden_bins(plan.hidden, plan.bin_size.keys).tolist(),
            "hidden_bars": hidden_bins(plan.hidden, plan.keys_per_bar).tolist(),
            "value_weighted": name in data.weighted,
        }
    for payload in payloads:
        texts = written_texts(cache.recording[payload["name"]])
        if texts is None:
            continue
        if texts not in written:
            written.append(texts)
        payload["tokens"][2] = len(tokens) + written.index(texts)
    return [*map(_short_tokens, tokens), *written], list(map(searchable_tokens, tokens)), payloads


def _add_masks(recording: Recording, payloads: list[Payload]) -> list[str]:
    """Add the index of each layer's mask to the stacks; return the distinct masks, compressed."""
    masks: list[str] = []
    for payload in payloads:
        payload["masks"] = []
        for weights in recording[payload["name"]].layers:
            ranges = visible_ranges(weights)
            mask = None if ranges is None else compress(packed(ranges))
            if mask is not None and mask not in masks:
                masks.append(mask)
            payload["masks"].append(None if mask is None else masks.index(mask))
    return masks


def _relation_row(score: RelationScore) -> Payload:
    return {
        "relation": score.relation,
        "direction": score.direction,
        "head": head_title(score.address),
        "right": f"{score.accuracy:.2f}",
        "interval": f"{score.low:.2f}–{score.high:.2f}",
        "fixed": f"{score.baseline:.2f} at {score.offset:+d}",
        "pairs": str(score.count),
    }


def compress_next_tokens(recording: Recording) -> str:
    """Return the most probable next tokens by position, compressed; an empty list for a model that predicts none.

    Runs the language-model head if they are deferred.
    """
    predicted = recording.next_tokens and recording.next_tokens.computed()
    rows = () if predicted is None else ((position, predicted.at(position)) for position in predicted.positions)
    listed = [
        (position, [(short_token(text), round(probability, 4)) for text, probability in tokens])
        for position, tokens in rows
    ]
    return compress(json.dumps(listed).encode())


def _narrow_labels(recording: Recording) -> dict[str, str]:
    """Return the axis labels that are shorter than their texts, by these texts.

    The text of a row that writes a token has two lines: the token that it reads, and the one that it writes.
    """
    labels: dict[str, str] = {}
    for stack in recording.stacks.values():
        rows = zip(_short_tokens(stack.queries), written_texts(stack) or [""] * len(stack.queries), strict=True)
        for query, row in enumerate(rows):
            name = "\n".join(filter(None, row))
            if name not in labels:
                labels[name] = row_label(stack, query)
        for key, name in enumerate(_short_tokens(stack.keys)):
            if name not in labels:
                labels[name] = short_token(stack.keys.texts[key], LABEL_COLUMNS)
    return {name: label for name, label in labels.items() if label != name.replace("\n", " → ")}


def _short_tokens(tokens: Tokens) -> list[str]:
    shorten = functools.cache(short_token)  # long texts repeat most of their tokens
    return [shorten(text) for text in tokens.texts]
