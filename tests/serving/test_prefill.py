"""Tests of attention rows in prefill."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from clearhead.serving import dense_rows, native_prefill
from clearhead.serving.native import native_kernel
from clearhead.serving.native_prefill import NativePrefill
from clearhead.serving.prefill import PrefillRows, Rows, prefill_rows
from clearhead.serving.statistics import StatisticsWanted
from support.numerics import assert_lse_matches, assert_matches, poisoned
from support.paged_caches import LAYOUTS, Batch, fill, served_layer

OPTIONS = {
    "plain": {},
    "wide group": {"heads": 5, "kv_heads": 1},
    "softcap": {"softcap": 1.3},
    "window": {"window": 5},
    "ALiBi": {"slopes": torch.tensor([0.5, 0.25, 0.11, 0.03, 0.7, 0.9])},
    "sinks": {"sinks": torch.tensor([0.3, -2.0, 4.0, 0.0, 1.0, -3.0])},
    "all": {"softcap": 2.3, "window": 7, "slopes": torch.rand(6), "sinks": torch.randn(6)},
}
# whole prompts, a chunk, a hit of the prefix cache, a request that decodes
LENGTHS = [(11, 11), (3, 13), (2, 17), (1, 5), (5, 5)]
ALL = StatisticsWanted(distance=True, peak=True, top=3)
NATIVE = replace(ALL, top=0)
SPANS = {"start": (0, 2), "middle": (3, 9), "later": (40, 50)}


def requests_of(batch: Batch, spans: dict | None = None) -> list[Rows]:
    return [
        Rows(index, start, case.shape[2], case.shape[3], spans or {})
        for index, (start, case) in enumerate(zip(batch.starts, batch.cases, strict=True))
    ]


def native_rows(batch: Batch, requests: list[Rows], wanted: StatisticsWanted) -> list[PrefillRows]:
    """Return the rows by the compiled functions."""
    kernel = native_kernel()
    assert kernel is not None
    assert kernel.supports(batch.query, batch.cache)
    plan = NativePrefill(kernel, requests, wanted, batch.layer.heads)
    return plan.run(batch.layer, batch.query, batch.cache, batch.block_table)


def check(batch: Batch, results: list[PrefillRows], wanted: StatisticsWanted, spans: dict | None = None) -> None:
    for case, (lse, statistics) in zip(batch.cases, results, strict=True):
        exact, naive, kv_len = case.exact(), case.statistics(), case.shape[3]
        assert_lse_matches(lse[None], exact["lse"], naive["lse"], scale=case.terms)
        exact["peak"], naive["peak"] = exact["scores"].max(-1), case.to(torch.float32).plain()["scores"].amax(-1)
        exact["sink"], naive["sink"] = exact["weights"][..., 0], naive["weights"][..., 0]
        if spans:
            masses = [
                (exact["weights"][..., a:b].sum(-1), naive["weights"][..., a:b].sum(-1)) for a, b in spans.values()
            ]
            exact["mass"] = np.stack([mass for mass, _ in masses], axis=-1)
            naive["mass"] = torch.stack([mass for _, mass in masses], dim=-1)
        names = {name for name in ("entropy", "received", "distance", "peak", "sink") if getattr(wanted, name)}
        names |= {"mass"} if spans else set()
        top = {"top_weights", "top_keys"} if wanted.top else set()
        assert set(statistics) == names | top
        for name in names:
            size = case.terms * max(1.0, float(np.abs(exact[name]).max()))
            assert_matches(statistics[name][None], exact[name], naive[name].detach(), scale=size)
        if top:
            order = torch.from_numpy(-exact["weights"].astype(np.float64)).argsort(dim=-1)[..., : wanted.top]
            weights = torch.from_numpy(exact["weights"].astype(np.float64)).gather(-1, order)
            width = min(wanted.top, kv_len)
            got, keys = statistics["top_weights"][None], statistics["top_keys"][None]
            largest = naive["weights"].gather(-1, order)
            assert_matches(got[..., :width], weights.numpy(), largest, scale=case.terms)
            assert torch.equal(keys[..., :width], order.masked_fill(weights == 0, -1))
            assert (keys[..., width:] == -1).all()


@pytest.mark.parametrize("bands", [{}, {"MIN_BAND_ROWS": 3, "BAND_CELLS": 1}, {"MAX_BAND_CELLS": 0}])
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_match_the_formula(name, bands, monkeypatch):
    """Check one band, several bands, and tiles."""
    for limit, cells in bands.items():
        monkeypatch.setattr(dense_rows, limit, cells)
    batch = fill(served_layer(**OPTIONS[name]), LENGTHS)
    with poisoned():
        rows = prefill_rows(batch.layer, batch.query, batch.cache, requests_of(batch, SPANS), batch.block_table, ALL)
    check(batch, rows, ALL, SPANS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_the_same_rows(layout):
    batch = fill(served_layer(window=5), LENGTHS, layout=layout, dtype=torch.bfloat16)
    rows = prefill_rows(batch.layer, batch.query, batch.cache, requests_of(batch), batch.block_table, ALL)
    check(batch, rows, ALL)


@pytest.mark.parametrize("name", ["plain", "window", "sinks", "softcap"])
@pytest.mark.parametrize("wanted", [StatisticsWanted(), StatisticsWanted(entropy=False, received=False, sink=False)])
def test_only_wanted_statistics_are_computed(name, wanted):
    batch = fill(served_layer(**OPTIONS[name]), LENGTHS, dtype=torch.float16)
    rows = prefill_rows(batch.layer, batch.query, batch.cache, requests_of(batch), batch.block_table, wanted)
    check(batch, rows, wanted)


def test_spans_may_differ_between_requests():
    batch = fill(served_layer(), LENGTHS)
    spans = [{}, {"a": (0, 5)}, {"b": (2, 3), "c": (2, 3)}, {"d": (4, 4)}, {"e": (1, 100)}]
    requests = [row._replace(spans=span) for row, span in zip(requests_of(batch), spans, strict=True)]
    wanted = replace(StatisticsWanted(), sink=False)
    rows = prefill_rows(batch.layer, batch.query, batch.cache, requests, batch.block_table, wanted)
    for index, span in enumerate(spans):
        one = replace(batch, cases=batch.cases[index : index + 1])
        check(one, rows[index : index + 1], wanted, span)


def test_rows_may_be_some_requests_of_the_batch():
    batch = fill(served_layer(), LENGTHS)
    chosen = [4, 0]
    requests = [requests_of(batch)[index] for index in chosen]
    rows = prefill_rows(batch.layer, batch.query, batch.cache, requests, batch.block_table, ALL)
    check(replace(batch, cases=[batch.cases[index] for index in chosen]), rows, ALL)


@pytest.mark.parametrize("tile_rows", [64, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_native_rows_match_the_formula(name, tile_rows, monkeypatch):
    """Check one tile, and several."""
    monkeypatch.setattr(native_prefill, "TILE_ROWS", tile_rows)
    batch = fill(served_layer(**OPTIONS[name]), LENGTHS)
    with poisoned():
        rows = native_rows(batch, requests_of(batch, SPANS), NATIVE)
    check(batch, rows, NATIVE, SPANS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_native_rows_of_each_layout_match_the_formula(layout, dtype):
    batch = fill(served_layer(window=5), LENGTHS, layout=layout, dtype=dtype)
    check(batch, native_rows(batch, requests_of(batch), NATIVE), NATIVE)


def test_native_rows_of_long_requests_match_the_formula():
    """Scores of a tile exceed what a thread computes at once."""
    lengths = [(190, 701), (3, 400), (130, 130)]
    batch = fill(served_layer(heads=14), lengths, layout="transposed", dtype=torch.bfloat16, block=32, key_dim=16)
    check(batch, native_rows(batch, requests_of(batch, SPANS), NATIVE), NATIVE, SPANS)


def test_native_rows_of_some_requests_with_different_spans():
    batch = fill(served_layer(), LENGTHS)
    spans = {4: {"e": (1, 100)}, 0: {}, 2: {"b": (2, 3), "c": (2, 3)}}
    requests = [requests_of(batch)[index]._replace(spans=each) for index, each in spans.items()]
    wanted = StatisticsWanted(entropy=False)
    rows = native_rows(batch, requests, wanted)
    for position, (index, each) in enumerate(spans.items()):
        check(replace(batch, cases=[batch.cases[index]]), rows[position : position + 1], wanted, each)


def test_native_rows_without_statistics():
    batch = fill(served_layer(), LENGTHS)
    wanted = StatisticsWanted(entropy=False, received=False, sink=False)
    check(batch, native_rows(batch, requests_of(batch), wanted), wanted)


def test_native_rows_have_limits():
    rows = [Rows(0, 0, 65, 1000)]
    assert NativePrefill.fits(rows, NATIVE, heads=8388)
    assert not NativePrefill.fits(rows, NATIVE, heads=8389)  # 2 tiles of 1000 sums per head
    assert NativePrefill.fits(rows, replace(NATIVE, received=False), heads=8389)
    assert not NativePrefill.fits(rows, ALL, heads=1)
