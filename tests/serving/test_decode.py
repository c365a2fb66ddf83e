"""Tests of attention rows in decoding."""

import pytest
import torch
from torch._dynamo.utils import counters

from clearhead.serving.decode import DecodeKernel, DecodeRows, _rows_by_triton, decode_rows
from support.interpreter import language_patched_once_per_launch
from support.numerics import assert_lse_matches, assert_matches, poisoned
from support.paged_caches import LAYOUTS, Batch, fill, served_layer

OPTIONS = {
    "plain": {},
    "one group": {"heads": 3, "kv_heads": 3},
    "wide group": {"heads": 5, "kv_heads": 1},
    "softcap": {"softcap": 1.3},
    "window": {"window": 5},
    "ALiBi": {"slopes": torch.tensor([0.5, 0.25, 0.11, 0.03, 0.7, 0.9])},
    "sinks": {"sinks": torch.tensor([0.3, -2.0, 4.0, 0.0, 1.0, -torch.inf])},
    "all": {"softcap": 2.3, "window": 7, "slopes": torch.rand(6), "sinks": torch.randn(6)},
}
LENGTHS = [1, 4, 13, 7, 2]


def check(batch: Batch, rows: DecodeRows) -> None:
    layer, block = batch.layer, batch.cache.block_size
    for request, case in enumerate(batch.cases):
        exact, naive, kv_len = case.exact(), case.statistics(), case.shape[3]
        lse, entropy, peak = (t[request][None, :, None] for t in (rows.lse, rows.entropy, rows.peak))
        weights = rows.weights[request]
        assert weights.shape == (layer.kv_heads, layer.group, batch.block_table.shape[1], block)
        weights = weights.reshape(1, layer.heads, 1, -1)
        assert_lse_matches(lse, exact["lse"], naive["lse"], scale=case.terms)
        assert_matches(weights[..., :kv_len], exact["weights"], naive["weights"], scale=case.terms)
        assert (weights[..., kv_len:] == 0).all()
        assert (weights[..., :kv_len][~case.allowed] == 0).all()
        assert_matches(entropy, exact["entropy"], naive["entropy"], scale=case.terms)
        peaks = case.to(torch.float32).plain()["scores"].detach().amax(-1)
        assert_matches(peak, exact["scores"].max(-1), peaks, scale=case.terms)


@pytest.mark.parametrize(
    ("layout", "name"), [*(("hnd", name) for name in OPTIONS), *((layout, "all") for layout in LAYOUTS[1:])]
)
def test_rows_match_the_formula(layout, name):
    batch = fill(served_layer(**OPTIONS[name]), [(1, kv_len) for kv_len in LENGTHS], layout=layout)
    with poisoned():
        check(batch, decode_rows(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


@pytest.mark.parametrize("name", ["plain", "all", pytest.param("wide group", marks=pytest.mark.slow)])
def test_rows_by_triton_match_the_formula(name):
    """The path of GPUs, in Triton's interpreter."""
    batch = fill(served_layer(**OPTIONS[name]), [(1, kv_len) for kv_len in LENGTHS], layout="nhd")
    with language_patched_once_per_launch(), poisoned():
        check(batch, _rows_by_triton(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rows_are_exact(dtype):
    batch = fill(served_layer(), [(1, kv_len) for kv_len in LENGTHS], layout="transposed", dtype=dtype)
    check(batch, decode_rows(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


def test_large_scores_do_not_overflow():
    batch = fill(served_layer(), [(1, kv_len) for kv_len in LENGTHS])
    query = batch.query * 1e3
    for case, row in zip(batch.cases, query, strict=True):
        case.query = row[None, :, None]
    check(batch, decode_rows(batch.layer, query, batch.cache, batch.block_table, batch.kv_lens))


def test_table_may_have_any_ids_outside_the_keys():
    batch = fill(served_layer(window=5), [(1, kv_len) for kv_len in LENGTHS], spare=3)
    table = batch.block_table.clone()
    for row, kv_len in zip(table, LENGTHS, strict=True):
        row[: max(0, kv_len - 5) // 4], row[-(-kv_len // 4) :] = 2**30, -(2**30)
    check(batch, decode_rows(batch.layer, batch.query, batch.cache, table, batch.kv_lens))


def test_row_without_keys_is_empty():
    batch = fill(served_layer(), [(1, 5), (1, 3)])
    rows = decode_rows(batch.layer, batch.query, batch.cache, batch.block_table, torch.tensor([0, 3]))
    assert (rows.lse[0] == -torch.inf).all()
    assert (rows.peak[0] == -torch.inf).all()
    assert (rows.entropy[0] == 0).all()
    assert (rows.weights[0] == 0).all()
    assert rows.lse[1].isfinite().all()


def fail_to_compile(*arguments, **options):
    raise RuntimeError("no C++ compiler\nwas found")


def test_kernel_runs_uncompiled_if_compiling_fails(monkeypatch, caplog):
    batch = fill(served_layer(), [(1, kv_len) for kv_len in LENGTHS])
    monkeypatch.setattr(torch, "compile", fail_to_compile)
    kernel = DecodeKernel()
    for _ in range(2):
        kernel.warm_up(batch.layer, batch.cache, torch.float32)
    assert [record.message for record in caplog.records] == [
        "torch.compile failed (no C++ compiler); attention of decoding is computed uncompiled"
    ]
    check(batch, kernel(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))


@pytest.fixture
def fail_on_recompile(monkeypatch):
    """Raise an error where a compiled kernel would run uncompiled."""
    torch._dynamo.reset()
    set_stance = torch.compiler.set_stance
    monkeypatch.setattr(torch.compiler, "set_stance", lambda _: set_stance("fail_on_recompile"))


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "name"), [("hnd", "all"), ("transposed", "plain")])
def test_compiled_kernel_matches_the_formula_without_compiling_again(layout, name, fail_on_recompile):
    layer = served_layer(**OPTIONS[name])
    kernel, options = DecodeKernel(), {"layout": layout, "dtype": torch.bfloat16}
    first = fill(layer, [(1, kv_len) for kv_len in LENGTHS], **options)
    kernel.warm_up(layer, first.cache, torch.bfloat16)
    graphs = counters["stats"]["unique_graphs"]
    for lengths in (LENGTHS, [3, 9], [11], [2], [1, 2, 3], [5] * 7, [41, 3, 5]):
        for spare in (0, 2):
            batch = fill(layer, [(1, kv_len) for kv_len in lengths], spare=spare, **options)
            with torch.inference_mode():
                rows = kernel(layer, batch.query, batch.cache, batch.block_table, batch.kv_lens)
            check(batch, DecodeRows(*(result.clone() for result in rows)))
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.slow
def test_layers_of_one_kind_share_a_kernel(fail_on_recompile):
    layers = [served_layer(), served_layer(window=3), served_layer(sinks=torch.randn(6)), served_layer(softcap=3.0)]
    batches = [fill(layer, [(1, kv_len) for kv_len in LENGTHS], seed=seed) for seed, layer in enumerate(layers)]
    kernel, counts = DecodeKernel(), []
    for batch in batches:
        kernel.warm_up(batch.layer, batch.cache, torch.float32)
        counts.append(counters["stats"]["unique_graphs"])
    assert counts[0] == counts[2] < counts[3]
    for batch in batches:
        check(batch, kernel(batch.layer, batch.query, batch.cache, batch.block_table, batch.kv_lens))
    assert counters["stats"]["unique_graphs"] == counts[3]
