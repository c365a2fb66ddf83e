"""Tests of `direct_logits`: completeness, arguments, and models that are refused."""

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from clearhead.watching import direct_logits, heads, watch
from support.tiny_models import make as make_tiny

VOCABULARY, LENGTH, LAYERS = 97, 7, 3
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 11, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": LAYERS, "n_head": 6}
MAKERS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**GROUPED, head_dim=4)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**GROUPED, logit_scale=0.25)),
}
# modules that add to the residual stream, apart from heads
OTHERS = {
    "llama": ("model.embed_tokens", "mlp"),
    "gpt2": ("transformer.drop", "mlp"),
    "gpt_neox": ("gpt_neox.emb_dropout", "mlp"),
    "cohere": ("model.embed_tokens", "mlp"),
}
NORMS = {
    "llama": "model.norm",
    "gpt2": "transformer.ln_f",
    "gpt_neox": "gpt_neox.final_layer_norm",
    "cohere": "model.norm",
}


def make(name):
    torch.manual_seed(0)
    model = MAKERS[name]().eval()
    for parameter in model.parameters():  # norms and biases are 1 and 0 at first
        nn.init.normal_(parameter, std=0.3)
    return model


def tokens(batch=2):
    return torch.randint(3, VOCABULARY, (batch, LENGTH))


def kept_outputs(model, names, ids):
    """Return the outputs of modules."""
    outputs = {}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda m, a, o, name=name: outputs.update({name: o}))
        for name in names
    ]
    with torch.no_grad():
        logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    return logits, outputs


@pytest.mark.parametrize("name", OTHERS)
def test_contributions_add_up_to_the_logits(name):
    model, ids, token = make(name).double(), tokens(), 5
    embedding, mlp = OTHERS[name]
    blocks = [path.rpartition(".")[0] for path in heads(model).all_modules()]
    logits, outputs = kept_outputs(model, [embedding, NORMS[name], *(f"{block}.{mlp}" for block in blocks)], ids)
    norm, unembedding = model.get_submodule(NORMS[name]), model.get_output_embeddings()
    biases = [head.output_bias for (_, index), head in heads(model).items() if index == 0]
    biases = [bias for bias in biases if bias is not None]
    others = [outputs[embedding], *(outputs[f"{block}.{mlp}"] for block in blocks)]
    residual = {}
    hook = norm.register_forward_pre_hook(lambda m, args: residual.update(x=args[0]))
    with torch.no_grad():
        model(ids)
        hook.remove()
        x, rest = residual["x"], sum(others) + sum(biases)
        if name in ("gpt2", "gpt_neox", "cohere"):
            rest = (rest - rest.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
        else:
            rest = rest / x.square().mean(-1, keepdim=True).sqrt()
        rest = rest * norm.weight + (0 if getattr(norm, "bias", None) is None else norm.bias)
        direction = unembedding.weight[token] * (0.25 if name == "cohere" else 1)
        got = direct_logits(model, ids, token)
        assert got.shape == (2, LAYERS, 6, LENGTH)
        torch.testing.assert_close(
            got.sum((1, 2)).double() + rest @ direction, logits[..., token], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", MAKERS)
def test_each_contribution_is_that_of_the_head(name):
    """Without one head's output in the input of the final norm, and the scale of the norm unchanged."""
    model, ids = make(name), tokens(1)
    first, second = 11, 13
    norm, before = _final_norm(model), {}
    hook = norm.register_forward_hook(lambda m, args, output: before.update(x=args[0], y=output))
    with torch.no_grad(), watch(model, values=True) as seen:
        model(ids)
    hook.remove()
    got = direct_logits(model, {"input_ids": ids}, (first, second))
    assert got.shape == (LAYERS, 6, LENGTH)
    unembedding = model.get_output_embeddings().weight.double()
    direction = unembedding[first] - unembedding[second]
    x, y = before["x"].double(), before["y"].double()
    gain = norm.weight.double() + (1 if name == "gemma" else 0)
    centered = name in ("gpt2", "gpt_neox", "cohere")
    bias = getattr(norm, "bias", None)
    base = x - x.mean(-1, keepdim=True) if centered else x
    scale = ((y - (0 if bias is None else bias.double())) / (gain * base)).median(-1, keepdim=True).values
    for layer in range(LAYERS):
        weights = seen[layer].weights
        output = (weights @ weights.value).double()
        for index in range(6):
            written = output[:, index] @ heads(model)[layer, index].W_O.detach().double()
            written = written - written.mean(-1, keepdim=True) if centered else written
            expected = (written * gain * scale) @ direction * (0.25 if name == "cohere" else 1)
            torch.testing.assert_close(got[layer, index].double(), expected[0].detach(), rtol=1e-3, atol=1e-4)


def _final_norm(model):
    return [
        module for path, module in model.named_modules() if path.count(".") == 1 and "Norm" in type(module).__name__
    ][-1]


def test_kinds_of_directions_and_layers():
    model, ids = make("gpt2"), tokens(1)
    weight = model.get_output_embeddings().weight.detach()
    one = direct_logits(model, ids, 5)
    torch.testing.assert_close(direct_logits(model, ids[0], torch.tensor(5)), one)
    torch.testing.assert_close(direct_logits(model, ids, weight[5]), one)
    torch.testing.assert_close(direct_logits(model, ids, torch.eye(VOCABULARY)[5]), one)
    torch.testing.assert_close(direct_logits(model, ids, (5, 8)), one - direct_logits(model, ids, 8))
    torch.testing.assert_close(direct_logits(model, ids, 5, layers=[2, 0]), one[[2, 0]])
    torch.testing.assert_close(direct_logits(model, ids, 5, layers=slice(1, None)), one[1:])
    torch.testing.assert_close(direct_logits(model, ids, 5, layers=1), one[1:2])
    model.train()
    torch.testing.assert_close(direct_logits(model, ids, 5), one)  # without dropout
    assert model.training
    batch = direct_logits(model, ids.repeat(3, 1), 5)
    torch.testing.assert_close(batch[1], one)


def test_bfloat16():
    model, ids = make("llama"), tokens(1)
    expected = direct_logits(model, ids, 5)
    got = direct_logits(model.bfloat16(), ids, 5)
    assert got.dtype == torch.float32
    assert (got - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    ("towards", "message"),
    [
        (97, "towards is 97; expected a whole number of at least 0 and at most 96"),
        (-1, "towards is -1; expected a whole number"),
        ((1, 2, 3), "towards is (1, 2, 3); expected a whole number"),
        (" Mary", "towards is ' Mary'; expected a token id"),
        (torch.ones(5), "towards is a torch.float32 tensor of shape [5]; expected a floating-point vector of 24"),
    ],
)
def test_wrong_directions_are_refused(towards, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        direct_logits(make("gpt2"), tokens(), towards)
    assert message in str(caught.value)


def test_wrong_inputs_and_layers_are_refused():
    model = make("gpt2")
    with pytest.raises(ValueError, match="layers is 3; expected a whole number of at least 0 and at most 2"):
        direct_logits(model, tokens(), 5, layers=3)
    with pytest.raises(ValueError, match="which is none of 3 layers"):
        direct_logits(model, tokens(), 5, layers=slice(3, None))
    with pytest.raises(TypeError, match="inputs is a str; expected token ids|inputs is 'text'; expected token ids"):
        direct_logits(model, "text", 5)
    with pytest.raises(ValueError, match="the logits are those of 1 positions, but the input has 7; expected all"):
        direct_logits(model, {"input_ids": tokens(), "logits_to_keep": 1}, 5)


POST_NORM = OPTConfig(vocab_size=VOCABULARY, hidden_size=24, ffn_dim=11, num_hidden_layers=1, num_attention_heads=6,
                      word_embed_proj_dim=24, do_layer_norm_before=False)  # fmt: skip
REFUSED = {
    "a norm after attention": lambda: Gemma2ForCausalLM(Gemma2Config(**GROUPED, head_dim=4)),
    "a factor of the residual": lambda: GraniteForCausalLM(GraniteConfig(**GROUPED, residual_multiplier=0.5)),
    "norms after the sum": lambda: OPTForCausalLM(POST_NORM),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_change_the_output_of_attention_are_refused(name):
    with pytest.raises(ValueError, match="layers.0 is not its input plus the outputs of .*layers.0.self_attn"):
        direct_logits(REFUSED[name]().eval(), tokens(), 5)


class SoftCapped(LlamaForCausalLM):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits.tanh()
        return outputs


class Scaled(LlamaForCausalLM):
    """Model with a factor between its layers."""

    def __init__(self, config):
        super().__init__(config)
        self.model.layers[1].register_forward_pre_hook(lambda module, args: (args[0] * 2, *args[1:]))


def test_other_unembeddings_are_refused():
    torch.manual_seed(0)
    model = SoftCapped(LlamaConfig(**GROUPED, initializer_range=1.0)).eval()
    with pytest.raises(ValueError, match="the logits of SoftCapped are not a multiple of its unembedding's output"):
        direct_logits(model, tokens(), 5)
    assert direct_logits(model, tokens(), model.lm_head.weight[5]).shape == (2, LAYERS, 6, LENGTH)
    with pytest.raises(ValueError, match="the input of model.layers.1 is not the output of the layer before it"):
        direct_logits(Scaled(LlamaConfig(**GROUPED)).eval(), tokens(), 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bert", "BertModel has no unembedding; expected a causal language model"),
        ("t5", "T5ForConditionalGeneration is an encoder–decoder; expected a causal language model"),
    ],
)
def test_other_models_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        direct_logits(make_tiny(name), tokens(), 5)
