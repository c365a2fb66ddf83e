"""Finished requests of a small served model with random queries and keys."""

from __future__ import annotations

import torch

from clearhead.functional import lazy_weights
from clearhead.serving.finished import FinishedRequest, RecordedLayer
from clearhead.serving.layers import ServedLayer

LAYERS, HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 3, 4, 2, 8, 5
SPANS = {"question": (0, 2), "passage": (2, 7)}


class Tokenizer:
    """Tokenizer whose token i is "wi ", and whose token 0 is special. By default it removes the last space."""

    all_special_ids = (0,)
    unk_token_id = None

    def decode(self, ids, skip_special_tokens=False, clean_up_tokenization_spaces=True):
        text = "".join(f"w{token} " for token in ids if token or not skip_special_tokens)
        return text.rstrip() if clean_up_tokenization_spaces else text


def recorded_layers(tokens: int, first_row: int = 0, *, values: bool = True, window: int | None = None, seed: int = 0):
    """Return layers of random bfloat16 numbers. Sinks and windows differ between layers."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16)

    layers = []
    for index in range(LAYERS):
        sinks = random(HEADS) if index == 1 else None
        layer = ServedLayer(
            index, f"layers.{index}", HEADS, KV_HEADS, 0.3, window=window if index == 2 else None, sinks=sinks
        )
        query, key = random(HEADS, tokens - first_row, KEY_DIM), random(KV_HEADS, tokens, KEY_DIM)
        value = random(KV_HEADS, tokens, VALUE_DIM) if values else None
        lse = lazy_weights(layer.call(query[None], key[None]), keep_qk=True).lse[0]
        layers.append(RecordedLayer(layer, query, key, value, lse))
    return tuple(layers)


def weights_of(recorded: RecordedLayer) -> torch.Tensor:
    """Return the whole matrix of a layer, [heads, rows, kv_len]."""
    return lazy_weights(recorded.layer.call(recorded.query[None], recorded.key[None]), keep_qk=True)[0]


def finished_request(
    name: str = "cmpl-1",
    *,
    prompt_len: int = 7,
    answer_len: int = 5,
    first_row: int = 0,
    heads: tuple[int, ...] | None = None,
    record: bool = True,
    top: int = 0,
    seed: int = 0,
    **options,
) -> FinishedRequest:
    """Return a request with all statistics, computed from the whole matrix."""
    tokens = prompt_len + answer_len
    layers = recorded_layers(tokens, first_row, seed=seed, **options)
    chosen = list(range(HEADS) if heads is None else heads)
    weights = torch.stack([weights_of(layer)[chosen] for layer in layers])  # [layers, heads, rows, kv_len]
    statistics = {
        "entropy": -torch.special.xlogy(weights, weights).sum(dim=3),
        "sink": weights[..., 0],
        "peak": weights.amax(dim=3),
        "received": weights.sum(dim=2),
        "mass": torch.stack([weights[..., start:end].sum(dim=3) for start, end in SPANS.values()], dim=3),
    }
    if top:
        statistics["top_weights"], statistics["top_keys"] = weights.topk(top, dim=3)
    return FinishedRequest(
        name,
        [index % 11 for index in range(tokens)],
        prompt_len,
        first_row,
        tuple(range(LAYERS)),
        heads,
        statistics,
        SPANS,
        layers if record else (),
    )


def small_request(name: str) -> FinishedRequest:
    """Return a request without a recording whose tensors are zeros, which is cheap to create."""
    statistics = {"entropy": torch.zeros(1, 2, 3), "sink": torch.zeros(1, 2, 3)}
    return FinishedRequest(name, [5, 6, 7], 2, 0, (0,), None, statistics)
