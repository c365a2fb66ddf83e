"""Recordings of random attention with arbitrary tokens, for tests of displays."""

from dataclasses import replace

import torch

from clearhead import Causal, Recording, attention
from clearhead.recording.recording import Stack, Tokens

# tokens that a page could mistake for markup, formulas or blanks
AWKWARD = ["</script>", "\"'", "$$x$$", "\\(x\\)", "שלום", "🙂", "\n", "x" * 10_000, "日本語", "&amp;", "<b>", "${1}"]


def tokens(texts, special=()):
    return Tokens(tuple(texts), tuple(index in special for index in range(len(texts))), tuple(range(len(texts))))


def layer(q_len, kv_len, *, heads=4, kv_heads=2, mask=None, sharpness=2.0, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(1, count, length, 8, generator=generator, dtype=dtype)
        for count, length in ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    )
    return attention(sharpness * query, key, value, mask=mask, return_weights="keep_qk")[1]


def decoder(texts, *, layers=2, special=(), mask=Causal(), **options):  # noqa: B008, masks are immutable
    """Return the recording of a causal model with grouped heads."""
    axis = tokens(texts, special)
    weights = [layer(len(texts), len(texts), mask=mask, seed=index, **options) for index in range(layers)]
    return Recording("a model", {"decoder": Stack(tuple(weights), axis, axis)})


def with_values(recording):
    """Return the recording of a causal model with random values, and v W_O of each layer, head and key."""
    stack, generator = recording["decoder"], torch.Generator().manual_seed(1)
    added = []
    for weights in stack.layers:
        _, heads, _, kv_len = weights.shape
        # lengths from 0.1 to 1, so that the order of weights and of weighted values differs
        lengths = 0.1 + 0.9 * torch.rand(heads, kv_len, 1, generator=generator)
        value, output = (torch.randn(heads, *shape, generator=generator) for shape in ((kv_len, 8), (8, 16)))
        added.append(lengths * value @ output)
    norms = tuple(vectors.norm(dim=-1) for vectors in added)
    return Recording(recording.model, {"decoder": replace(stack, value_norms=norms)}), added


def translation(source, target, *, written=None):
    """Return the recording of an encoder–decoder. `written` are the tokens that the rows of the target write."""
    sides = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    stacks = {}
    for index, (name, (queries, keys)) in enumerate(sides.items()):
        mask = Causal() if name == "decoder" else None
        weights = layer(len(queries), len(keys), mask=mask, kv_heads=4, seed=index)
        texts = None if written is None or name == "encoder" else tokens(written)
        stacks[name] = Stack((weights,), tokens(queries), tokens(keys), texts)
    return Recording("a translator", stacks)
