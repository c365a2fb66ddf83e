"""Payloads sent to a page, as plain dictionaries: model, layer, head, window, cell, calculation, top tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from clearhead._utils.color_scales import visible_shades
from clearhead._utils.text import TOKEN_COLUMNS, short_token
from clearhead.recording import Address, Tokens, is_self_attention
from clearhead.recording.row_labels import row_label, written_text, written_texts
from clearhead.viewer._explain_page import is_explainable
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._row_calculation import calculate_row
from clearhead.viewer._statistics_table import COLUMNS, head_id, head_values
from clearhead.viewer._thumbnails import SAMPLED_QUERIES, is_sampled
from clearhead.viewer._top_tokens import AttentionDirection, top_tokens
from clearhead.viewer._words_payload import stack_languages

MAX_WINDOW_TOKENS = 512  # longest side of a window whose token texts are sent
MAX_LISTED_HEADS = 400  # heads listed with their top-attended tokens
MAX_SHOWN_LETTERS = 2_000  # of the text that a model read or wrote
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
                "languages": stack_languages(cache.recording, name),
                "value_weighted": cache.can_weight_values(name),
            }
        )
    return {
        "name": cache.recording.model,
        "stacks": stacks,
        "labeled": cache.labeled_by_roles,
        "columns": [list(column) for column in COLUMNS],
        **{side: _shortened(getattr(cache.recording, side)) for side in ("input", "output")},
    }


def layer_payload(
    cache: RecordingCache, stack: str, layer: int, *, hide: bool = False, value_weighted: bool = False
) -> Payload:
    """Return the thumbnail (as shades, 0 if masked), entropy, statistics and labels of every head of a layer.

    `hide` masks the sink keys in the thumbnails. `value_weighted` weights them by their values, if these are known.
    """
    kv_len = len(cache.recording[stack].keys)
    heads = []
    for head, thumbnail in enumerate(cache.thumbnails(stack, layer, hide=hide, value_weighted=value_weighted)):
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
    return {"stack": stack, "layer": layer, "hide": hide, "weighted": value_weighted, "heads": heads}


def head_payload(address: Address) -> Payload:
    """Return the address of a head."""
    name, layer, head = address
    return {"stack": name, "layer": layer, "head": head}


def window_payload(cache: RecordingCache, stack: str, window: HeatmapWindow) -> Payload:
    """Return the tokens along both sides of a window. The list is empty for a side that is too long to read."""
    queries, keys = cache.recording[stack].queries, cache.recording[stack].keys
    short = window.row_end - window.row <= MAX_WINDOW_TOKENS

    def texts(tokens: Tokens, start: int, end: int) -> list[str]:
        return [short_token(text) for text in tokens.texts[start:end]] if end - start <= MAX_WINDOW_TOKENS else []

    row, row_end, key, key_end = window
    return {
        "window": list(window),
        "row": row,
        "rows": texts(queries, row, row_end),
        "written": written_texts(cache.recording[stack], row, row_end) if short else None,
        "key": key,
        "keys": texts(keys, key, key_end),
    }


def cell_payload(cache: RecordingCache, address: Address, query: int, key: int) -> Payload:
    """Return one weight and its score."""
    weights, stack = cache.recording.weights(address), cache.recording[address[0]]
    shares = cache.value_shares(*address[:2])
    return {
        "head": head_id(address),  # equal cells of two heads must differ: Bokeh sends changes only
        "query": query,
        "key": key,
        "query_token": short_token(stack.queries.texts[query]),
        "key_token": short_token(stack.keys.texts[key]),
        "written": written_text(stack, query),
        "weight": float(weights[0, 0, query, key]),
        "score": float(weights.scores[0, 0, query, key]),
        "share": None if shares is None else float(shares[address[2], key]),
    }


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
    return {
        **calculation,
        "token": short_token(stack.queries.texts[query]),
        "position": query,
        "key": key,  # equal rows of two keys must differ: Bokeh sends changes only
        "explained": is_explainable(cache, address),
    }


def top_tokens_payload(
    cache: RecordingCache, name: str, query: int, key: int, *, hide: bool = False, value_weighted: bool = False
) -> Iterator[Payload | None]:
    """Yield None after each layer, then the payload.

    The payload lists, for every head, the keys that `query` attends to most and the queries that attend most to `key`.
    `hide` leaves the sink keys out of the first list and out of its means. `value_weighted` weights both lists by the
    values, if these are known; the means are then left out, because the heads have different units.
    """
    stack = cache.recording[name]
    hidden = cache.hidden_keys(name) if hide else []
    shares = cache.stack_shares(name) if value_weighted else None
    payload: Payload = {
        "query": short_token(stack.queries.texts[query]),
        "written": written_text(stack, query),
        "key": short_token(stack.keys.texts[key]),
        "same": is_self_attention(name, stack),
        "hide": bool(hidden),
        "weighted": shares is not None,
    }
    directions: tuple[tuple[AttentionDirection, int, Callable[[int], str]], ...] = (
        ("from", query, lambda index: short_token(stack.keys.texts[index])),
        ("to", key, lambda index: row_label(stack, index, TOKEN_COLUMNS)),
    )
    for direction, token, text_of in directions:

        def with_texts(tokens: list[tuple[int, float]], text_of: Callable[[int], str] = text_of) -> list[list[Any]]:
            return [[index, text_of(index), weight] for index, weight in tokens]

        for top in top_tokens(stack, direction, token, hidden, shares):
            heads = sorted(top.heads, key=lambda row: -max((weight for _, weight in row[2]), default=0.0))
            payload[direction] = {
                **({} if shares is not None else {"everywhere": with_texts(top.everywhere)}),
                "heads": [[layer, head, with_texts(tokens)] for layer, head, tokens in heads[:MAX_LISTED_HEADS]],
            }
            yield None
    yield payload


def _shortened(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_SHOWN_LETTERS else f"{text[: MAX_SHOWN_LETTERS - 1]}…"
