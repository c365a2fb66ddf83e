"""What a page is told, as plain dictionaries: of a model, a layer, a window, a cell, a token, a calculation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from clearhead._utils.color_scales import log_shades
from clearhead._utils.text import short_token
from clearhead.recording.recording import Address, Tokens, is_self_attention
from clearhead.viewer._calculation import calculate
from clearhead.viewer._heatmap import SCREEN, Window
from clearhead.viewer._recording_cache import Gallery
from clearhead.viewer._thumbnails import ROWS, is_sampled
from clearhead.viewer._top_tokens import Direction, looks

FEW = 48  # tokens on a side that lines are drawn between, at most
LISTED = 400  # heads in a list of where a token looks
Facts = dict[str, Any]


def model_facts(gallery: Gallery) -> Facts:
    """The kinds of attention a model has, and what of them can be hidden."""
    stacks = []
    for name, stack in gallery.recording.stacks.items():
        hidden = gallery.hidden_keys(name)
        stacks.append(
            {
                "name": name,
                "heads": [weights.shape[1] for weights in stack.layers],
                "groups": [weights.key_heads for weights in stack.layers],
                "queries": len(stack.queries),
                "keys": len(stack.keys),
                "sampled": ROWS if is_sampled(stack) else 0,
                "hides": [short_token(stack.keys.texts[key], 14) for key in hidden[:3]],
                "hidden": hidden[:SCREEN],
            }
        )
    return {"name": gallery.recording.model, "stacks": stacks, "labelled": gallery.labelled_by_roles}


def layer_facts(gallery: Gallery, stack: str, layer: int) -> Facts:
    """Every head of a layer: its small map as shades, its entropy, its labels."""
    keys = len(gallery.recording[stack].keys)
    heads = []
    for head, own in enumerate(gallery.thumbnails(stack, layer)):
        rows, columns = own.values.shape
        heads.append(
            {
                "entropy": own.statistics.entropy,
                "labels": list(gallery.labels((stack, layer, head))),
                "rows": rows,
                "keys": columns,
                "levels": log_shades(own.values, keys).tobytes(),
            }
        )
    return {"stack": stack, "layer": layer, "heads": heads}


def head_facts(gallery: Gallery, address: Address) -> Facts:
    """Which head it is, and all tokens of a text that is short enough for lines between them."""
    name, layer, head = address
    stack = gallery.recording[name]
    few = max(len(stack.queries), len(stack.keys)) <= FEW
    sides = {"queries": stack.queries, "keys": stack.keys} if few else {}
    return {
        "stack": name,
        "layer": layer,
        "head": head,
        **{side: [short_token(text) for text in tokens.texts] for side, tokens in sides.items()},
    }


def window_facts(gallery: Gallery, stack: str, window: Window) -> Facts:
    """The tokens along both sides of a window: those inside it and no others, and only if they can be read."""
    own = gallery.recording[stack]

    def texts(tokens: Tokens, start: int, end: int) -> list[str]:
        return [short_token(text) for text in tokens.texts[start:end]] if end - start <= SCREEN else []

    row, row_end, key, key_end = window
    return {
        "window": list(window),
        "row": row,
        "rows": texts(own.queries, row, row_end),
        "key": key,
        "keys": texts(own.keys, key, key_end),
    }


def cell_facts(gallery: Gallery, address: Address, query: int, key: int) -> Facts:
    """One weight and its score."""
    weights, stack = gallery.recording.weights(address), gallery.recording[address[0]]
    return {
        "query": query,
        "key": key,
        "query_token": short_token(stack.queries.texts[query]),
        "key_token": short_token(stack.keys.texts[key]),
        "weight": float(weights[0, 0, query, key]),
        "score": float(weights.scores[0, 0, query, key]),
    }


def row_facts(gallery: Gallery, address: Address, query: int, window: Window) -> Facts:
    """The weights a query gives to the keys of a window, if those can be read."""
    if window.key_end - window.key > SCREEN:
        return {}
    row = gallery.recording.weights(address)[0, 0, query, window.key : window.key_end]
    return {"start": window.key, "row": row.float().cpu().numpy()}


def calculation_facts(gallery: Gallery, address: Address, query: int, key: int) -> Facts:
    """How a query's weights are made, with the tokens that are meant."""
    stack = gallery.recording[address[0]]
    found = asdict(calculate(gallery.recording.weights(address), query, key))
    for term in found["terms"]:
        term["token"] = short_token(stack.keys.texts[term["key"]])
    return {**found, "token": short_token(stack.queries.texts[query])}


def looks_facts(gallery: Gallery, name: str, query: int, key: int) -> Iterator[Facts | None]:
    """Where a query looks and who looks at a key, in all heads of a stack: None after each layer, all of it at last."""
    stack = gallery.recording[name]
    sides: tuple[tuple[Direction, int, Tokens], ...] = (("from", query, stack.keys), ("to", key, stack.queries))
    found: Facts = {
        "query": short_token(stack.queries.texts[query]),
        "key": short_token(stack.keys.texts[key]),
        "same": is_self_attention(name, stack),
    }
    for direction, token, others in sides:

        def named(tokens: list[tuple[int, float]], others: Tokens = others) -> list[list[Any]]:
            return [[place, short_token(others.texts[place]), weight] for place, weight in tokens]

        for seen in looks(stack, direction, token):
            heads = sorted(seen.heads, key=lambda row: -max((weight for _, weight in row[2]), default=0.0))
            found[direction] = {
                "everywhere": named(seen.everywhere),
                "heads": [[layer, head, named(tokens)] for layer, head, tokens in heads[:LISTED]],
            }
            yield None
    yield found
