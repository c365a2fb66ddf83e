"""Tests of the lazy matrix: cells and statistics against extended precision, indexing, parts, files and conversion."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

from clearhead import ALiBi, AttentionWeights, Causal, Dense, Documents, Padding, Prefix, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.weights import cells
from support.numerics import Case, assert_matches, poisoned
from support.strategies import cases

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def both_forms(case: Case, backend: str = "auto") -> list[AttentionWeights]:
    """Return the matrix in both forms: held as queries and keys, and held as scores."""
    _, weights = attention(**case.arguments, return_weights=True, backend=backend)
    call = build_call(**case.arguments)
    factors = AttentionWeights(call, weights.lse)
    scores = AttentionWeights(call.with_scores(factors.scores[...]), weights.lse)
    return [factors, scores]


@given(case=cases(DTYPES))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_and_statistics_match_extended_precision(small_tiles, case):
    exact, naive = case.exact(), case.statistics()
    logs = case.terms + np.log(2 + case.shape[3])  # bound of the log weights, whose rounding error limits the precision
    for weights in both_forms(case, "streaming"):
        with poisoned():
            statistics = weights.observe(entropy=True, received=True, distance=True, top=3)
            dense = weights.dense()
        assert_matches(dense, exact["weights"], naive["weights"], scale=logs)
        for name in ("entropy", "received", "distance"):  # sums of weights, each with the error of its log weight
            size = max(1.0, float(np.abs(exact[name]).max()))
            assert_matches(getattr(statistics, name), exact[name], naive[name], scale=logs * size)
        for alone, together in zip(
            (weights.entropy(), weights.received(), weights.distance()),
            (statistics.entropy, statistics.received, statistics.distance),
            strict=True,
        ):
            assert torch.equal(alone, together)
        check_top(statistics.top, case, dense)


def test_observe_pools_in_the_same_pass():
    x = torch.randn(1, 2, 13, 4)
    weights = attention(x, x, x, mask=Causal(), return_weights=True)[1]
    statistics = weights.observe(entropy=True, pool=(3, 5), reduce="max")
    assert torch.equal(statistics.pooled, weights.pool(3, 5, reduce="max"))
    assert list(statistics) == ["entropy", "pooled"]
    with pytest.raises(AttributeError, match=r"received was not requested; call observe\(received=True\)"):
        _ = statistics.received
    empty = attention(x[:, :, :0], x, x, return_weights=True)[1]
    assert torch.equal(empty.observe(pool=(2, 2)).pooled, torch.zeros(1, 2, 2, 2))


def check_top(top, case: Case, dense: torch.Tensor) -> None:
    counts = case.allowed.sum(dim=-1)
    assert torch.equal((top.keys >= 0).sum(dim=-1), counts.clamp(max=3))
    assert (top.weights[top.keys < 0] == 0).all()
    weights_of_keys = dense.gather(-1, top.keys.clamp(min=0)) * (top.keys >= 0) if dense.shape[-1] else top.weights
    torch.testing.assert_close(top.weights, weights_of_keys, rtol=1e-5, atol=1e-6)
    if dense.shape[-1] >= 3:
        torch.testing.assert_close(top.weights, dense.topk(3, dim=-1).values, rtol=1e-5, atol=1e-6)


@given(case=cases(), offset=st.integers(-4, 4))
@settings(max_examples=100)
def test_diagonals_match_extended_precision(case, offset):
    exact, naive = case.exact()["weights"], case.statistics()["weights"]
    rows = np.arange(case.shape[2])

    def along(matrix, zeros):
        result = zeros
        for b, start in enumerate(case.starts):
            keys = start + rows + offset
            valid = (keys >= 0) & (keys < case.shape[3])
            result[b][:, rows[valid]] = matrix[b][:, rows[valid], keys[valid]]
        return result

    shape = case.shape[:3]
    for weights in both_forms(case):
        assert_matches(
            weights.diagonal(offset),
            along(exact, np.zeros(shape, np.longdouble)),
            along(naive, torch.zeros(shape)),
            scale=case.terms,
        )


@given(
    case=cases(),
    size=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    reduce=st.sampled_from(["mean", "max"]),
    corners=st.tuples(*[st.floats(0, 1)] * 4),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pool_is_adaptive_pooling_of_any_rectangle(small_tiles, case, size, reduce, corners):
    q_len, kv_len = case.shape[2:]
    (row, row_end), (key, key_end) = (
        sorted((int(a * (length - 1)), int(b * (length - 1))))
        for a, b, length in ((*corners[:2], q_len), (*corners[2:], kv_len))
    )
    window = ((row, row_end + 1), (key, key_end + 1))
    function = adaptive_avg_pool2d if reduce == "mean" else adaptive_max_pool2d
    for weights in both_forms(case):
        dense = weights.dense()
        torch.testing.assert_close(weights.pool(*size, reduce=reduce), function(dense, size))
        part = dense[..., slice(*window[0]), slice(*window[1])]
        torch.testing.assert_close(weights.pool(*size, reduce=reduce, window=window), function(part, size))


INDICES = [
    0,
    -1,
    (0, 5),
    (slice(None), 2),
    (0, 5, slice(3, 7)),
    (1, -2, slice(-4, None), slice(None, -2)),
    (slice(None), slice(1, 6, 2), slice(None, None, 3), slice(2, None, 4)),
    (..., 3),
    (0, ..., slice(0, 2)),
    (0, 1, 2, 3),
    (0, 1, slice(5, 5)),
    (0, 1, slice(9, 2), slice(None)),
    ...,
]


def sample(q_len: int = 13, kv_len: int = 17, mask=Causal(), **options):  # noqa: B008, masks are immutable
    query = torch.randn(2, 6, q_len, 4, **options)
    key, value = (torch.randn(2, 3, kv_len, 4, **options) for _ in range(2))
    output, weights = attention(query, key, value, mask=mask, return_weights=True)
    return query, key, value, output, weights


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("gradient", [False, True])
def test_indexing_matches_a_dense_tensor(index, gradient, monkeypatch):
    monkeypatch.setattr(cells, "CELLS_PER_STRIP", 40)
    weights = sample(requires_grad=gradient)[-1]
    got, expected = weights[index], weights.dense()[index]
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected)
    scores = weights.scores[index]
    torch.testing.assert_close(torch.exp(scores - weights.lse[..., None].expand(weights.shape)[index]), expected)


def test_length_iteration_and_size_match_a_tensor():
    weights = sample()[-1]
    assert len(weights) == 2
    assert [sequence.shape for sequence in weights] == [(6, 13, 17)] * 2
    assert weights.shape == weights.size() == (2, 6, 13, 17)
    assert weights.size(-1) == 17
    assert weights.ndim == weights.dim() == 4


def test_scores_are_minus_infinity_where_masked():
    weights = sample()[-1]
    assert torch.equal(weights.scores[0, 0] == -torch.inf, ~Causal().dense(13, 17)[0, 0])


@pytest.mark.parametrize("form", [0, 1])
def test_gradients_flow_through_cells(form):
    """Indexing, dense() and diagonal() are differentiable in query, key, bias and sinks."""
    query = torch.randn(1, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 1, 7, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(2, 1, 7, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def call(query, key, bias, sinks):
        weights = both_forms(Case(query, key, key, Window(2, 1), bias, sinks=sinks, softcap=2.0), "streaming")[form]
        return weights[0, 1, 1:5:2, 2:], weights.dense(), weights.diagonal(-1), weights.scores[0, 0, 4, 4:]

    assert torch.autograd.gradcheck(call, (query, key, bias, sinks))


def test_lse_and_statistics_carry_no_gradient():
    weights = sample(requires_grad=True)[-1]
    statistics = weights.observe(entropy=True, received=True, distance=True, top=2)
    tensors = (statistics.entropy, statistics.received, statistics.distance, statistics.top.weights)
    assert not any(t.requires_grad for t in (weights.lse, weights.pool(2, 2), *tensors))
    assert weights.dense().requires_grad
    assert not weights.detach().dense().requires_grad


def test_statistics_are_not_renormalized_by_a_sinks_share():
    x = torch.zeros(1, 1, 2, 3)
    _, weights = attention(x, x, x, sinks=torch.zeros(1), return_weights=True)  # three equal logits, one dropped
    torch.testing.assert_close(weights.dense(), torch.full((1, 1, 2, 2), 1 / 3))
    torch.testing.assert_close(weights.entropy(), torch.full((1, 1, 2), 2 / 3 * np.log(3), dtype=torch.float32))
    torch.testing.assert_close(weights.received(), torch.full((1, 1, 2), 2 / 3))


class TestSizeLimit:
    def weights(self):
        x = torch.randn(1, 1, 20_000, 8)
        return attention(x, x, x, mask=Causal(), return_weights=True)[1]

    def test_refuses_results_above_the_limit(self):
        weights = self.weights()
        for use in (weights.dense, lambda: weights[0], lambda: weights.scores[0], lambda: np.asarray(weights)):
            with pytest.raises(ValueError, match="400,000,000 weights are more than the limit") as caught:
                use()
            assert all(name in str(caught.value) for name in (".part()", ".pool()", ".topk()"))

    def test_computes_rows_of_a_large_matrix(self):
        weights = self.weights()
        rows = weights[0, 0, 12_345:12_347]
        assert rows.shape == (2, 20_000)
        torch.testing.assert_close(rows.sum(dim=-1), torch.ones(2), rtol=0, atol=1e-5)
        assert weights[0, 0, ::4000, ::1000].shape == (5, 20)


class TestPart:
    @pytest.mark.parametrize("heads", [5, -1, slice(2, 4), [0, 1], [4, 5, 0, 1], [0, 2, 3], [5, 0], slice(None)])
    @pytest.mark.parametrize("batch", [None, 1, [1, 0]])
    @pytest.mark.parametrize(
        "mask", [None, Padding([9, 17]), Dense(torch.rand(2, 6, 13, 17) < 0.7), Documents([[4, 9], [17]]) | Prefix(2)]
    )
    def test_matches_the_selected_heads_and_sequences(self, heads, batch, mask):
        weights = sample(mask=mask)[-1]
        part = weights.part(batch=batch, heads=heads)
        chosen = torch.arange(6)[heads].reshape(-1)
        sequences = torch.arange(2) if batch is None else torch.arange(2)[batch].reshape(-1)
        assert part.shape == (len(sequences), len(chosen), 13, 17)
        torch.testing.assert_close(part.dense(), weights.dense()[sequences][:, chosen])
        torch.testing.assert_close(part.entropy(), weights.entropy()[sequences][:, chosen])
        assert mask is None or repr(mask) in repr(part)

    def test_selects_per_head_and_per_sequence_options(self):
        query, key = torch.randn(2, 6, 13, 3), torch.randn(2, 3, 13, 3)
        for bias in (torch.randn(2, 6, 13, 13), ALiBi(torch.rand(6))):
            _, weights = attention(
                query,
                key,
                key,
                bias=bias,
                sinks=torch.randn(6),
                query_start=torch.tensor([0, 5]),
                mask=Causal(),
                return_weights=True,
            )
            part = weights.part(batch=1, heads=[1, 4])
            torch.testing.assert_close(part.dense()[0], weights.dense()[1, [1, 4]])
            torch.testing.assert_close(part.distance()[0], weights.distance()[1, [1, 4]])

    def test_accepts_indices_of_any_integer_type(self):
        weights = sample()[-1]
        for heads in (torch.tensor([1, 2]), np.array([1, 2]), range(1, 3), [np.int64(1), 2]):
            assert torch.equal(weights.part(heads=heads).lse, weights.lse[:, 1:3])
        assert torch.equal(weights.topk(np.int64(3)).keys, weights.topk(3).keys)

    def test_shares_memory_with_the_matrix(self):
        query, key, *_, weights = sample()
        part = weights.part(heads=slice(2, 4))
        assert part._call.query.data_ptr() == query[:, 2].data_ptr()
        assert part._call.key.data_ptr() == key[:, 1].data_ptr()

    @pytest.mark.parametrize("queries", [slice(3, 7), slice(-2, None), slice(5, 5)])
    @pytest.mark.parametrize("mask", [None, Causal(), Dense(torch.rand(1, 6, 13, 17) < 0.7), Padding([9, 17])])
    def test_sliced_queries_keep_their_positions(self, queries, mask):
        query, key, value, *_ = sample()
        _, weights = attention(query, key, value, mask=mask, bias=ALiBi(torch.rand(6)), return_weights=True)
        part = weights.part(heads=[1, 4], queries=queries)
        torch.testing.assert_close(part.dense(), weights.dense()[:, [1, 4], queries])
        torch.testing.assert_close(part.distance(), weights.distance()[:, [1, 4], queries])
        torch.testing.assert_close(part.diagonal(-1), weights.diagonal(-1)[:, [1, 4], queries])


class TestHiding:
    @pytest.mark.parametrize("keys", [0, [0, 16], slice(3, 9)])
    @pytest.mark.parametrize(
        "mask", [None, Causal(), Padding([9, 17]), Dense(torch.rand(1, 6, 13, 17) < 0.7), Window(3) | Prefix(2)]
    )
    def test_zeroes_only_the_hidden_columns(self, keys, mask):
        weights = sample(mask=mask)[-1]
        expected = weights.dense().clone()
        expected[..., keys] = 0
        hidden = weights.hiding(keys)
        torch.testing.assert_close(hidden.dense(), expected)
        torch.testing.assert_close(hidden.received(), expected.sum(dim=2))
        torch.testing.assert_close(hidden.pool(13, 17, reduce="max"), expected)
        torch.testing.assert_close(hidden.part(heads=2, queries=slice(4, 9)).dense(), expected[:, 2:3, 4:9])

    def test_works_on_a_matrix_that_holds_scores(self):
        query, key = torch.randn(1, 1, 1, 5), torch.randn(1, 1, 3, 5)
        _, weights = attention(query, key, key, return_weights=True)
        assert "holds scores" in repr(weights)
        torch.testing.assert_close(weights.hiding(1).dense()[0, 0, 0, [0, 2]], weights.dense()[0, 0, 0, [0, 2]])
        assert weights.hiding(1).dense()[0, 0, 0, 1] == 0

    def test_carries_no_gradient_and_does_not_renormalize(self):
        query, key = torch.randn(1, 2, 5, 7, requires_grad=True), torch.randn(1, 2, 11, 7)
        _, weights = attention(query, key, key, return_weights=True)
        hidden = weights.hiding(0)
        assert not hidden.dense().requires_grad
        torch.testing.assert_close(hidden.dense()[..., 1:], weights.dense()[..., 1:].detach())


class TestInPlaceChanges:
    USES = (
        lambda w: w[0, 0, 0],
        lambda w: w.entropy(),
        lambda w: w.pool(2, 2),
        lambda w: w.part(heads=0),
        lambda w: w.diagonal(),
        lambda w: w.dense(),
        lambda w: w.scores[0, 0],
    )

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("inference", [False, True])
    def test_in_place_changes_of_query_and_key_are_detected(self, which, inference):
        with torch.inference_mode(inference):
            *tensors, _, _, weights = sample()
            weights.entropy()
            row = tensors[which][0, 0, 0]
            row.copy_(row.flip(0))
            for use in self.USES:
                with pytest.raises(RuntimeError, match=f"{('query', 'key')[which]} was changed in place"):
                    use(weights)

    @pytest.mark.parametrize("inference", [False, True])
    def test_in_place_changes_of_bias_sinks_and_mask_are_detected(self, inference):
        with torch.inference_mode(inference):
            x, allowed = torch.randn(1, 2, 9, 3), torch.ones(9, 9, dtype=torch.bool)
            for name, changed, options in (
                ("bias", bias := torch.zeros(9, 9), {"bias": bias}),
                ("bias", slopes := torch.zeros(2), {"bias": ALiBi(slopes)}),
                ("sinks", sinks := torch.zeros(2), {"sinks": sinks}),
                ("mask", allowed, {"mask": Causal() & Dense(allowed)}),
            ):
                _, weights = attention(x, x, x, **options, return_weights=True)
                changed[0] = 1 - changed[0].float()
                with pytest.raises(RuntimeError, match=f"{name} was changed in place"):
                    weights.entropy()

    def test_in_place_changes_of_query_start_have_no_effect(self):
        x, start = torch.randn(2, 2, 9, 3), torch.tensor([0, 3])
        _, weights = attention(x, x, x, mask=Causal(), query_start=start, return_weights=True)
        before = weights.distance()
        start += 1
        assert torch.equal(weights.distance(), before)

    def test_in_place_changes_of_values_are_allowed(self):
        *_, value, _, weights = sample()
        value.zero_()
        weights.entropy()

    def test_in_place_changes_have_no_effect_on_a_matrix_that_holds_scores(self):
        query, key, *_, weights = sample(q_len=1)
        before = weights.dense()
        query.zero_()
        key.zero_()
        assert torch.equal(weights.dense(), before)


def test_the_smaller_form_is_held():
    """Scores are held if heads · q_len ≤ kv_heads · key_dim, as in decoding."""
    for q_len, form in ((2, "holds scores"), (3, "holds query and key")):
        query, key = torch.randn(1, 4, q_len, 4), torch.randn(1, 2, 1000, 4)  # 4 · q_len against 2 · 4
        _, weights = attention(query, key, key, return_weights=True)
        assert form in repr(weights)


class TestFiles:
    def test_saved_weights_load_unchanged(self, tmp_path):
        query, key = torch.randn(2, 6, 13, 3), torch.randn(2, 3, 17, 3)
        for bias, mask in (
            (None, None),
            (ALiBi(torch.rand(6)), Causal()),
            (torch.randn(17), Padding([3, 9]) | Prefix(1)),
        ):
            _, weights = attention(
                query, key, key, bias=bias, mask=mask, sinks=torch.randn(6), softcap=3.0, return_weights=True
            )
            weights.save(tmp_path / "w.safetensors")
            loaded = AttentionWeights.load(tmp_path / "w.safetensors")
            assert repr(loaded) == repr(weights)
            assert torch.equal(loaded.dense(), weights.dense())
            assert torch.equal(loaded.distance(), weights.distance())
            assert torch.equal(loaded.value, key)

    def test_one_tensor_can_be_query_key_and_value(self, tmp_path):
        x = torch.randn(1, 1, 9, 3)
        _, weights = attention(x, x, x, return_weights=True)
        weights.save(tmp_path / "w")
        assert torch.equal(AttentionWeights.load(tmp_path / "w").dense(), weights.dense())

    def test_refuses_other_files_in_one_line(self, tmp_path):
        from safetensors.torch import save_file

        complete = tmp_path / "complete"
        sample()[-1].save(complete)
        (tmp_path / "short").write_bytes(complete.read_bytes()[:-50])
        (tmp_path / "junk").write_bytes(b"\x00\xff" * 99)
        (tmp_path / "empty").write_bytes(b"")
        save_file({"a": torch.ones(1)}, tmp_path / "foreign")
        for name, message in (
            ("short", "not a complete safetensors file"),
            ("junk", "not a complete safetensors file"),
            ("empty", "not a complete safetensors file"),
            ("foreign", "not saved by AttentionWeights.save"),
        ):
            with pytest.raises(ValueError, match=message) as caught:
                AttentionWeights.load(tmp_path / name)
            assert "\n" not in str(caught.value)
        with pytest.raises(FileNotFoundError, match="no such file"):
            AttentionWeights.load(tmp_path / "missing")

    def test_a_failed_write_keeps_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "w"
        sample()[-1].save(path)
        before = path.read_bytes()

        def raise_disk_full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("clearhead.weights.serialization.save_file", raise_disk_full)
        with pytest.raises(OSError, match="No space"):
            sample()[-1].save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["w"]


class TestConversionToTensors:
    def test_numpy_gets_the_dense_matrix(self):
        weights = sample()[-1]
        array = np.asarray(weights)
        assert array.dtype == np.float32
        assert np.array_equal(array, weights.dense().numpy())
        assert np.asarray(weights, dtype=np.float64).dtype == np.float64

    def test_torch_functions_and_methods_use_the_dense_matrix(self):
        weights = sample()[-1]
        dense = weights.dense()
        assert torch.equal(torch.stack([weights, weights]), torch.stack([dense, dense]))
        assert torch.equal(torch.cat((weights, dense), dim=1), torch.cat((dense, dense), dim=1))
        assert torch.equal(weights.mean(dim=1), dense.mean(dim=1))
        assert torch.equal(weights.sum(dim=-1, keepdim=True), dense.sum(dim=-1, keepdim=True))
        assert torch.equal(torch.mean(weights, dim=1), dense.mean(dim=1))
        assert torch.equal(weights * 2 - weights, dense * 2 - dense)
        assert torch.equal(1 - weights, 1 - dense)
        assert torch.equal(weights > 0.1, dense > 0.1)
        assert torch.equal(weights @ dense.mT, dense @ dense.mT)
        assert torch.equal(dense + weights, dense + dense)
        assert torch.equal(weights == 0, dense == 0)
        assert torch.equal(abs(-weights), dense)
        assert weights.argmax(dim=-1).shape == (2, 6, 13)
        assert len({weights, weights}) == 1
        assert hasattr(weights, "numpy")
        assert weights.numel() == dense.numel()

    def test_deepcopy_and_pickle_keep_the_weights(self):
        weights = sample()[-1]
        for copied in (copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
            assert torch.equal(copied.dense(), weights.dense())


def test_to_moves_the_matrix_to_another_device():
    weights = sample(mask=Dense(torch.rand(13, 17) < 0.5))[-1]
    assert torch.equal(weights.cpu().dense(), weights.dense())
    moved = weights.to("meta")
    assert moved.device.type == "meta"
    assert moved.shape == weights.shape


def test_repr_contains_the_shape_and_the_memory_saved():
    x = torch.randn(1, 2, 1000, 16)
    _, weights = attention(x, x, x, mask=Causal(), return_weights=True)
    assert repr(weights) == (
        "AttentionWeights(1 × 2 heads × 1000 queries × 1000 keys, torch.float32, cpu, mask=Causal(); "
        "holds query and key, 250 KiB; dense 7.63 MiB)"
    )


class TestIdentities:
    """Statistics computed in a second way, in float64."""

    def weights(self, **options):
        inputs = [torch.randn(1, 2, 40, 5, dtype=torch.float64) for _ in range(3)]
        return inputs, attention(*inputs, return_weights=True, **options)[1]

    def test_entropy_from_one_more_call_whose_values_are_the_keys(self):
        (query, key, _), weights = self.weights(mask=Causal())
        mean_key = attention(query, key, key, mask=Causal())
        mean_score = (query * mean_key).sum(dim=-1) / 5**0.5
        torch.testing.assert_close(weights.entropy(), weights.lse - mean_score)

    def test_received_from_queries_and_keys_swapped(self):
        (query, key, value), weights = self.weights()
        _, swapped = attention(key, query, value, bias=-weights.lse[:, :, None], return_weights=True)
        torch.testing.assert_close(weights.received(), swapped.lse.exp())

    def test_causal_distance_from_the_mean_key_position(self):
        (query, key, _), weights = self.weights(mask=Causal())
        positions = torch.arange(40, dtype=torch.float64)
        mean_position = attention(query, key, positions[:, None].expand(1, 2, 40, 1), mask=Causal()).squeeze(-1)
        torch.testing.assert_close(weights.distance(), positions - mean_position)


def test_topk_pads_if_k_exceeds_the_number_of_keys():
    weights = sample()[-1]
    top = weights.topk(20)
    assert top.weights.shape == top.keys.shape == (2, 6, 13, 20)
    assert (top.keys[..., 17:] == -1).all()
    assert (top.weights[..., 17:] == 0).all()
    torch.testing.assert_close(top.weights.sum(dim=-1), torch.ones(2, 6, 13))


def test_pooling_an_empty_matrix_returns_zeros():
    _, weights = attention(
        torch.randn(1, 2, 3, 4), torch.randn(1, 2, 0, 4), torch.randn(1, 2, 0, 4), return_weights=True
    )
    assert torch.equal(weights.pool(2, 5), torch.zeros(1, 2, 2, 5))
