"""Keys that one query attends to: the strongest over all heads, and the top key of each head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clearhead._utils.text import short_token
from clearhead.recording import is_self_attention
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._top_tokens import top_tokens

MAX_LINKS = 100
PICTURE_COLUMNS = 14  # width of a token in the picture


def strongest_links(
    cache: RecordingCache,
    name: str,
    query: int | None = None,
    *,
    hide: bool = True,
    min_distance: int = 0,
    limit: int = 20,
) -> Iterator[dict[str, Any] | None]:
    """Yield None after each layer, then the largest weights of one query over all heads, largest first.

    Each head contributes at most five keys.

    Args:
        cache: the recording.
        name: name of the stack.
        query: index of the query (default: the last token).
        hide: leave out sink keys.
        min_distance: in self-attention, leave out keys that are nearer to the query, in tokens.
        limit: number of links, at most 100.
    """
    stack = cache.recording[name]
    query = len(stack.queries) - 1 if query is None else query
    same = is_self_attention(name, stack)
    hidden = set(cache.hidden_keys(name) if hide else [])
    if same and min_distance > 0:
        hidden |= set(range(max(0, query - min_distance + 1), min(len(stack.keys), query + min_distance)))
    heads = []
    for top in top_tokens(stack, "from", query, sorted(hidden)):
        heads = top.heads
        yield None
    links = [(weight, layer, head, key) for layer, head, tokens in heads for key, weight in tokens]
    links.sort(key=lambda link: (-link[0], link[1:]))
    yield {
        "stack": name,
        "query": query,
        "token": short_token(stack.queries.texts[query]),
        "hide": hide,
        "links": [
            {
                "layer": layer,
                "head": head,
                "key": key,
                "token": short_token(stack.keys.texts[key]),
                "weight": weight,
                "distance": query - key if same else None,
            }
            for weight, layer, head, key in links[: max(0, min(limit, MAX_LINKS))]
        ],
    }


def token_picture(
    cache: RecordingCache, name: str, query: int, key: int = 0, *, hide: bool = True, value_weighted: bool = False
) -> Iterator[dict[str, Any] | None]:
    """Yield None after each layer, then the top key of one query in every head, and its weights on one key.

    `layers[layer][head]` is [key, token, weight], or None for a head without a visible key. `weights[layer][head]` is
    the weight on `key`. `value_weighted` weights both by the values, if these are known.
    """
    stack = cache.recording[name]
    hidden = cache.hidden_keys(name) if hide else []
    shares = cache.stack_shares(name) if value_weighted else None
    heads = []
    for top in top_tokens(stack, "from", query, hidden, shares):
        heads = top.heads
        yield None
    columns = [layer[0, :, query, key] for layer in stack.layers]
    if shares is not None:
        columns = [column * share[:, key] for column, share in zip(columns, shares, strict=True)]
    layers: list[list[list[Any] | None]] = [[] for _ in stack.layers]
    for layer, _, tokens in heads:
        cells = [[key, short_token(stack.keys.texts[key], PICTURE_COLUMNS), weight] for key, weight in tokens[:1]]
        layers[layer].append(next(iter(cells), None))
    yield {
        "stack": name,
        "query": query,
        "token": short_token(stack.queries.texts[query]),
        "key": key,
        "key_token": short_token(stack.keys.texts[key]),
        "hide": bool(hidden),
        "weighted": shares is not None,
        "layers": layers,
        "weights": [column.tolist() for column in columns],
    }
