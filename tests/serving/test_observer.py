"""Tests of the observer with a simulated engine."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from clearhead.serving.layers import ServedLayer
from clearhead.serving.native import native_kernel
from clearhead.serving.observer import MEMORY_REASON, Observer
from clearhead.serving.paged import PagedCache
from clearhead.serving.statistics import StatisticsWanted
from support.simulated_engine import SimulatedEngine

EVERYTHING = StatisticsWanted(entropy=True, received=True, distance=True, peak=True, sink=True, top=3)
SPANS = {"start": (0, 2), "middle": (3, 9)}


def served_layers(**options) -> list[ServedLayer]:
    return [ServedLayer(index, f"layers.{index}", 6, 2, scale=0.4, **options) for index in range(2)]


def started(layers=None, wanted=EVERYTHING, **options) -> tuple[SimulatedEngine, list]:
    layers = layers or served_layers()
    finished = []
    observer = Observer({layer.index: layer for layer in layers}, wanted, finished.append, **options)
    return SimulatedEngine(observer, layers), finished


def check(engine, request, result, *, first_row=0, end=None) -> None:
    """Compare all results with the plain layers in float64; results are sums of at most 40 float32 terms."""
    end = end or request.length
    assert result.token_ids == request.token_ids[:end]
    assert (result.prompt_len, result.first_row, result.rows) == (request.prompt_len, first_row, end - first_row)
    for index in range(len(engine.layers)):
        weights = engine.expected(request, index, first_row, end)
        spans = [(0, 1), *((start, min(stop, end)) for start, stop in SPANS.values())]
        exact = weights.observe(entropy=True, received=True, distance=True, peak=True, top=3, spans=spans)
        got = {name: tensor[index][None] for name, tensor in result.statistics.items()}
        for name in ("entropy", "distance", "peak", "received"):
            assert_close(got[name], getattr(exact, name).float(), rtol=1e-4, atol=1e-5)
        assert_close(got["sink"], exact.mass[..., 0].float(), rtol=1e-4, atol=1e-6)
        if "top_keys" in got:
            assert_close(got["top_weights"], exact.top.weights.float(), rtol=1e-4, atol=1e-6)
            assert torch.equal(got["top_keys"], exact.top.keys)
        if result.spans:
            assert_close(got["mass"], exact.mass[..., 1:].float(), rtol=1e-4, atol=1e-6)
        if result.recording:
            layer = result.recording[index]
            query, key, value = (tensor[:, :end] for tensor in request.tensors[index])
            first_key = int(engine.layers[index].first_keys(torch.tensor(first_row)))
            assert torch.equal(layer.query, query[:, first_row:])
            assert torch.equal(layer.key[:, first_key:], key[:, first_key:])
            assert torch.equal(layer.value[:, first_key:], value[:, first_key:])
            assert_close(layer.lse[None], weights.lse.float(), rtol=1e-4, atol=1e-5)
            assert layer.key.isfinite().all()


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 5}, {"softcap": 1.5}, {"slopes": torch.rand(6)}, {"sinks": torch.randn(6)}],
    ids=lambda options: next(iter(options), "plain"),
)
@pytest.mark.parametrize(
    ("native", "top"), [(False, 3), (True, 3), (True, 0)], ids=["torch", "native decoding", "native"]
)
def test_every_request_of_a_batch_is_observed(options, native, top):
    kernel = native_kernel() if native else None
    engine, finished = started(served_layers(**options), replace(EVERYTHING, top=top), kernel=kernel)
    first = engine.add("1", 19, 11, record=True, spans=SPANS)
    second = engine.add("2", 17, 13, spans=SPANS)
    third = engine.add("3", 23, 14, cached=8, record=True)
    engine.step({"1": 7, "2": 13, "3": 6})  # chunked prefill, prefill, prefix-cache hit
    engine.step({"2": 1, "1": 4, "3": 1})  # the order of the batch changes
    for _ in range(3):
        engine.step({"2": 1, "3": 1, "1": 1})
    engine.observer.finish({"2"})
    for _ in range(5):
        engine.step({"1": 1, "3": 1})
    engine.observer.finish({"1", "3"})
    results = {result.id: result for result in finished}
    check(engine, first, results["1"])
    check(engine, second, results["2"])
    check(engine, third, results["3"], first_row=8)
    assert [bool(results[name].recording) for name in "123"] == [True, False, True]
    assert all(("top_keys" in result.statistics) == bool(top) for result in finished)


def test_preempted_requests_count_each_row_once():
    engine, finished = started()
    request = engine.add("1", 21, 12, record=True, spans=SPANS)
    other = engine.add("2", 19, 9)
    engine.step({"1": 12, "2": 9})
    engine.step({"1": 1, "2": 1})
    engine.preempt("1")
    for _ in range(3):
        engine.step({"2": 1})
    engine.step({"2": 1, "1": 14})  # the prompt, the token that was read, and one that was not
    for _ in range(5):
        engine.step({"1": 1, "2": 1})
    engine.observer.finish({"1", "2"})
    results = {result.id: result for result in finished}
    check(engine, request, results["1"], end=19)
    check(engine, other, results["2"])


def test_layers_may_run_in_inference_mode():
    """Engines begin and end steps outside of it. The last key is the last slot of a block that was added before."""
    engine, finished = started()
    engine.observer.attend = torch.inference_mode()(engine.observer.attend)
    request = engine.add("1", 17, 7)
    engine.step({"1": 7})
    for _ in range(9):
        engine.step({"1": 1})
    engine.observer.finish({"1"})
    check(engine, request, finished[0], end=16)


def test_a_recording_of_one_new_token_contains_the_cached_keys():
    engine, finished = started()
    request = engine.add("1", 15, 13, cached=12, record=True)
    engine.step({"1": 1})
    engine.step({"1": 1})
    engine.observer.finish({"1"})
    check(engine, request, finished[0], first_row=12, end=14)


def test_chosen_heads_are_kept():
    engine, finished = started(heads=(1, 4))
    request = engine.add("1", 9, 7)
    engine.step({"1": 7})
    engine.step({"1": 1})
    engine.observer.finish({"1"})
    exact = engine.expected(request, 1, 0, 8).part(heads=[1, 4]).observe(entropy=True, received=True)
    assert_close(finished[0].statistics["entropy"][1], exact.entropy[0].float(), rtol=1e-4, atol=1e-5)
    assert_close(finished[0].statistics["received"][1], exact.received[0].float(), rtol=1e-4, atol=1e-5)


def test_recordings_are_dropped_beyond_the_memory_budget():
    engine, finished = started(memory=30_000)
    engine.add("1", 40, 30, record=True)
    engine.step({"1": 30})
    engine.step({"1": 1})
    engine.observer.finish({"1"})
    assert finished[0].recording == ()
    assert finished[0].dropped == MEMORY_REASON
    assert finished[0].statistics["entropy"].shape == (2, 6, 31)


def test_requests_are_dropped_beyond_the_memory_budget():
    engine, finished = started(memory=1000)
    engine.add("1", 40, 30)
    assert engine.step({"1": 30}) == ["1"]
    assert engine.step({"1": 1}) == []
    engine.observer.finish({"1"})
    assert not finished
    assert not engine.observer.requests


def test_column_sums_count_as_memory():
    engine, _ = started(wanted=StatisticsWanted(entropy=False, sink=False))
    engine.add("1", 40, 30)
    engine.step({"1": 30})
    before = engine.observer.nbytes
    for _ in range(2):  # the second step adds to the sums of the first
        engine.step({"1": 1})
        assert engine.observer.nbytes == before + 2 * 6 * 32 * 4  # layers, heads, slots of 8 blocks, float32


def test_unknown_requests_are_ignored():
    engine, finished = started()
    request = engine.add("1", 9, 5)
    engine.add("2", 9, 5)
    engine.observer.finish({"2"})  # nothing was observed
    engine.step({"2": 5, "1": 5})
    engine.step({"2": 1, "1": 1})
    engine.observer.finish({"1", "2", "unknown"})
    assert [result.id for result in finished] == ["1"]
    check(engine, request, finished[0], end=6)


def test_abandoned_steps_drop_their_requests_only():
    engine, finished = started()
    engine.add("1", 9, 5)
    request = engine.add("2", 9, 5)
    engine.step({"2": 5})
    engine.observer.begin(lambda: ([], torch.empty(0)))
    assert engine.observer.abandon() == []
    engine.step({"1": 5})
    engine.step({"2": 1})
    engine.observer.finish({"2"})
    check(engine, request, finished[0], end=6)


def test_a_request_with_missing_rows_is_dropped_alone():
    """A request may be preempted within its prompt and find the rest of it in the prefix cache later."""
    engine, finished = started()
    engine.add("1", 19, 17)
    other = engine.add("2", 19, 5)
    engine.step({"1": 7, "2": 5})
    engine.requests["1"].computed = 16
    engine._write(engine.requests["1"], 7, 16)
    assert engine.step({"1": 1, "2": 1}) == ["1"]
    assert engine.step({"1": 1, "2": 1}) == []
    engine.observer.finish({"1", "2"})
    assert [result.id for result in finished] == ["2"]
    check(engine, other, finished[0], end=7)


def test_layers_between_steps_are_not_observed():
    engine, finished = started()
    request = engine.add("1", 9, 5)
    for q_len in (5, 1):
        engine.step({"1": q_len})
        for layer, cache in zip(engine.layers, engine.caches, strict=True):
            table = torch.ones(1, 2, dtype=torch.int32)
            engine.observer.attend(layer.index, torch.randn(5, 6, 6), PagedCache.interleaved(cache), table)
    engine.observer.finish({"1"})
    check(engine, request, finished[0], end=6)
