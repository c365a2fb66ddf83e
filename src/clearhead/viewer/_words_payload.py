"""Payloads of the words: tokens and the weights between them for all heads of a layer, and next tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from clearhead._utils.text import short_token
from clearhead.recording import Address, Recording, is_self_attention
from clearhead.recording.row_labels import written_texts
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._statistics_table import head_id

MAX_WHOLE_TOKENS = 48  # longest side that is drawn as a whole
WINDOW_TOKENS = 20  # tokens of a longer side, around the cursor
WINDOW_STEP = 8  # a window moves in steps, so that words stay in position while the cursor moves
MAX_DISTANT_KEYS = 6  # strongest keys outside of the window
MAX_WEIGHTS = 2**20  # sent for a layer; layers with many heads get fewer tokens
MAX_ROW_TOKENS = 512  # longest window whose keys are shown as running text
Payload = dict[str, Any]


@dataclass(frozen=True)
class WordWindow:
    """Queries and keys between which lines are drawn, in ascending order."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]


@torch.no_grad()
def word_window(
    cache: RecordingCache,
    address: Address,
    window: HeatmapWindow,
    cursor: tuple[int, int] | None,
    *,
    hide: bool = False,
) -> WordWindow:
    """Return the tokens to draw: all tokens of a short text, or a window of a longer one.

    The window is that of the heatmap if it has few tokens, otherwise the surroundings of the cursor. The strongest keys
    of the cursor's query outside of the window are included, without the sink keys if `hide` is True.
    """
    name, layer, _ = address
    stack = cache.recording[name]
    q_len, kv_len = len(stack.queries), len(stack.keys)
    weights = stack.layers[layer]
    longest = max(1, min(MAX_WHOLE_TOKENS, int((MAX_WEIGHTS / weights.shape[1]) ** 0.5) - MAX_DISTANT_KEYS))
    size = min(WINDOW_TOKENS, longest)
    query, key = cursor or (window.row, window.key)
    center = query if is_self_attention(name, stack) else key
    rows = _side(q_len, (window.row, window.row_end), query, longest, size)
    keys = set(_side(kv_len, (window.key, window.key_end), center, longest, size))
    if len(keys) < kv_len and cursor is not None:
        strengths = weights[0, :, query].float().amax(dim=0)
        strengths[sorted(keys | set(cache.hidden_keys(name) if hide else []))] = 0
        top = strengths.topk(min(MAX_DISTANT_KEYS, kv_len))
        keys |= {index for index, weight in zip(top.indices.tolist(), top.values.tolist(), strict=True) if weight > 0}
    return WordWindow(tuple(rows), tuple(sorted(keys)))


@torch.no_grad()
def words_payload(cache: RecordingCache, address: Address, shown: WordWindow) -> Payload:
    """Return the tokens of a window, the weights between them, and the shares of the values, for all heads."""
    name, layer, _ = address
    stack, shares = cache.recording[name], cache.value_shares(name, layer)
    rows = slice(shown.queries[0], shown.queries[-1] + 1)
    weights = stack.layers[layer][0, :, rows, list(shown.keys)].float().cpu().numpy()  # [heads, queries, keys]
    return {
        "stack": name,
        "layer": layer,
        "heads": weights.shape[0],
        "queries": list(shown.queries),
        "query_tokens": [short_token(stack.queries.texts[index]) for index in shown.queries],
        "written": written_texts(stack, rows.start, rows.stop),
        "keys": list(shown.keys),
        "key_tokens": [short_token(stack.keys.texts[index]) for index in shown.keys],
        "weights": weights.ravel(),
        "shares": None if shares is None else shares[:, list(shown.keys)].float().cpu().numpy().ravel(),
    }


def row_payload(cache: RecordingCache, address: Address, query: int, window: HeatmapWindow) -> Payload | None:
    """Return a query's weights for the keys of a window, and the shares of their values.

    Returns None if the window is too wide to read.
    """
    if window.key_end - window.key > MAX_ROW_TOKENS:
        return None
    name, layer, head = address
    keys = slice(window.key, window.key_end)
    row, shares = cache.recording.weights(address)[0, 0, query, keys], cache.value_shares(name, layer)
    return {
        "head": head_id(address),
        "query": query,
        "start": window.key,
        "row": row.float().cpu().numpy(),
        "shares": None if shares is None else shares[head, keys].float().cpu().numpy(),
    }


def next_tokens_payload(cache: RecordingCache, name: str, query: int) -> Payload | None:
    """Return the most probable next tokens after a query; None for a stack or a model that predicts none."""
    recording = cache.recording
    if recording.next_tokens is None or (name == "encoder" and "decoder" in recording.stacks):
        return None
    predicted = recording.next_tokens.at(query)
    if not predicted:
        return None
    tokens = [[short_token(text), probability] for text, probability in predicted]
    return {"stack": name, "query": query, "tokens": tokens}


def stack_languages(recording: Recording, name: str) -> list[str] | None:
    """Return the languages of a stack's queries and keys, if the model's name contains them, as in "en-ja"."""
    languages = re.search(r"(?:^|opus-mt-)([a-z]{2,3})-([a-z]{2,3})$", recording.model)
    if languages is None or "cross" not in recording.stacks:
        return None
    source, target = languages.groups()
    return {"encoder": [source, source], "decoder": [target, target], "cross": [target, source]}.get(name)


def _side(length: int, window: tuple[int, int], center: int, longest: int, size: int) -> range:
    """Return the tokens of one side: all of them, the heatmap's window, or the surroundings of a token."""
    start, end = window
    if length <= longest:
        return range(length)
    if end - start <= longest and start <= center < end:
        return range(start, end)
    first = min(max(0, center // WINDOW_STEP * WINDOW_STEP - (size - WINDOW_STEP) // 2), length - size)
    return range(first, first + size)
