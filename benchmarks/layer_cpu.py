"""Benchmark of `MultiHeadAttention` on the CPU against `nn.MultiheadAttention`: d_model 768, 12 heads, batch 4."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from clearhead import Causal, KVCache, MultiHeadAttention
from clearhead.nn.head import join_heads, split_heads
from clearhead.torch_compat import replace_attention
from measuring import interleaved, write

D_MODEL, HEADS, BATCH = 768, 12, 4
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
Row = dict[str, object]


def three_layers() -> tuple[MultiHeadAttention, nn.MultiheadAttention, nn.MultiheadAttention]:
    """Return `MultiHeadAttention`, the drop-in replacement and torch's layer, with the same weights."""
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    ours = MultiHeadAttention.from_torch(theirs)
    drop_in = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    drop_in.load_state_dict(theirs.state_dict())
    return ours, replace_attention(drop_in), theirs


def row(case: str, n: int, seconds: dict[str, float], target: float | None) -> Row:
    ratio, drop_in = seconds["peer"] / seconds["ours"], seconds["peer"] / seconds["drop-in"]
    return {
        "case": case,
        "n": n,
        "MultiHeadAttention, ms": round(seconds["ours"] * 1e3, 2),
        "drop-in, ms": round(seconds["drop-in"] * 1e3, 2),
        "torch, ms": round(seconds["peer"] * 1e3, 2),
        "MultiHeadAttention": f"{ratio:.2f} ×",
        "drop-in": f"{drop_in:.2f} ×",
        "target": "none" if target is None else f"≥ {target:.2f} ×",
        "met": "yes" if target is None or ratio >= target else "no",
    }


def target_of(n: int) -> float:
    return 0.95 if n < 256 else 1.0 if n < 512 else 1.25


def evaluation() -> list[Row]:
    ours, drop_in, theirs = (layer.eval() for layer in three_layers())
    rows = []
    for n in LENGTHS:
        x = torch.randn(BATCH, n, D_MODEL)
        with torch.no_grad():
            seconds = interleaved(
                {
                    "ours": partial(ours, x),
                    "drop-in": partial(drop_in, x, x, x, need_weights=False),
                    "peer": partial(theirs, x, x, x, need_weights=False),
                },
                rounds=max(40, 20_000 // n),
            )
        rows.append(row("evaluation", n, seconds, target_of(n)))
    return rows


def evaluation_with_weights() -> list[Row]:
    """Compare evaluation with weights: dense in torch and the drop-in; lazy in ours, with one row of each head read."""
    ours, drop_in, theirs = (layer.eval() for layer in three_layers())
    rows = []
    for n in (128, 512, 1024):
        x = torch.randn(BATCH, n, D_MODEL)

        def lazy(x: Tensor = x) -> Tensor:
            return ours(x, return_weights=True)[1][:, :, 0]

        with torch.no_grad():
            seconds = interleaved(
                {
                    "ours": lazy,
                    "drop-in": partial(drop_in, x, x, x, average_attn_weights=False),
                    "peer": partial(theirs, x, x, x, average_attn_weights=False),
                },
                rounds=max(20, 8_000 // n),
            )
        rows.append(row("evaluation with weights", n, seconds, None))
    return rows


def training_step() -> list[Row]:
    ours, drop_in, theirs = three_layers()
    rows = []
    for n in LENGTHS[:-1]:
        x = torch.randn(BATCH, n, D_MODEL, requires_grad=True)

        def step(layer: nn.Module, call: Callable[[], Tensor], x: Tensor = x) -> Callable[[], object]:
            inputs = [x, *layer.parameters()]
            return lambda: torch.autograd.grad(call().sum(), inputs)

        seconds = interleaved(
            {
                "ours": step(ours, partial(ours, x)),
                "drop-in": step(drop_in, lambda x=x: drop_in(x, x, x, need_weights=False)[0]),
                "peer": step(theirs, lambda x=x: theirs(x, x, x, need_weights=False)[0]),
            },
            rounds=max(15, 6_000 // n),
        )
        rows.append(row("training step", n, seconds, 0.95 if n < 256 else 1.0))
    return rows


def decoding() -> list[Row]:
    """Time one token for 4 texts against the minimal work: four matrix products, and SDPA over the keys."""
    layer = MultiHeadAttention(D_MODEL, HEADS).eval()
    token = torch.randn(BATCH, 1, D_MODEL)
    rows = []
    with torch.inference_mode():
        for n in (64, 256, 1024, 4096):
            cache = KVCache(n + 1)
            layer(torch.randn(BATCH, n, D_MODEL), mask=Causal(), cache=cache)
            key, value = torch.randn(2, BATCH, HEADS, n + 1, D_MODEL // HEADS).unbind()

            def step(cache: KVCache = cache, n: int = n) -> None:
                cache.truncate(n)
                layer(token, mask=Causal(), cache=cache)

            def least(key: Tensor = key, value: Tensor = value) -> None:
                query, _, _ = split_heads(layer.query(token), layer.key_dim), layer.key(token), layer.value(token)
                layer.output(join_heads(sdpa(query, key, value)))

            seconds = interleaved({"ours": step, "least": least}, rounds=400)
            rows.append(
                {
                    "case": "decoding, one token",
                    "n": n,
                    "MultiHeadAttention, ms": round(seconds["ours"] * 1e3, 3),
                    "four products and SDPA, ms": round(seconds["least"] * 1e3, 3),
                    "difference, ms": round((seconds["ours"] - seconds["least"]) * 1e3, 3),
                }
            )
    return rows


if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.manual_seed(0)
    rows: list[Row] = []
    for part in (evaluation, evaluation_with_weights, training_step):
        print(f"measuring: {part.__name__.replace('_', ' ')}", flush=True)
        rows += part()
    write("layer-cpu", "MultiHeadAttention on the CPU: its speed over nn.MultiheadAttention's", rows)
    print("measuring: decoding", flush=True)
    write("decoding-cpu", "MultiHeadAttention with a KVCache on the CPU: time per token", decoding())
