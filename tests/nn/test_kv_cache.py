"""Tests of the KV caches: decoding in any chunks matches one full pass."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead import ALiBi, Causal, KVCache, MultiHeadAttention, Padding, Prefix, Window, attention
from clearhead.nn import Rotary, WindowedKVCache
from clearhead.nn.head import join_heads, split_heads
from clearhead.ops.alibi import alibi_slopes
from support.peers import assert_agrees

LAYERS = {
    "plain": {},
    "grouped, rope": {"kv_heads": 2, "key_dim": 8, "value_dim": 3, "rope": True},
    "qk_norm, sinks, softcap": {
        "kv_heads": 3,
        "key_dim": 8,
        "rope": Rotary(base=50.0),
        "qk_norm": True,
        "sinks": True,
        "softcap": 2.0,
    },
}
LENGTH = 13
every_layer = pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)


def make(options: dict = LAYERS["grouped, rope"], dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    return MultiHeadAttention(30, 6, **options, dtype=dtype)


def text(dtype: torch.dtype = torch.float64, batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, LENGTH, 30, dtype=dtype)


def in_chunks(layer, x, cuts, cache, mask, **options) -> torch.Tensor:
    edges = [0, *sorted(cuts), x.shape[1]]
    return torch.cat([layer(x[:, a:b], mask=mask, cache=cache, **options) for a, b in pairwise(edges)], dim=1)


@every_layer
@pytest.mark.parametrize("recording", [False, True], ids=["no_grad", "with gradients"])
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), capacity=st.integers(1, 20))
@settings(max_examples=20)
def test_chunks_match_one_pass(options, recording, cuts, capacity):
    layer, x = make(options), text()
    cache = KVCache(capacity)
    with torch.set_grad_enabled(recording):
        got = in_chunks(layer, x, cuts, cache, Causal())
    torch.testing.assert_close(got, layer(x, mask=Causal()), rtol=1e-10, atol=1e-12)
    assert cache.lengths == (LENGTH,) * 3
    assert len(cache) == LENGTH
    assert cache.capacity >= LENGTH


@every_layer
@given(window=st.sampled_from([1, 4, 13, 20]), cuts=st.sets(st.integers(1, LENGTH - 1)))
@settings(max_examples=30)
def test_windowed_cache_matches_a_window_mask(options, window, cuts):
    layer, x = make(options), text()
    expected = layer(x, mask=Window(before=window - 1))
    for mask in (Window(before=window - 1), Causal()):
        cache = WindowedKVCache(window)
        with torch.no_grad():
            got = in_chunks(layer, x, cuts, cache, mask)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        assert cache.capacity == cache.window == window


def test_windowed_cache_without_a_mask_is_causal():
    layer, x = make(LAYERS["plain"]), text()
    for cuts in ([4, 5], [1], [12], range(1, 13)):
        with torch.no_grad():
            got = in_chunks(layer, x, cuts, WindowedKVCache(5), None)
        torch.testing.assert_close(got, layer(x, mask=Window(before=4)))


def test_query_start_overrides_the_cache():
    layer, x, cache = make(LAYERS["plain"]), text(), KVCache()
    with torch.no_grad():
        layer(x[:, :8], mask=Causal(), cache=cache)
        cache.truncate([4, 8, 8])
        got = layer(x[:, 8:9], mask=Causal(), cache=cache, query_start=1)
        projected = layer.query(x[:, 8:9]), layer.key(x[:, :2]), layer.value(x[:, :2])
        first_two = attention(*(split_heads(tensor, 5) for tensor in projected))
    torch.testing.assert_close(got, layer.output(join_heads(first_two)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_decoding_matches_one_pass_up_to_rounding(dtype):
    layer, x = make(dtype=dtype), text(dtype)
    with torch.no_grad():
        got = in_chunks(layer, x, range(1, LENGTH), KVCache(), Causal())
        assert_agrees(got, lambda layer, x: layer(x, mask=Causal()), layer, x)


def test_alibi_and_masks_use_absolute_positions():
    layer, x = make(LAYERS["plain"]), text()
    slopes = ALiBi(alibi_slopes(6).double())
    with torch.no_grad():
        got = in_chunks(layer, x, [4, 5, 9], KVCache(), Window(before=3), bias=slopes)
    torch.testing.assert_close(got, layer(x, mask=Window(before=3), bias=slopes))


@pytest.mark.parametrize("frozen", [(), ("key",), ("value",), ("key", "value"), ("query",)], ids=str)
def test_gradients_flow_through_the_cache(frozen):
    layer, x = make(), text()
    for name in frozen:
        getattr(layer, name).requires_grad_(False)
    cotangent = torch.randn(3, LENGTH, 30, dtype=torch.float64)
    parameters = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(layer(x, mask=Causal()), parameters, cotangent)
    for cache in (KVCache(2), KVCache(20)):
        got = torch.autograd.grad(in_chunks(layer, x, [3, 4, 9], cache, Causal()), parameters, cotangent)
        for gradient, expected_gradient in zip(got, expected, strict=True):
            torch.testing.assert_close(gradient, expected_gradient)


class TestRaggedBatches:
    LENGTHS = (5, 9, 2)

    @every_layer
    @pytest.mark.parametrize("make_cache", [KVCache, lambda: WindowedKVCache(20), lambda: WindowedKVCache(9)])
    @pytest.mark.parametrize("chunk", [1, 3])
    def test_truncated_prompts_match_single_sequences(self, options, make_cache, chunk):
        layer, cache = make(options), make_cache()
        window = cache.window if isinstance(cache, WindowedKVCache) else 100
        mask = Window(before=window - 1)
        texts = [torch.randn(1, length + 2 * chunk, 30, dtype=torch.float64) for length in self.LENGTHS]
        prompts = torch.zeros(3, 9, 30, dtype=torch.float64)
        for row, sequence, length in zip(prompts, texts, self.LENGTHS, strict=True):
            row[:length] = sequence[0, :length]
        with torch.no_grad():
            first = layer(prompts, mask=Causal(), cache=cache)
            cache.truncate(self.LENGTHS)
            assert cache.lengths == self.LENGTHS
            steps = []
            for step in range(2):
                new = [t[0, n + chunk * step :][:chunk] for t, n in zip(texts, self.LENGTHS, strict=True)]
                steps.append(layer(torch.stack(new), mask=Causal(), cache=cache))
        later = torch.cat(steps, dim=1)
        for index, (sequence, length) in enumerate(zip(texts, self.LENGTHS, strict=True)):
            alone = layer(sequence, mask=mask)[0]
            torch.testing.assert_close(first[index, :length], alone[:length])
            torch.testing.assert_close(later[index], alone[length:])

    def test_decoding_of_single_tokens_uses_a_fused_kernel(self, monkeypatch):
        layer, cache = make(LAYERS["plain"]), KVCache()
        with torch.no_grad():
            layer(text(), mask=Causal(), cache=cache)
            cache.truncate([5, 9, 2])
            backends = []
            from clearhead.ops import dispatch

            choose = dispatch.choose
            monkeypatch.setattr(dispatch, "choose", lambda *a: backends.append(choose(*a)[0]) or choose(*a))
            layer(text()[:, :1], mask=Causal(), cache=cache)
        assert backends == ["sdpa"]

    def test_nan_in_padding_has_no_effect(self):
        layer, x, cache = make(LAYERS["plain"]), text(), KVCache()
        padded = x[:, :6].clone()
        padded[1, 3:] = torch.nan
        with torch.no_grad():
            layer(padded, mask=Causal(), cache=cache)
            cache.truncate([6, 3, 6])
            got = layer(x[:, 6:7], mask=Causal(), cache=cache)
            alone = torch.cat([x[1, :3], x[1, 6:7]])[None]
            torch.testing.assert_close(got[1], layer(alone, mask=Causal())[0, -1:])

    def test_truncate_to_the_current_lengths_is_allowed_on_a_full_window(self):
        cache = filled(WindowedKVCache(4))
        cache.truncate([LENGTH] * 3)
        assert cache.lengths == (LENGTH,) * 3

    def test_padding_is_masked_without_a_mask_argument(self):
        layer, x, cache = make(LAYERS["plain"]), text(), KVCache()
        with torch.no_grad():
            layer(x[:, :6], mask=Causal(), cache=cache)
            cache.truncate([5, 3, 6])
            got = layer(x[:, 6:8], cache=cache)
            for sequence, length in enumerate((5, 3, 6)):
                alone = torch.cat([x[sequence, :length], x[sequence, 6:8]])[None]
                torch.testing.assert_close(got[sequence], layer(alone)[0, -2:])


class TestWeightsOfCachedCalls:
    """Later calls must not overwrite the keys that `AttentionWeights` references."""

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
    @pytest.mark.parametrize("make_cache", [KVCache, lambda: KVCache(LENGTH), lambda: WindowedKVCache(20)])
    def test_later_tokens_do_not_change_weights(self, mode, make_cache):
        layer, x, cache = make(), text(), make_cache()
        with mode():
            _, weights = layer(x[:, :9], mask=Causal(), cache=cache, return_weights=True)
            rows, value = weights[:, :, 4], weights.value.clone()
            for position in range(9, 13):
                layer(x[:, position : position + 1], mask=Causal(), cache=cache, return_weights=position % 2 == 0)
            assert torch.equal(weights[:, :, 4], rows)
            assert torch.equal(weights.value, value)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("lengths", [[4, 4, 4], [5, 9, 2]])
    def test_tokens_after_truncation_do_not_change_weights(self, mode, lengths):
        layer, x, cache = make(), text(), KVCache()
        with mode():
            _, weights = layer(x[:, :9], mask=Causal(), cache=cache, return_weights=True)
            rows, value, last = weights[:, :, 8], weights.value.clone(), None
            cache.truncate(lengths)
            for position in range(3):
                _, now = layer(x[:, position : position + 3], mask=Causal(), cache=cache, return_weights=True)
                if last is not None:
                    assert torch.equal(last[0].dense(), last[1])
                last = (now, now.dense())
            assert torch.equal(weights[:, :, 8], rows)
            assert torch.equal(weights.value, value)

    def test_a_cache_filled_in_inference_mode_works_outside_it(self):
        layer, x, cache = make(), text(), KVCache()
        with torch.inference_mode():
            layer(x[:, :5], mask=Causal(), cache=cache)
        with torch.no_grad():
            got = layer(x[:, 5:], mask=Causal(), cache=cache)
        torch.testing.assert_close(got, layer(x, mask=Causal())[:, 5:])


class TestMemory:
    def test_memory_is_projected_once(self):
        layer = MultiHeadAttention(30, 6, kv_input_dim=14, dtype=torch.float64)
        x, memory, cache = text(), torch.randn(3, 7, 14, dtype=torch.float64), KVCache()
        calls = []
        layer.key.register_forward_hook(lambda module, inputs, output: calls.append(output.shape[1]))
        with torch.no_grad():
            first = layer(x[:, :4], memory, cache=cache)
            later = layer(x[:, 4:5], memory[:, :0], cache=cache)
            expected = layer(x[:, :5], memory)
        torch.testing.assert_close(torch.cat([first, later], dim=1), expected)
        assert calls == [7, 0, 7]

    def test_gradients_flow_with_frozen_memory_projections(self):
        layer = MultiHeadAttention(30, 6, kv_input_dim=14, dtype=torch.float64)
        layer.key.requires_grad_(False)
        layer.value.requires_grad_(False)
        x, memory, cache = text(), torch.randn(3, 7, 14, dtype=torch.float64), KVCache()
        got = torch.cat([layer(x[:, :4], memory, cache=cache), layer(x[:, 4:], memory[:, :0], cache=cache)], dim=1)
        expected = layer(x, memory)
        torch.testing.assert_close(
            torch.autograd.grad(got.sum(), layer.query.weight), torch.autograd.grad(expected.sum(), layer.query.weight)
        )

    def test_only_key_heads_are_stored(self):
        cache = KVCache(16)
        make(LAYERS["grouped, rope"])(text(), mask=Causal(), cache=cache)
        assert cache._key.shape == (3, 2, 16, 8)
        assert cache._value.shape == (3, 2, 16, 3)


def test_select_reorders_and_repeats_sequences():
    layer, x, cache = make(), text(), KVCache()
    with torch.no_grad():
        layer(x[:, :9], mask=Causal(), cache=cache)
        cache.truncate([5, 9, 2])
        cache.select(torch.tensor([1, 1, 0]))
        assert cache.lengths == (9, 9, 5)
        got = layer(x[:, 9:10], mask=Causal(), cache=cache)
    for row, (source, length) in enumerate(((1, 9), (1, 9), (0, 5))):
        alone = torch.cat([x[source, :length], x[row, 9:10]])[None]
        torch.testing.assert_close(got[row], layer(alone, mask=Causal())[0, -1:])


def test_repr_contains_lengths_and_capacity():
    cache = KVCache(16)
    assert repr(cache) == "KVCache(empty, capacity 16)"
    make()(text(), cache=cache)
    assert repr(cache) == "KVCache(batch 3, lengths [13, 13, 13], capacity 16)"


def filled(cache: KVCache) -> KVCache:
    make()(text(), mask=Causal(), cache=cache)
    return cache


def ragged_call(**arguments) -> None:
    cache = filled(KVCache())
    cache.truncate(np.array([4, 5, 6]))
    make()(text(), cache=cache, **arguments)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: make()(text(), cache=KVCache(8, grow=False)),
            ValueError,
            "cache is full: 0 of 8 positions are used, and 13 more do not fit; increase capacity, or pass grow=True",
        ),
        (
            lambda: make()(text(batch=2), cache=filled(KVCache())),
            ValueError,
            "cache holds 3 sequences, but x has batch 2",
        ),
        (
            lambda: filled(KVCache()).append(torch.ones(2, 2, 1, 8), torch.ones(2, 2, 1, 3)),
            ValueError,
            "cache holds keys of batch 3, but the new keys have 2; use one cache per layer and batch",
        ),
        (lambda: make()(text(), cache={}), TypeError, "cache is a dict; expected a clearhead.KVCache"),
        (
            lambda: make(LAYERS["qk_norm, sinks, softcap"])(text(), cache=filled(KVCache())),
            ValueError,
            "cache holds keys of kv_heads 2, but the new keys have 3",
        ),
        (
            lambda: make(LAYERS["grouped, rope"] | {"key_dim": 4})(text(), cache=filled(KVCache())),
            ValueError,
            "cache holds keys of width 8, but the new keys have 4",
        ),
        (
            lambda: make(dtype=torch.float32)(text(torch.float32), cache=filled(KVCache())),
            ValueError,
            "cache holds keys in torch.float64 on cpu, but the new keys are in torch.float32",
        ),
        (lambda: KVCache(0), ValueError, "capacity is 0; expected a whole number of at least 1"),
        (lambda: WindowedKVCache(0), ValueError, "window is 0; expected a whole number of at least 1"),
        (lambda: KVCache().append(torch.ones(2, 3), torch.ones(2, 3)), ValueError, "key has shape (2, 3); expected ["),
        (lambda: make()(text()[:0], cache=KVCache()), ValueError, "key has shape (0, 2, 13, 8); expected [batch ≥ 1"),
        (lambda: KVCache().truncate(0), ValueError, "the cache is empty; there is nothing to truncate"),
        (
            lambda: make()(text(), mask=Causal() & Prefix(4), cache=filled(WindowedKVCache(4))),
            ValueError,
            "mask depends on absolute key positions, but the cache has evicted the start of the text;"
            " use Causal and Window",
        ),
        (
            lambda: make()(text(), bias=torch.zeros(13, 16), cache=filled(WindowedKVCache(4))),
            ValueError,
            "bias depends on absolute key positions, but the cache has evicted the start of the text; use ALiBi",
        ),
        (
            lambda: make(LAYERS["plain"])(text(), text(), cache=WindowedKVCache(20)),
            ValueError,
            "cache is a WindowedKVCache; expected a KVCache, which keeps all of memory",
        ),
        (lambda: ragged_call(mask="causal"), TypeError, "mask is a str; expected a mask such as Causal()"),
        (lambda: filled(KVCache()).truncate([1, 2]), ValueError, "lengths has 2 entries, but the cache holds 3"),
        (
            lambda: filled(KVCache()).truncate(14),
            ValueError,
            "lengths contains 14; expected at most 13, the length of that",
        ),
        (lambda: filled(KVCache()).truncate(-1), ValueError, "lengths is -1; expected a whole number of at least 0"),
        (
            lambda: filled(WindowedKVCache(4)).truncate(9),
            ValueError,
            "lengths removes tokens, but the window of 4 has overwritten older ones; call truncate before",
        ),
        (lambda: filled(KVCache()).select([3]), ValueError, "sequences contains 3; expected an index from 0 to 2"),
        (lambda: filled(KVCache()).select([]), ValueError, "sequences is empty; expected at least one"),
        (lambda: KVCache().select([0]), ValueError, "the cache is empty; there are no sequences to select"),
    ],
)
def test_rejects_invalid_calls(call, error, message):
    with torch.no_grad(), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.parametrize("make_cache", [KVCache, lambda: WindowedKVCache(5)])
@pytest.mark.parametrize(
    "mistake", [{"mask": Causal() & Padding([1])}, {"bias": torch.ones(99)}, {"mask": Causal(), "ablate": [9]}]
)
def test_a_failed_call_does_not_change_the_cache(make_cache, mistake):
    layer, x, cache = make(), text(), make_cache()
    untouched = make_cache()
    with torch.no_grad():
        for target in (cache, untouched):
            layer(x[:, :7], mask=Causal(), cache=target)
        with pytest.raises(ValueError, match="mask|bias|ablate"):
            layer(x[:, 7:9] + 1, cache=cache, **mistake)
        assert cache.lengths == (7, 7, 7)
        expected = layer(x[:, 7:], mask=Causal(), cache=untouched)
        assert torch.equal(layer(x[:, 7:], mask=Causal(), cache=cache), expected)


def test_a_failed_first_call_does_not_fix_the_batch_size():
    layer, cache = make(), KVCache()
    with pytest.raises(ValueError, match="ablate"):
        layer(text(), cache=cache, ablate=[9])
    layer(text(batch=2), cache=cache)
    assert cache.lengths == (LENGTH, LENGTH)


def test_compiled_decoding_reuses_graphs():
    """Compilation makes one graph for the prompt, one for the first token and one for all later tokens."""
    layer, x, cache = make(dtype=torch.float32).eval(), text(torch.float32), KVCache(LENGTH)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        got = in_chunks(compiled, x, range(4, LENGTH), cache, Causal())
        assert_agrees(got, lambda layer, x: layer(x, mask=Causal()), layer, x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4


def test_a_full_cache_raises_and_is_not_changed():
    layer, x, cache = make(), text(), KVCache(8, grow=False)
    with torch.no_grad():
        layer(x[:, :7], mask=Causal(), cache=cache)
        with pytest.raises(ValueError, match="cache is full: 7 of 8 positions are used, and 2 more"):
            layer(x[:, 7:9], mask=Causal(), cache=cache)
        assert cache.lengths == (7, 7, 7)
        torch.testing.assert_close(layer(x[:, 7:8], mask=Causal(), cache=cache), layer(x, mask=Causal())[:, 7:8])
