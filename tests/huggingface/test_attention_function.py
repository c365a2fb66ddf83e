"""Tests of transformers models on clearhead against transformers' eager attention."""

import pytest
import torch
import transformers
from transformers import GPTJConfig, GPTJModel
from transformers.masking_utils import create_causal_mask

from clearhead import AttentionWeights
from clearhead.huggingface import LazyMask, attention_modules
from clearhead.huggingface._attention_function import attention_forward
from support.peers import assert_agrees, gradients
from support.tiny_models import (
    DECODERS,
    ENCODERS,
    LENGTH,
    MAKERS,
    PAIRS,
    SIZES,
    VOCABULARY,
    enable_checkpointing,
    inputs_for,
    make,
)

CASES = [(name, padding) for name in MAKERS for padding in (None, "left", "right") if padding is None or name != "vit"]


def result(outputs):
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def valid_rows(name, inputs, tensor):
    """Return the rows that are not padding.

    For padding queries without visible keys, eager returns the mean of all values and clearhead returns 0.
    """
    mask = inputs.get("attention_mask")
    if mask is None or name in PAIRS or tensor.shape[1] != mask.shape[1]:
        return tensor
    return tensor[mask.bool()]


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_outputs_and_attentions_are_those_of_eager(name, padding):
    inputs = inputs_for(name, padding)
    sizes = {"output": 0.0}

    def outputs_at_valid_tokens(model, inputs):
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
        kinds = [key for key in outputs if key.endswith("attentions") and outputs[key]]
        assert len(kinds) == (3 if name in PAIRS else 1)
        rows_by_name = {"output": valid_rows(name, inputs, result(outputs))}
        for kind in kinds:
            assert len(outputs[kind]) == 2
            for layer, weights in enumerate(outputs[kind]):
                if model is ours:
                    assert isinstance(weights, AttentionWeights)
                    # a weight is exp(score - lse), so a rounding error of lse is a relative error of the weight
                    sizes[f"{kind} {layer}"] = float(weights.lse[weights.lse > -torch.inf].abs().max())
                rows = weights[...].transpose(1, 2)
                hidden = kind == "encoder_attentions" and padding == "left"
                rows = rows[inputs["attention_mask"].bool()] if hidden else valid_rows(name, inputs, rows)
                rows_by_name[f"{kind} {layer}"] = rows
        return rows_by_name

    ours = make(name)
    got = outputs_at_valid_tokens(ours, inputs)
    assert_agrees(got, outputs_at_valid_tokens, make(name, "eager"), inputs, scale=sizes)


def test_attentions_support_indexing_stack_and_sum():
    model, inputs = make("llama"), inputs_for("llama")
    with torch.no_grad():
        outputs = model(**inputs, output_attentions=True)
    assert outputs.attentions[1][0, 3].shape == (LENGTH, LENGTH)
    assert outputs.attentions[1].shape == (2, 4, LENGTH, LENGTH)
    assert torch.stack(list(outputs.attentions)).shape == (2, 2, 4, LENGTH, LENGTH)
    torch.testing.assert_close(outputs.attentions[0][1].sum(dim=-1), torch.ones(4, LENGTH))
    assert model(**inputs).get("attentions") is None


@pytest.mark.parametrize("name", [*DECODERS, *PAIRS])
@pytest.mark.parametrize(
    "options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}, {"use_cache": False}], ids=str
)
def test_greedy_generation_is_that_of_eager(name, options):
    inputs = inputs_for(name, "left" if name in DECODERS else "right")
    inputs.pop("decoder_input_ids", None)
    texts = [
        make(name, implementation).generate(**inputs, max_new_tokens=9, do_sample=False, **options)
        for implementation in ("eager", "clearhead")
    ]
    assert torch.equal(*texts)


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=str)
def test_attentions_of_each_new_token_are_those_of_eager(options):
    """Static caches overwrite keys in place; attentions that were returned before must not change."""

    def attentions_of_valid_tokens(model, inputs):
        run = model.generate(
            **inputs, max_new_tokens=5, do_sample=False, output_attentions=True, return_dict_in_generate=True, **options
        )
        assert len(run.attentions) == 5
        steps = [[weights[...] for weights in layers] for layers in run.attentions]
        return [[w[:, :, 3:] if w.shape[2] > 1 else w for w in layers] for layers in steps]

    inputs = inputs_for("llama", "left")
    got = attentions_of_valid_tokens(make("llama"), inputs)
    assert_agrees(got, attentions_of_valid_tokens, make("llama", "eager"), inputs)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "bart", "vit"])
def test_gradients_in_training_mode_are_those_of_eager(name):
    def gradients_of_a_sum(model, inputs):
        without_dropout(model)
        output = result(model(**inputs))
        (output * torch.linspace(-1, 1, output.numel()).view_as(output).cos()).sum().backward()
        return gradients(model)

    inputs = inputs_for(name)
    got = gradients_of_a_sum(make(name).train(), inputs)
    assert_agrees(got, gradients_of_a_sum, make(name, "eager").train(), inputs)


def without_dropout(model):
    for owner in [model.config, *model.modules()]:
        if isinstance(owner, torch.nn.Dropout):
            owner.p = 0.0
        for attribute in ("dropout", "attention_dropout", "attention_probs_dropout_prob"):
            if isinstance(getattr(owner, attribute, None), float):
                setattr(owner, attribute, 0.0)


def test_dropout_is_applied_in_training():
    model = make("gpt2").train()
    torch.manual_seed(0)
    one, other = (result(model(**inputs_for("gpt2"))) for _ in range(2))
    assert not torch.allclose(one, other)


def test_packed_texts_give_the_outputs_of_single_texts():
    """Position ids that restart at 0 separate two texts in one row."""
    model = make("llama")
    ids = torch.randint(3, VOCABULARY, (1, LENGTH))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])

    def alone(model):
        with torch.no_grad():
            return torch.cat([model(input_ids=part).logits for part in (ids[:, :4], ids[:, 4:])], dim=1)

    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False, output_attentions=True)
    assert_agrees(packed.logits, alone, make("llama", "eager"))
    assert "packed" in repr(packed.attentions[0])
    assert packed.attentions[0][:, :, 4:, :4].abs().max() == 0


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_prefill_in_chunks_gives_the_outputs_of_one_pass(name):
    model = make(name)
    ids = inputs_for(name)["input_ids"]
    with torch.no_grad():
        first = model(input_ids=ids[:, :4], use_cache=True)
        second = model(input_ids=ids[:, 4:9], past_key_values=first.past_key_values, use_cache=True)
        third = model(input_ids=ids[:, 9:], past_key_values=second.past_key_values, use_cache=True)
    in_chunks = torch.cat([first.logits, second.logits, third.logits], dim=1)
    assert_agrees(in_chunks, logits, make(name, "eager"), {"input_ids": ids})


def test_bool_and_additive_masks_of_the_user():
    ids = inputs_for("llama")["input_ids"]
    allowed = torch.rand(2, 1, LENGTH, LENGTH) > 0.4
    allowed |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    for mask in (allowed, added):
        got = logits(make("llama"), {"input_ids": ids, "attention_mask": mask})
        assert_agrees(got, logits, make("llama", "eager"), {"input_ids": ids, "attention_mask": added})


def test_compiled_model_gives_the_outputs_of_eager():
    model, inputs = make("llama"), inputs_for("llama", "left")
    compiled = logits(torch.compile(model, backend="aot_eager"), inputs)
    assert_agrees(compiled[:, 3:], lambda *given: logits(*given)[:, 3:], make("llama", "eager"), inputs)
    torch._dynamo.reset()


def test_masks_of_100_000_tokens_are_lazy():
    """Neither windows nor padding create a tensor of size n × n."""
    config = make("mistral").config
    embeddings = torch.zeros(2, 100_000, 4)
    padding = torch.ones(2, 100_000, dtype=torch.long)
    padding[0, :50] = 0
    mask = create_causal_mask(config, embeddings, padding, None)
    assert isinstance(mask, LazyMask)
    assert mask.shape == (2, 1, 100_000, 100_000)
    assert repr(mask.mask) == "Causal() & Padding.left([99950, 100000])"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cu_seq_lens_q", torch.tensor([0, 4])),
        ("indices", torch.tensor([1])),
        ("block_indices", 3),
        ("cache", object()),
    ],
)
def test_rejects_arguments_that_change_attention(name, given):
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=name):
        attention_forward(torch.nn.Module(), x, x, x, None, **{name: given})
    attention_forward(torch.nn.Module(), x, x, x, None, **{name: None}, position_ids=torch.arange(3), use_cache=True)


def test_a_missing_mask_means_causal_unless_is_causal_is_false():
    x = torch.randn(1, 2, 3, 4)
    longer = torch.randn(1, 2, 5, 4)
    module = torch.nn.Module()
    for is_causal, causal in ((None, True), (True, True), (False, False)):
        _, weights = attention_forward(module, x, longer, longer, None, is_causal=is_causal)
        assert (weights[0, 0, 0] > 0).tolist() == ([True] + [False] * 4 if causal else [True] * 5)
    _, weights = attention_forward(module, x[:, :, :1], longer, longer, None)
    assert (weights[0, 0, 0] > 0).all()
    with pytest.raises(ValueError, match="sliding_window=2"):
        attention_forward(module, x, longer, longer, None, is_causal=False, sliding_window=2)
    _, weights = attention_forward(module, x, longer, longer, None, sliding_window=2)
    assert (weights[0, 0, 2] > 0).tolist() == [False, True, True, False, False]


class TestAttentionModules:
    @pytest.mark.parametrize("name", MAKERS)
    def test_layers_are_numbered_by_stack(self, name):
        modules = attention_modules(make(name))
        stacks = ["encoder", "decoder", "cross"] if name in PAIRS else ["decoder" if name in DECODERS else "encoder"]
        assert sorted((a.stack, a.layer) for a in modules) == sorted((s, i) for s in stacks for i in range(2))
        assert all(attention.heads == 4 for attention in modules)

    def test_stacks_of_two_towers_have_prefixes(self):
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
        config = transformers.CLIPConfig(
            text_config={**sizes, "vocab_size": 50}, vision_config={**sizes, "image_size": 8, "patch_size": 4}
        )
        assert [a.stack for a in attention_modules(transformers.CLIPModel(config))] == [
            "text encoder",
            "vision encoder",
        ]

    def test_rejects_models_without_the_attention_interface(self):
        model = GPTJModel(GPTJConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=2, rotary_dim=4))
        with pytest.raises(ValueError, match="GPTJModel does not use transformers' AttentionInterface"):
            attention_modules(model)
        with pytest.raises(TypeError, match="model is a Linear; expected a transformers model"):
            attention_modules(torch.nn.Linear(2, 2))


def test_padding_masks_of_encoders_become_padding():
    """Torch's fused kernel supports `Padding`."""
    for name in ENCODERS:
        with torch.no_grad():
            outputs = make(name)(**inputs_for(name, "right"), output_attentions=True)
        assert "Padding([8, 11])" in repr(outputs.attentions[0])


def sizes(**more):
    small = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    return {**small, **heads, "pad_token_id": 0, "decoder_start_token_id": 2, **more}


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (transformers.SplinterModel, transformers.SplinterConfig(**SIZES)),
        (transformers.NllbMoeModel, transformers.NllbMoeConfig(**sizes(num_experts=2))),
    ],
    ids=["splinter", "nllb-moe"],
)
def test_outputs_of_modules_without_is_causal_are_those_of_eager(model, config):
    torch.manual_seed(0)
    model = model(config).eval()
    ids = inputs_for("llama")["input_ids"]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids[:, :7]} if config.is_encoder_decoder else {})

    def states(model, inputs):
        with torch.no_grad():
            return model(**inputs).last_hidden_state

    model.set_attn_implementation("clearhead")
    got = states(model, inputs)
    model.set_attn_implementation("eager")
    assert_agrees(got, states, model, inputs)


@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_gradient_checkpointing_gives_the_same_gradients(name):

    def gradients_of_a_mean(model, inputs):
        without_dropout(model)
        result(model(**inputs, use_cache=False)).square().mean().backward()
        return gradients(model)

    model = make(name).train()
    enable_checkpointing(model)
    # the first forward pass runs without gradients and may use another kernel
    assert_agrees(
        gradients_of_a_mean(model, inputs_for(name)), gradients_of_a_mean, make(name).train(), inputs_for(name)
    )


def test_rejects_an_integer_mask():
    mask = torch.ones(LENGTH, LENGTH).tril().long().expand(2, 1, LENGTH, LENGTH)
    with pytest.raises(ValueError, match="dtype torch.int64; expected bool"):
        make("llama")(input_ids=inputs_for("llama")["input_ids"], attention_mask=mask)


def test_warns_about_submodules_without_the_attention_interface():
    config = transformers.LongT5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, local_radius=4
    )
    with pytest.warns(UserWarning, match="LongT5ForConditionalGeneration contains .*LongT5LocalAttention, which do"):
        modules = attention_modules(transformers.LongT5ForConditionalGeneration(config))
    assert {attention.stack for attention in modules} == {"decoder", "cross"}
