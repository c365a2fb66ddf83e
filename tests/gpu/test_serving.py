"""Tests of observed steps of a server on a GPU: `pytest -m gpu tests/gpu/test_serving.py`.

vLLM is not needed: the tests fill caches in the layouts of FLASH_ATTN, TRITON_ATTN and FLASHINFER, which all have the
logical shape [blocks, kv_heads, block, 2 · key_dim], and differ in strides.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead import ALiBi, attention
from clearhead.ops.triton import paged_scores, score_rows
from clearhead.ops.triton.launch import launch_on_grid
from clearhead.serving.decode import decode_rows
from clearhead.serving.finished import FinishedRequest
from clearhead.serving.layers import ServedLayer
from clearhead.serving.observer import Observer
from clearhead.serving.paged import PagedCache
from clearhead.serving.prefill import PrefillRows, Rows, prefill_rows
from clearhead.serving.statistics import StatisticsWanted
from support.gpu_calls import normal, synchronization_forbidden
from support.numerics import assert_matches
from support.simulated_engine import SimulatedEngine
from support.vllm_caches import LAYOUTS, Requests, empty_cache

pytestmark = [
    pytest.mark.gpu,
    # of torch.special.entr, if several processes create the folder at the same time
    pytest.mark.filterwarnings("ignore:Specified kernel cache directory could not be created"),
]
HEADS, KV_HEADS = 6, 2
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 101},
    "softcap": {"softcap": 2.0},
    "alibi": {"slopes": torch.linspace(0.01, 0.5, HEADS)},
    "sinks": {"sinks": torch.linspace(-1, 3, HEADS)},
    "window and sinks": {"window": 211, "sinks": torch.linspace(-1, 3, HEADS)},
}
DECODED = [1, 787, 64, 331, 1201]
# a whole prompt, a chunk, a hit of the prefix cache, a request that decodes, another whole prompt
PREFILLED = [(257, 257), (128, 523), (3, 700), (1, 331), (37, 37)]
SPANS = {"start": (0, 4), "middle": (100, 300), "later": (2000, 3000)}
EVERYTHING = StatisticsWanted(distance=True, peak=True, top=3)
Results = dict[str, Tensor]


def served_layer(name: str, dim: int) -> ServedLayer:
    options = {key: t.cuda() if isinstance(t, Tensor) else t for key, t in OPTIONS[name].items()}
    return ServedLayer(0, "layers.0", HEADS, KV_HEADS, dim**-0.5, **options)


def plain_rows(layer: ServedLayer, query: Tensor, key: Tensor, dtype: torch.dtype) -> Results:
    """Return rows and statistics of queries `[q_len, heads, key_dim]`, the last tokens of contiguous keys."""
    q_len, kv_len = query.shape[0], key.shape[1]
    key = key.to(dtype).repeat_interleave(layer.group, dim=0)
    scores = query.to(dtype).transpose(0, 1) @ key.mT * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    keys = torch.arange(kv_len, device=query.device)
    distances = kv_len - q_len + torch.arange(q_len, device=query.device)[:, None] - keys
    if layer.slopes is not None:
        scores = scores - layer.slopes.to(dtype)[:, None, None] * distances
    near = distances >= 0 if layer.window is None else (distances >= 0) & (distances < layer.window)
    scores = torch.where(near, scores, -math.inf)
    sinks = [] if layer.sinks is None else [layer.sinks.to(dtype)[:, None, None].expand(-1, q_len, 1)]
    logits = torch.cat([scores, *sinks], dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., :kv_len]
    return {
        "lse": torch.logsumexp(logits, dim=-1),
        "weights": weights,
        "entropy": torch.special.entr(weights).sum(dim=-1),
        "peak": scores.amax(dim=-1),
        "received": weights.sum(dim=-2),
        "distance": (weights * distances).sum(dim=-1),
        "sink": weights[..., 0],
        "mass": torch.stack([weights[..., start:end].sum(dim=-1) for start, end in SPANS.values()], dim=-1),
        "top_weights": weights.topk(min(EVERYTHING.top, kv_len)).values,
    }


def compare(got: Results, exact: Results, single: Results) -> None:
    # the rounding error of a weight is proportional to its logarithm
    logs = float(exact["lse"].abs().max()) + math.log(2 + exact["weights"].shape[-1])
    for name, tensor in got.items():
        size = max(1.0, float(exact[name].abs().max())) * logs
        assert_matches(tensor.cpu(), exact[name].cpu(), single[name].cpu(), scale=size)


def both_precisions(layer: ServedLayer, query: Tensor, key: Tensor) -> tuple[Results, Results]:
    return plain_rows(layer, query, key, torch.float64), plain_rows(layer, query, key, torch.float32)


def check_decoding(name: str, dim: int, block: int, layout: str, dtype: torch.dtype) -> None:
    layer = served_layer(name, dim)
    requests = Requests.random(
        DECODED, KV_HEADS, dim, block, layout=layout, dtype=dtype, device="cuda", window=layer.window
    )
    query = normal(len(DECODED), HEADS, dim, dtype=dtype)
    cache = PagedCache.interleaved(requests.cache)
    rows = decode_rows(layer, query, cache, requests.block_table, requests.kv_lens)
    assert rows.weights.shape[:3] == (len(DECODED), KV_HEADS, layer.group)
    for row, kv_len in enumerate(DECODED):
        weights = rows.weights[row].reshape(HEADS, 1, -1)
        assert (weights[..., kv_len:] == 0).all()
        got = {field: getattr(rows, field)[row, :, None] for field in ("lse", "entropy", "peak")}
        compare(
            {**got, "weights": weights[..., :kv_len]},
            *both_precisions(layer, query[row][None], requests.keys[row]),
        )


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoding_matches_contiguous_keys(layout, block):
    check_decoding("window", 128, block, layout, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_decoding_with_all_options_matches(name, dtype):
    check_decoding(name, 80, 16, "LBNHC", dtype)


def test_decoding_takes_one_launch_for_scores_and_one_for_rows(monkeypatch):
    launched = []

    def counted(kernel: Any, *arguments: Any) -> None:
        launched.append(kernel)
        launch_on_grid(kernel, *arguments)

    for module in (paged_scores, score_rows):
        monkeypatch.setattr(module, "launch_on_grid", counted)
    check_decoding("plain", 64, 16, "LBHNC", torch.bfloat16)
    assert launched == [paged_scores._paged_scores, score_rows._softmax_in_place]


def check_prefill(name: str, dim: int, block: int, layout: str, dtype: torch.dtype) -> None:
    layer, (q_lens, kv_lens) = served_layer(name, dim), map(list, zip(*PREFILLED, strict=True))
    requests = Requests.random(
        kv_lens, KV_HEADS, dim, block, layout=layout, dtype=dtype, device="cuda", window=layer.window, q_lens=q_lens
    )
    query = normal(sum(q_lens), HEADS, dim, dtype=dtype)
    starts = [sum(q_lens[:index]) for index in range(len(q_lens))]
    rows = [Rows(index, starts[index], *PREFILLED[index], SPANS) for index in range(len(PREFILLED))]
    cache = PagedCache.interleaved(requests.cache)
    results = prefill_rows(layer, query, cache, rows, requests.block_table, EVERYTHING)
    for row, (lse, statistics), key in zip(rows, results, requests.keys, strict=True):
        exact, single = both_precisions(layer, query[row.start : row.start + row.q_len], key)
        keys = statistics.pop("top_keys")
        compare({"lse": lse, **statistics}, exact, single)
        chosen = exact["weights"].gather(-1, keys.clamp(min=0)) * (keys >= 0)
        torch.testing.assert_close(statistics["top_weights"].double(), chosen, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prefill_matches_contiguous_keys(layout, block):
    check_prefill("plain", 128, block, layout, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_prefill_with_all_options_matches(name, dtype):
    check_prefill(name, 64, 16, "LBNHC", dtype)


@pytest.mark.parametrize("name", ["plain", "softcap"])
def test_steps_of_requests_with_a_shared_prefix_match_whole_texts(name):
    """Two requests share the blocks of a prefix. One is read in two chunks, then both decode, as in a server."""
    dim, block, shared, prompt, tokens = 64, 16, 96, 331, 343
    layer = served_layer(name, dim)
    key, value = (normal(2, KV_HEADS, tokens, dim, seed=seed, dtype=torch.bfloat16) for seed in (1, 2))
    key[1, :, :shared], value[1, :, :shared] = key[0, :, :shared], value[0, :, :shared]
    query = normal(2, HEADS, tokens, dim, dtype=torch.bfloat16)
    memory = empty_cache(64, KV_HEADS, block, 2 * dim, "LBNHC", dtype=torch.bfloat16, device="cuda")
    cache, columns = PagedCache.interleaved(memory), -(-tokens // block)
    order = 1 + torch.randperm(63, generator=torch.Generator().manual_seed(0))
    table = order[: 2 * columns].view(2, columns).to("cuda", torch.int32)
    table[1, : shared // block] = table[0, : shared // block]

    def write(request: int, start: int, end: int) -> None:
        for token in range(start, end):
            index = int(table[request, token // block])
            memory[index, :, token % block] = torch.cat([key[request, :, token], value[request, :, token]], dim=-1)

    def read(request: int, start: int, end: int) -> PrefillRows:
        write(request, start, end)
        rows = [Rows(request, 0, end - start, end)]
        queries = query[request, :, start:end].transpose(0, 1)
        return prefill_rows(layer, queries, cache, rows, table, StatisticsWanted())[0]

    # the second request starts after the prefix, which the first one has written
    steps = [[read(0, 0, 200), read(0, 200, prompt)], [read(1, shared, prompt)]]
    lse = [torch.cat([step.lse for step in one], dim=-1) for one in steps]
    received = [sum(pad_keys(step.statistics["received"], tokens) for step in one) for one in steps]
    for end in range(prompt + 1, tokens + 1):
        for request in range(2):
            write(request, end - 1, end)
        lens = torch.full((2,), end, device="cuda")
        rows = decode_rows(layer, query[:, :, end - 1], cache, table, lens)
        for request in range(2):
            lse[request] = torch.cat([lse[request], rows.lse[request][:, None]], dim=-1)
            received[request] = received[request] + rows.weights[request].reshape(HEADS, -1)[:, :tokens]
    for request, first in ((0, 0), (1, shared)):
        exact, single = both_precisions(layer, query[request, :, first:].transpose(0, 1), key[request])
        compare({"lse": lse[request], "received": received[request]}, exact, single)
        bias = None if layer.slopes is None else ALiBi(layer.slopes)
        _, weights = attention(
            query[request : request + 1, :, first:], key[request : request + 1], value[request : request + 1],
            mask=layer.mask, bias=bias, scale=layer.scale, softcap=layer.softcap, return_weights=True,
        )  # fmt: skip
        compare({"lse": weights.lse[0], "received": weights.observe(received=True).received[0]}, exact, single)


def pad_keys(received: Tensor, tokens: int) -> Tensor:
    return torch.nn.functional.pad(received, (0, tokens - received.shape[-1]))


def test_observer_on_the_gpu():
    windows = (None, 5)
    layers = [ServedLayer(index, f"layers.{index}", 6, 2, 0.4, window=window) for index, window in enumerate(windows)]
    finished: list[FinishedRequest] = []
    wanted = StatisticsWanted(entropy=True, received=True, distance=True, peak=True, sink=True, top=3)
    observer = Observer(dict(enumerate(layers)), wanted, finished.append)
    engine = SimulatedEngine(observer, layers, device="cuda")
    engine.add("1", 19, 11, record=True)
    engine.add("2", 23, 14, cached=8, record=True)
    engine.step({"1": 7, "2": 6})
    engine.step({"2": 1, "1": 4})
    for _ in range(8):
        engine.step({"2": 1, "1": 1})
    observer.finish({"1", "2"})
    for result in finished:
        request, first = engine.requests[result.id], result.first_row
        assert result.token_ids == request.token_ids[: first + result.rows]
        for index in range(len(layers)):
            exact = engine.expected(request, index, first, first + result.rows)
            statistics = exact.observe(entropy=True, received=True, distance=True, peak=True)
            for name in ("entropy", "received", "distance", "peak"):
                got, want = result.statistics[name][index][None], getattr(statistics, name).float()
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(result.recording[index].lse[None], exact.lse.float(), rtol=1e-4, atol=1e-5)


def test_decoding_steps_do_not_wait_for_the_gpu():
    layers = [ServedLayer(index, f"layers.{index}", 6, 2, 0.4) for index in range(2)]
    observer = Observer(dict(enumerate(layers)), StatisticsWanted(), lambda finished: None)
    engine = SimulatedEngine(observer, layers, device="cuda")
    engine.add("1", 40, 11)
    engine.add("2", 40, 14)
    with torch.inference_mode():
        engine.step({"1": 11, "2": 14})
        engine.step({"1": 1, "2": 1})  # compiles the kernels
        attend, end = observer.attend, observer.end

        def guarded(function):
            def call(*arguments):
                with synchronization_forbidden():
                    return function(*arguments)

            return call

        observer.attend, observer.end = guarded(attend), guarded(end)
        engine.step({"1": 1, "2": 1})
        engine.step({"2": 1, "1": 1})
