"""Tests that a watched transformers model computes what it computes unwatched, bit for bit, on every implementation."""

import pytest
import torch
import transformers
from torch.nn.attention import flex_attention

from clearhead.huggingface import ablate, watch
from clearhead.huggingface._hooks import HOOK_SETS
from support.peers import assert_agrees
from support.tiny_models import LENGTH, SIZES, enable_checkpointing, inputs_for, make

IMPLEMENTATIONS = ["sdpa", "eager", "clearhead"]
WATCHES = {"lazy": {}, "statistics": {"entropy": True, "received": True, "distance": True, "top": 2, "peak": True}}


def with_dropout(name, implementation):
    model = make(name, implementation).train()
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    return model


def training_step(model, *, autocast=False):
    """Return the outputs, the gradients and the random state after one step."""
    ids = inputs_for("llama")["input_ids"]
    torch.manual_seed(7)
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(input_ids=ids, labels=ids, use_cache=False)
    output.loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [output.loss.detach(), output.logits.detach(), *gradients, torch.get_rng_state()]


def assert_equal(one, other):
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize("statistics", WATCHES.values(), ids=WATCHES)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_training_step_is_equal(name, implementation, autocast, checkpointing, statistics):
    model = with_dropout(name, implementation)
    if checkpointing:
        enable_checkpointing(model)
    plain = training_step(model, autocast=autocast)
    with watch(model, **statistics) as seen:
        watched = training_step(model, autocast=autocast)
    assert_equal(plain, watched)
    assert_equal(plain, training_step(model, autocast=autocast))
    assert [len(layer.calls) for layer in seen.values()] == [1, 1]
    assert all(not layer.weights.requires_grad for layer in seen.values() if not statistics)
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_reentrant_checkpointing_is_equal_and_observed_once(implementation):
    model = with_dropout("llama", implementation)
    enable_checkpointing(model, use_reentrant=True)
    model.enable_input_require_grads()
    plain = training_step(model)
    with watch(model, entropy=True) as seen:
        watched = training_step(model)
    assert_equal(plain, watched)
    assert [len(layer.calls) for layer in seen.values()] == [1, 1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nested_watches_are_equal(implementation):
    model = with_dropout("llama", implementation)
    plain = training_step(model)
    with watch(model, entropy=True) as outer, watch(model.model.layers[1]) as inner, watch(model, keep=0) as last:
        watched = training_step(model)
    assert_equal(plain, watched)
    assert len(outer[0].calls) == len(outer[1].calls) == 1
    assert list(inner) == ["self_attn"]
    assert len(inner[0].calls) == 1
    assert len(last) == 2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}], ids=str)
def test_generation_is_equal(implementation, mode, options):
    model, inputs = make("llama", implementation), inputs_for("llama", "left")
    options = {**options, "max_new_tokens": 4, "output_logits": True, "return_dict_in_generate": True}
    with mode():
        plain = model.generate(**inputs, do_sample=False, **options)
        with watch(model, entropy=True):
            watched = model.generate(**inputs, do_sample=False, **options)
        with watch(model) as seen:
            lazy = model.generate(**inputs, do_sample=False, **options)
    for result in (watched, lazy):
        assert_equal([plain.sequences, *plain.logits], [result.sequences, *result.logits])
    weights = [call.weights.sum(-1) for call in seen[1].calls]  # the cache has changed since these calls
    assert all(bool(((total - 1).abs() < 1e-5).logical_or(total == 0).all()) for total in weights)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_sampling_takes_the_same_random_numbers(implementation):
    model, inputs = make("llama", implementation), inputs_for("llama")

    def sample():
        torch.manual_seed(3)
        return model.generate(**inputs, max_new_tokens=6, do_sample=True), torch.get_rng_state()

    plain = sample()
    with watch(model, entropy=True, top=1):
        watched = sample()
    assert_equal(plain, watched)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_weights_are_those_of_eager_in_training(implementation):
    """Weights are those before dropout, so they equal those of a model without it up to the first dropout."""
    model = with_dropout("llama", implementation)
    with watch(model) as seen:
        training_step(model)
    inputs = {"input_ids": inputs_for("llama")["input_ids"]}

    def first(model):
        with torch.no_grad():
            return model(**inputs, output_attentions=True).attentions[0]

    assert_agrees(seen[0].weights.dense(), first, make("llama", "eager"))


def uncompiled(function):
    """Return a function of flex_attention without the arguments by which transformers compiles it."""

    def call(*args, _compile=None, training=None, **options):
        return function(*args, **options)

    return call


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_observed(monkeypatch):
    """The functions run uncompiled, because compiling them takes half a minute."""
    attend = uncompiled(flex_attention.flex_attention)
    monkeypatch.setattr(transformers.integrations.flex_attention, "compile_friendly_flex_attention", attend)
    create = uncompiled(flex_attention.create_block_mask)
    monkeypatch.setattr(transformers.masking_utils, "create_block_mask", create)
    model, inputs = make("llama", "flex_attention"), inputs_for("llama", "right")
    with torch.no_grad():
        plain = model(**inputs).logits
        with watch(model) as seen:
            watched = model(**inputs).logits
    assert torch.equal(plain, watched)
    valid = inputs["attention_mask"].bool()

    def weights(model):
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
        return [layer.transpose(1, 2)[valid] for layer in outputs.attentions]

    got = [seen[layer].weights.dense().transpose(1, 2)[valid] for layer in range(2)]
    assert_agrees(got, weights, make("llama", "eager"))
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(**inputs)
    assert seen[1].queries == 8 + LENGTH


def test_other_implementations_are_refused_by_name():
    """A function that a user registers may compute anything."""

    def custom(module, query, key, value, attention_mask, **options):
        return value.repeat_interleave(2, dim=1).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("custom", custom)
    transformers.AttentionMaskInterface.register("custom", transformers.masking_utils.sdpa_mask)
    try:
        model = make("llama", "custom")
        message = "observed no attention of LlamaForCausalLM: attn_implementation is 'custom'; expected sdpa, eager"
        with pytest.raises(ValueError, match=message), torch.no_grad(), watch(model):
            model(**inputs_for("llama"))
    finally:
        transformers.AttentionInterface._global_mapping.pop("custom")
        transformers.AttentionMaskInterface._global_mapping.pop("custom")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_errors_of_the_model_leave_nothing_behind(implementation):
    model = make("gpt2", implementation)
    with pytest.raises(ValueError, match="input_ids"), watch(model, entropy=True):
        model()
    assert model.config._attn_implementation == implementation
    assert not any(getattr(module, HOOK_SETS, ()) or module._forward_pre_hooks for module in model.modules())
    assert "get_interface" not in vars(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)
    assert "__getitem__" not in vars(transformers.AttentionMaskInterface)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_watch_and_ablate_nest(implementation):
    """`ablate` switches the model to clearhead, and `watch` observes what runs."""
    model, inputs = make("llama", implementation), inputs_for("llama")
    with torch.no_grad():
        with ablate(model, {("decoder", 0, 1)}):
            ablated = model(**inputs).logits
            with watch(model, entropy=True) as seen:
                assert torch.equal(model(**inputs).logits, ablated)
        with watch(model, entropy=True) as outer, ablate(model, {("decoder", 0, 1)}):
            assert torch.equal(model(**inputs).logits, ablated)
    for layer in range(2):
        assert torch.equal(seen[layer].calls[0].entropy, outer[layer].calls[0].entropy)
    assert model.config._attn_implementation == implementation


def test_parts_with_different_implementations():
    config = transformers.CLIPConfig(
        text_config={**SIZES, "projection_dim": 16}, vision_config={**SIZES, "image_size": 32, "patch_size": 8}
    )
    model = transformers.CLIPModel(config).eval()
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    inputs = {"input_ids": inputs_for("bert")["input_ids"], **inputs_for("vit")}
    with torch.no_grad():
        plain = model(**inputs).logits_per_image
        with watch(model, entropy=True) as seen:
            watched = model(**inputs).logits_per_image
    assert torch.equal(plain, watched)
    assert {seen.address(layer)[0] for layer in seen.values()} == {"text decoder", "vision encoder"} or len(seen) == 4
