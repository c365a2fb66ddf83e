"""Payloads sent to a page, as plain dictionaries: model, layer, head, window, cell, calculation, top tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from clearhead._utils.color_scales import visible_shades
from clearhead._utils.text import short_token
from clearhead.recording import Address, Tokens, is_self_attention
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._row_calculation import calculate_row
from clearhead.viewer._statistics_table import COLUMNS, head_values
from clearhead.viewer._thumbnails import SAMPLED_QUERIES, is_sampled
from clearhead.viewer._top_tokens import AttentionDirection, top_tokens

MAX_LINE_TOKENS = 48  # longest side for which lines between tokens are drawn
MAX_WINDOW_TOKENS = 512  # longest side of a window whose token texts are sent
MAX_LISTED_HEADS = 400  # heads listed with their top-attended tokens
Payload = dict[str, Any]


def model_payload(cache: RecordingCache) -> Payload:
    """Return the stacks of a model, with their sizes and sink keys, and the columns of the statistics table."""
    stacks = []
    for name, stack in cache.recording.stacks.items():
        hidden = cache.hidden_keys(name)
        stacks.append(
            {
                "name": name,
                "heads": [weights.shape[1] for weights in stack.layers],
                "groups": [weights.key_heads for weights in stack.layers],
                "queries": len(stack.queries),
                "keys": len(stack.keys),
                "sampled": SAMPLED_QUERIES if is_sampled(stack) else 0,
                "hides": [short_token(stack.keys.texts[key], 14) for key in hidden[:3]],
                "hidden": hidden[:MAX_WINDOW_TOKENS],
                "value_weighted": cache.can_weight_values(name),
            }
        )
    return {
        "name": cache.recording.model,
        "stacks": stacks,
        "labeled": cache.labeled_by_roles,
        "columns": [list(column) for column in COLUMNS],
    }


def layer_payload(cache: RecordingCache, stack: str, layer: int, *, hide: bool = False) -> Payload:
    """Return the thumbnail (as shades, 0 if masked), entropy, statistics and labels of every head of a layer.

    `hide` masks the sink keys in the thumbnails.
    """
    kv_len = len(cache.recording[stack].keys)
    heads = []
    for head, thumbnail in enumerate(cache.thumbnails(stack, layer, hide=hide)):
        rows, columns = thumbnail.values.shape
        heads.append(
            {
                "entropy": thumbnail.statistics.entropy,
                "labels": list(cache.labels((stack, layer, head))),
                "statistics": head_values(thumbnail.statistics),
                "rows": rows,
                "keys": columns,
                "levels": visible_shades(thumbnail.values, kv_len).tobytes(),
            }
        )
    return {"stack": stack, "layer": layer, "hide": hide, "heads": heads}


def head_payload(cache: RecordingCache, address: Address) -> Payload:
    """Return the address of a head. Includes all tokens if the text is short enough to draw lines between them."""
    name, layer, head = address
    stack = cache.recording[name]
    short = max(len(stack.queries), len(stack.keys)) <= MAX_LINE_TOKENS
    sides = {"queries": stack.queries, "keys": stack.keys} if short else {}
    return {
        "stack": name,
        "layer": layer,
        "head": head,
        **{side: [short_token(text) for text in tokens.texts] for side, tokens in sides.items()},
    }


def window_payload(cache: RecordingCache, stack: str, window: HeatmapWindow) -> Payload:
    """Return the tokens along both sides of a window. The list is empty for a side that is too long to read."""
    queries, keys = cache.recording[stack].queries, cache.recording[stack].keys

    def texts(tokens: Tokens, start: int, end: int) -> list[str]:
        return [short_token(text) for text in tokens.texts[start:end]] if end - start <= MAX_WINDOW_TOKENS else []

    row, row_end, key, key_end = window
    return {
        "window": list(window),
        "row": row,
        "rows": texts(queries, row, row_end),
        "key": key,
        "keys": texts(keys, key, key_end),
    }


def cell_payload(cache: RecordingCache, address: Address, query: int, key: int) -> Payload:
    """Return one weight and its score."""
    weights, stack = cache.recording.weights(address), cache.recording[address[0]]
    return {
        "query": query,
        "key": key,
        "query_token": short_token(stack.queries.texts[query]),
        "key_token": short_token(stack.keys.texts[key]),
        "weight": float(weights[0, 0, query, key]),
        "score": float(weights.scores[0, 0, query, key]),
    }


def row_payload(
    cache: RecordingCache, address: Address, query: int, window: HeatmapWindow, *, hide: bool = False
) -> Payload:
    """Return a query's weights for the keys of a window; empty if the window is too wide to read.

    `hide` sets the weights of the sink keys to 0.
    """
    if window.key_end - window.key > MAX_WINDOW_TOKENS:
        return {}
    row = cache.weights(address, hide=hide)[0, 0, query, window.key : window.key_end]
    return {"start": window.key, "row": row.float().cpu().numpy()}


def calculation_payload(cache: RecordingCache, address: Address, query: int, key: int) -> Payload:
    """Return the calculation of a query's weights, with the texts of its tokens."""
    stack = cache.recording[address[0]]
    weights, norms, output_weight = (
        cache.recording.weights(address),
        cache.value_norms(address),
        cache.output_weight(address),
    )
    calculation = asdict(calculate_row(weights, query, key, value_norms=norms, output_weight=output_weight))
    for term in calculation["terms"]:
        term["token"] = short_token(stack.keys.texts[term["key"]])
    return {**calculation, "token": short_token(stack.queries.texts[query])}


def top_tokens_payload(
    cache: RecordingCache, name: str, query: int, key: int, *, hide: bool = False
) -> Iterator[Payload | None]:
    """Yield None after each layer, then the payload.

    The payload lists, for every head, the keys that `query` attends to most and the queries that attend most to `key`.
    `hide` leaves the sink keys out of the first list and out of its means.
    """
    stack = cache.recording[name]
    hidden = cache.hidden_keys(name) if hide else []
    payload: Payload = {
        "query": short_token(stack.queries.texts[query]),
        "key": short_token(stack.keys.texts[key]),
        "same": is_self_attention(name, stack),
        "hide": bool(hidden),
    }
    directions: tuple[tuple[AttentionDirection, int, Tokens], ...] = (
        ("from", query, stack.keys),
        ("to", key, stack.queries),
    )
    for direction, token, others in directions:

        def with_texts(tokens: list[tuple[int, float]], others: Tokens = others) -> list[list[Any]]:
            return [[index, short_token(others.texts[index]), weight] for index, weight in tokens]

        for top in top_tokens(stack, direction, token, hidden):
            heads = sorted(top.heads, key=lambda row: -max((weight for _, weight in row[2]), default=0.0))
            payload[direction] = {
                "everywhere": with_texts(top.everywhere),
                "heads": [[layer, head, with_texts(tokens)] for layer, head, tokens in heads[:MAX_LISTED_HEADS]],
            }
            yield None
    yield payload
