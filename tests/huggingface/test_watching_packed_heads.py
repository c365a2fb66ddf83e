"""Tests of models whose `sdpa` packs the heads of a group as queries of one key head, as transformers does since 5.23.

The direct computation is eager attention.
"""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.integrations import sdpa_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from clearhead.huggingface import ablate, watch
from clearhead.huggingface._observed_masks import remember_call, shape_of_call
from support.peers import assert_agrees
from support.tiny_models import sharpened

SIZES = {
    "vocab_size": 97, "hidden_size": 30, "intermediate_size": 23, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOW = 7
MAKERS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"])
    ),
}
TEXT, NEW = 5, 5
CASES = [(name, cache) for name in MAKERS for cache in (None, "static")]
CORE = [("llama", "static"), ("mistral", None), ("gemma3", None)]
cases = pytest.mark.parametrize(
    ("name", "cache"), [pytest.param(*case, marks=[] if case in CORE else pytest.mark.slow) for case in CASES]
)


def packing(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **others):
    """Attend as the sdpa of transformers ≥ 5.23 does."""
    if query.shape[2] > 1 or attention_mask is None:
        return sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    rows = query.reshape(len(query), key.shape[1], -1, query.shape[3])
    output = scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling)
    return output.reshape(query.shape).transpose(1, 2).contiguous(), None


@pytest.fixture(autouse=True)
def packs(monkeypatch):
    if not hasattr(sdpa_attention, "pack_gqa"):
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", packing)


def make(name, implementation):
    model = sharpened(MAKERS[name])
    model.set_attn_implementation(implementation)
    return model


def generate(model, cache):
    """Return the logits of all new tokens. The first text is padded on the left."""
    ids = torch.tensor([[0, 0, 5, 6, 7], [9, 3, 4, 5, 6]])
    options = {"min_new_tokens": NEW, "max_new_tokens": NEW, "do_sample": False, "cache_implementation": cache}
    outputs = model.generate(
        ids, attention_mask=ids.sign(), **options, output_logits=True, return_dict_in_generate=True
    )
    return torch.stack(outputs.logits)


@cases
def test_weights_are_those_of_eager_and_outputs_are_unchanged(name, cache):
    def weights(model):
        with watch(model) as seen:
            generate(model, cache)
        return [call.weights.dense() for watched in seen.values() for call in [*watched.calls][1:]]

    model = make(name, "sdpa")
    plain = generate(model, cache)
    with watch(model) as seen:
        assert torch.equal(generate(model, cache), plain)
    assert all(call.weights.shape[:3] == (2, 6, 1) for call in [*seen[0].calls][1:])
    assert_agrees(weights(model), weights, make(name, "eager"))


@pytest.mark.parametrize(("name", "cache"), CORE)
def test_recordings_have_one_query_per_token(name, cache):
    model = make(name, "sdpa")
    with watch(model) as seen:
        generate(model, cache)
    layers = seen.recording(batch=1).stacks["decoder"].layers
    assert [weights.shape for weights in layers] == [(1, 6, TEXT + NEW - 1, TEXT + NEW - 1)] * 2


@cases
def test_statistics_are_those_of_eager_and_outputs_are_unchanged(name, cache):
    outputs = []

    def statistics(model):
        with watch(model, entropy=True, received=True, distance=True, spans=[(2, 5)]) as seen:
            outputs.append(generate(model, cache))
        assert seen[1].queries == TEXT - 2 + TEXT + 2 * (NEW - 1)
        return [call.results() for watched in seen.values() for call in watched.calls]

    model = make(name, "sdpa")
    assert_agrees(statistics(model), statistics, make(name, "eager"), scale=1.0)
    assert torch.equal(outputs[0], generate(model, cache))


@cases
def test_one_head_is_ablated(name, cache):
    def ablated(model):
        with ablate(model, {(0, 4)}):
            return generate(model, cache)

    model = make(name, "sdpa")
    got = ablated(model)
    assert_agrees(got, ablated, make(name, "eager"))
    assert (got - generate(model, cache)).abs().max() > 1e-3


def test_heads_that_are_not_those_of_the_module_are_refused(monkeypatch):
    def regrouping(module, query, key, value, *args, **kwargs):
        rows = query.reshape(len(query), 2 * query.shape[1], -1, query.shape[3] // 2)
        halves = [tensor.repeat_interleave(6, dim=1)[..., : rows.shape[3]] for tensor in (key, value)]
        output = scaled_dot_product_attention(rows, *halves)
        return output.reshape(query.shape).transpose(1, 2).contiguous(), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", regrouping)
    model, ids = make("llama", "sdpa"), torch.tensor([[9, 3, 4]])
    message = "query has 12 heads of length 3; expected 6 heads of length 3, as in LlamaAttention"
    with pytest.raises(ValueError, match=f"watch observed no attention of LlamaForCausalLM: {message}"), watch(model):
        model(ids)
    with pytest.raises(ValueError, match=f"model.layers.0.self_attn: {message}"), ablate(model, {(0, 4)}):
        model(ids)


def test_calls_of_another_rank_state_no_shape():
    module, tensor = torch.nn.Identity(), torch.randn(2, 5, 7)
    assert remember_call(lambda module, *args, **kwargs: shape_of_call(module), module, tensor, tensor, tensor) is None
    assert remember_call(lambda module, **kwargs: shape_of_call(module), module, query=tensor) is None
