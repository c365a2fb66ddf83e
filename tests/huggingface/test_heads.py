"""Tests of `heads` with transformers models: matrices of each architecture against what the model computes."""

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3Model,
    DiffLlamaConfig,
    DiffLlamaModel,
    DistilBertConfig,
    DistilBertModel,
    FalconConfig,
    FalconModel,
    GPT2Config,
    GPT2Model,
    GPTBigCodeConfig,
    GPTBigCodeModel,
    GPTNeoXConfig,
    GPTNeoXModel,
    OPTConfig,
    OPTModel,
    Phi3Config,
    Phi3Model,
    Qwen3NextConfig,
    Qwen3NextModel,
)

from clearhead.huggingface import heads
from support.head_projections import assert_heads_project
from support.model_types import tiny
from support.tiny_models import inputs_for, make

ROTARY = ("llama", "mistral", "gemma2", "gpt-oss", "llama4", "modernbert", "phi3", "gpt_neox", "falcon")
SIZES = {"vocab_size": 99, "hidden_size": 84, "num_hidden_layers": 2, "num_attention_heads": 6}
BIGCODE = {"vocab_size": 99, "n_embd": 84, "n_layer": 2, "n_head": 6}
MAKERS = {
    "phi3": lambda: Phi3Model(Phi3Config(**SIZES, intermediate_size=11, num_key_value_heads=2, pad_token_id=0)),
    "gpt_neox": lambda: GPTNeoXModel(GPTNeoXConfig(**SIZES, intermediate_size=11)),
    "falcon": lambda: FalconModel(FalconConfig(**SIZES, new_decoder_architecture=True, num_kv_heads=2)),
    "opt": lambda: OPTModel(OPTConfig(**SIZES, ffn_dim=11, word_embed_proj_dim=84)),
    "distilbert": lambda: DistilBertModel(DistilBertConfig(vocab_size=99, dim=84, n_layers=2, n_heads=6)),
    "bigcode, one key head": lambda: GPTBigCodeModel(GPTBigCodeConfig(**BIGCODE, multi_query=True)),
    "bigcode, interleaved": lambda: GPTBigCodeModel(GPTBigCodeConfig(**BIGCODE, multi_query=False)),
}
OTHERS = ["albert", "beit", "clip", "dinov2", "esm", "phi", "qwen2_vl", "qwen3", "siglip", "wav2vec2", "whisper"]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-oss", "bert", "modernbert", "t5", "bart", "vit", "gemma2"])
def test_matrices_are_those_of_the_model(name):
    counts = assert_heads_project(make(name), inputs_for(name), rotary=name in ROTARY)
    assert set(counts.values()) == {4}
    assert len(counts) == (6 if name in ("t5", "bart") else 2)


@pytest.mark.parametrize("name", MAKERS)
def test_fused_and_renamed_projections_are_those_of_the_model(name):
    ids = torch.randint(1, 99, (2, 7))
    counts = assert_heads_project(MAKERS[name](), {"input_ids": ids}, rotary=name in ROTARY)
    assert list(counts.values()) == [6, 6]


@pytest.mark.slow
@pytest.mark.parametrize("model_type", OTHERS)
@pytest.mark.filterwarnings("ignore")
def test_values_and_outputs_are_those_of_other_models(model_type):
    model, inputs = tiny(model_type)
    model.set_attn_implementation("clearhead")  # eager attention has a float32 softmax
    assert assert_heads_project(model, inputs[0], rotary=True)


def test_stacks_are_keys_of_encoder_decoders():
    model = make("t5")
    found = heads(model)
    assert found.stacks == ["encoder", "decoder", "cross"]
    assert len(found) == len(list(found)) == 24
    assert next(iter(found)) == ("encoder", 0, 0)
    head = found["cross", 1, 3]
    assert (head.stack, head.layer, head.index, head.module) == (
        "cross",
        1,
        3,
        "decoder.block.1.layer.1.EncDecAttention",
    )
    assert found[head.module, 3].W_K.data_ptr() == head.W_K.data_ptr()
    with pytest.raises(KeyError, match=r"\(0, 0\) is not a head; expected \(stack, layer, head\), with 'encoder' with"):
        found[0, 0]
    with pytest.raises(ValueError, match="stack is None; expected one of 'encoder', 'decoder', 'cross'"):
        found.layers()


def test_grouped_heads_share_views_of_the_parameters():
    model = make("llama")
    attention = model.model.layers[1].self_attn
    found = heads(model)
    assert [found[1, h].W_K.data_ptr() for h in (0, 1)] == [attention.k_proj.weight.data_ptr()] * 2
    assert found[1, 2].W_V.data_ptr() == attention.v_proj.weight[8:].data_ptr()
    assert (found[1, 2].b_Q, found[1, 2].output_bias) == (None, None)
    found[1, 2].W_O.square().sum().backward()
    changed = attention.o_proj.weight.grad.abs().sum(0) > 0
    assert changed.tolist() == [False] * 16 + [True] * 8 + [False] * 8


def test_latent_and_gated_attention_are_refused():
    latent = {"kv_lora_rank": 7, "q_lora_rank": 5, "qk_rope_head_dim": 4, "qk_nope_head_dim": 3, "v_head_dim": 5}
    model = DeepseekV3Model(DeepseekV3Config(**SIZES, **latent, intermediate_size=11, first_k_dense_replace=2))
    with pytest.raises(ValueError, match="has the linear layers q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj"):
        heads(model)[0, 0]
    sizes = {**SIZES, "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 7, "intermediate_size": 11}
    gated = Qwen3NextModel(Qwen3NextConfig(**sizes, layer_types=["full_attention"], num_experts=0))
    with pytest.raises(ValueError, match="Gated attention and other extensions are not supported"):
        heads(gated)[0, 0]


def test_differential_attention_is_refused():
    model = DiffLlamaModel(DiffLlamaConfig(**SIZES, intermediate_size=11, num_key_value_heads=2))
    with pytest.raises(ValueError, match="has a parameter lambda_q1; expected only linear layers"):
        heads(model)[0, 0]


def test_cross_attention_with_another_fused_layout_is_refused():
    model = GPT2Model(GPT2Config(vocab_size=99, n_embd=42, n_layer=1, n_head=6, add_cross_attention=True))
    assert heads(model)["decoder", 0, 5].W_Q.shape == (42, 7)
    with pytest.raises(ValueError, match="h.0.crossattention .* has the linear layers c_attn, q_attn, c_proj"):
        heads(model)["cross", 0, 0]
