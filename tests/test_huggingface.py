"""transformers models on clearhead give what they give on transformers' own eager attention."""

import pytest
import torch
import transformers
from transformers import GPTJConfig, GPTJModel
from transformers.masking_utils import create_causal_mask

from clearhead import AttentionWeights
from clearhead.huggingface import LazyMask, attention_modules
from clearhead.huggingface.forward import attention_forward
from tiny_models import DECODERS, ENCODERS, LENGTH, MAKERS, PAIRS, SIZES, VOCABULARY, inputs_for, make

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
CASES = [(name, padding) for name in MAKERS for padding in (None, "left", "right") if padding is None or name != "vit"]


def both(name, **inputs):
    """A model's outputs on eager attention and on clearhead."""
    outputs = []
    for implementation in ("eager", "clearhead"):
        model = make(name, implementation)
        with torch.no_grad():
            outputs.append(model(**inputs))
    return outputs


def result(outputs):
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def real_rows(name, inputs, tensor):
    """What stands at real tokens: eager gives padding queries that see nothing a mean of all values, we give 0."""
    mask = inputs.get("attention_mask")
    if mask is None or name in PAIRS or tensor.shape[1] != mask.shape[1]:
        return tensor
    return tensor[mask.bool()]


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_outputs_and_attentions_are_those_of_eager(name, padding):
    inputs = inputs_for(name, padding)
    eager, ours = both(name, **inputs, output_attentions=True)
    torch.testing.assert_close(real_rows(name, inputs, result(ours)), real_rows(name, inputs, result(eager)), **CLOSE)
    kinds = [key for key in eager if key.endswith("attentions") and eager[key]]
    assert len(kinds) == (3 if name in PAIRS else 1)
    for kind in kinds:
        assert len(ours[kind]) == len(eager[kind]) == 2
        for mine, theirs in zip(ours[kind], eager[kind], strict=True):
            assert isinstance(mine, AttentionWeights)
            assert mine.shape == theirs.shape
            if kind == "encoder_attentions" and padding == "left":
                rows = [tensor.transpose(1, 2)[inputs["attention_mask"].bool()] for tensor in (mine.dense(), theirs)]
            else:
                rows = [real_rows(name, inputs, tensor.transpose(1, 2)) for tensor in (mine.dense(), theirs)]
            torch.testing.assert_close(*rows, **CLOSE)


def test_attentions_as_people_write_them():
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
def test_greedy_generation(name, options):
    inputs = inputs_for(name, "left" if name in DECODERS else "right")
    inputs.pop("decoder_input_ids", None)
    texts = [
        make(name, implementation).generate(**inputs, max_new_tokens=9, do_sample=False, **options)
        for implementation in ("eager", "clearhead")
    ]
    assert torch.equal(*texts)


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=str)
def test_attentions_of_each_new_token(options):
    """Static caches overwrite keys in place; what was handed out must not change."""
    inputs = inputs_for("llama", "left")
    runs = [
        make("llama", implementation).generate(
            **inputs, max_new_tokens=5, do_sample=False, output_attentions=True, return_dict_in_generate=True, **options
        )
        for implementation in ("eager", "clearhead")
    ]
    eager, ours = (run.attentions for run in runs)
    assert len(ours) == len(eager) == 5
    for mine, theirs in zip(ours, eager, strict=True):
        for layer, plain in zip(mine, theirs, strict=True):
            real = slice(3, None) if plain.shape[2] > 1 else slice(None)
            torch.testing.assert_close(layer.dense()[:, :, real], plain[:, :, real], **CLOSE)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "bart", "vit"])
def test_gradients_in_training_mode(name):
    inputs = inputs_for(name)
    gradients = []
    for implementation in ("eager", "clearhead"):
        model = make(name, implementation).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for owner in [model.config, *(m for m in model.modules())]:
            for attribute in ("dropout", "attention_dropout", "attention_probs_dropout_prob"):
                if isinstance(getattr(owner, attribute, None), float):
                    setattr(owner, attribute, 0.0)
        output = result(model(**inputs))
        (output * torch.linspace(-1, 1, output.numel()).view_as(output).cos()).sum().backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        scale = gradient.abs().max().clamp(min=1e-3)  # a gradient that cancels to 0 is rounding
        torch.testing.assert_close(gradients[1][key] / scale, gradient / scale, rtol=1e-3, atol=1e-4, msg=key)


def test_dropout_is_used_in_training():
    model = make("gpt2").train()
    torch.manual_seed(0)
    one, other = (result(model(**inputs_for("gpt2"))) for _ in range(2))
    assert not torch.allclose(one, other)


def test_packed_sequences():
    """Two texts in one row, told apart by their position ids: each as if it were alone."""
    model = make("llama")
    ids = torch.randint(3, VOCABULARY, (1, LENGTH))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False, output_attentions=True)
        alone = torch.cat([model(input_ids=part).logits for part in (ids[:, :4], ids[:, 4:])], dim=1)
    torch.testing.assert_close(packed.logits, alone, **CLOSE)
    assert "packed" in repr(packed.attentions[0])
    assert packed.attentions[0][:, :, 4:, :4].abs().max() == 0


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_text_in_chunks_through_a_cache(name):
    model = make(name)
    ids = inputs_for(name)["input_ids"]
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        first = model(input_ids=ids[:, :4], use_cache=True)
        second = model(input_ids=ids[:, 4:9], past_key_values=first.past_key_values, use_cache=True)
        third = model(input_ids=ids[:, 9:], past_key_values=second.past_key_values, use_cache=True)
    torch.testing.assert_close(torch.cat([first.logits, second.logits, third.logits], dim=1), whole, **CLOSE)


def test_masks_of_the_users_own():
    """A bool mask of four axes, and one to be added."""
    ids = inputs_for("llama")["input_ids"]
    allowed = torch.rand(2, 1, LENGTH, LENGTH) > 0.4
    allowed |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        eager = make("llama", "eager")(input_ids=ids, attention_mask=added).logits
        model = make("llama")
        for mask in (allowed, added):
            torch.testing.assert_close(model(input_ids=ids, attention_mask=mask).logits, eager, **CLOSE)


def test_compiled():
    model, inputs = make("llama"), inputs_for("llama", "left")
    with torch.no_grad():
        expected = model(**inputs).logits
        compiled = torch.compile(model, backend="aot_eager")(**inputs).logits
    torch.testing.assert_close(compiled[:, 3:], expected[:, 3:], **CLOSE)
    torch._dynamo.reset()


def test_no_mask_is_built():
    """Neither windows nor padding make anything of size n × n."""
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
def test_arguments_that_are_not_known_are_refused(name, given):
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=name):
        attention_forward(torch.nn.Module(), x, x, x, None, **{name: given})
    attention_forward(torch.nn.Module(), x, x, x, None, **{name: None}, position_ids=torch.arange(3), use_cache=True)


def test_none_means_causal_from_the_first_key_on():
    x = torch.randn(1, 2, 3, 4)
    longer = torch.randn(1, 2, 5, 4)
    module = torch.nn.Module()
    for said, causal in ((None, True), (True, True), (False, False)):
        _, weights = attention_forward(module, x, longer, longer, None, is_causal=said)
        assert (weights[0, 0, 0] > 0).tolist() == ([True] + [False] * 4 if causal else [True] * 5)
    _, weights = attention_forward(module, x[:, :, :1], longer, longer, None)
    assert (weights[0, 0, 0] > 0).all()
    with pytest.raises(ValueError, match="sliding_window=2"):
        attention_forward(module, x, longer, longer, None, is_causal=False, sliding_window=2)
    _, weights = attention_forward(module, x, longer, longer, None, sliding_window=2)
    assert (weights[0, 0, 2] > 0).tolist() == [False, True, True, False, False]


class TestModules:
    @pytest.mark.parametrize("name", MAKERS)
    def test_numbered_by_stack(self, name):
        found = attention_modules(make(name))
        stacks = ["encoder", "decoder", "cross"] if name in PAIRS else ["decoder" if name in DECODERS else "encoder"]
        assert sorted((a.stack, a.layer) for a in found) == sorted((s, i) for s in stacks for i in range(2))
        assert all(attention.heads == 4 for attention in found)

    def test_two_towers(self):
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
        config = transformers.CLIPConfig(
            text_config={**sizes, "vocab_size": 50}, vision_config={**sizes, "image_size": 8, "patch_size": 4}
        )
        assert [a.stack for a in attention_modules(transformers.CLIPModel(config))] == [
            "text encoder",
            "vision encoder",
        ]

    def test_models_with_attention_of_their_own_are_refused(self):
        model = GPTJModel(GPTJConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=2, rotary_dim=4))
        with pytest.raises(ValueError, match="GPTJModel does not use transformers' AttentionInterface"):
            attention_modules(model)
        with pytest.raises(TypeError, match="model is a Linear; expected a transformers model"):
            attention_modules(torch.nn.Linear(2, 2))


def test_encoders_take_padding_as_padding():
    """So that torch's fused kernel can have it."""
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
def test_modules_that_do_not_say_whether_they_are_causal(model, config):
    torch.manual_seed(0)
    model = model(config).eval()
    ids = inputs_for("llama")["input_ids"]
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids[:, :7]} if config.is_encoder_decoder else {})
    outputs = []
    for implementation in ("eager", "clearhead"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            outputs.append(model(**inputs).last_hidden_state)
    torch.testing.assert_close(*outputs, **CLOSE)


@pytest.mark.parametrize("name", ["llama", "t5", "bart"])
def test_gradient_checkpointing(name):
    """What is computed again in the backward pass is what was computed before."""
    gradients = []
    for checkpointing in (False, True):
        model = make(name).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if isinstance(getattr(module, "dropout", None), float):
                module.dropout = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable()
        result(model(**inputs_for(name), use_cache=False)).square().mean().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        scale = one.abs().max()  # the first pass, without gradients, may go to another kernel
        torch.testing.assert_close(other / scale, one / scale, rtol=0, atol=5e-5)


def test_a_mask_of_whole_numbers_is_refused():
    mask = torch.ones(LENGTH, LENGTH).tril().long().expand(2, 1, LENGTH, LENGTH)
    with pytest.raises(ValueError, match="dtype torch.int64; expected bool"):
        make("llama")(input_ids=inputs_for("llama")["input_ids"], attention_mask=mask)


def test_parts_with_attention_of_their_own_are_named():
    config = transformers.LongT5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, local_radius=4
    )
    with pytest.warns(UserWarning, match="LongT5ForConditionalGeneration has .*LongT5LocalAttention, which run"):
        found = attention_modules(transformers.LongT5ForConditionalGeneration(config))
    assert {attention.stack for attention in found} == {"decoder", "cross"}
