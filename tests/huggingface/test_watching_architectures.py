"""Tests of `watch` on architectures of transformers: exact weights of every module, and outputs bit for bit.

The direct computation is eager attention, which returns its weights.
"""

import copy

import pytest
import torch
from torch import Tensor

from clearhead.huggingface import watch
from support.model_types import finite_masks, make, tiny
from support.parameters import slow_except
from support.peers import assert_agrees

# number of modules with attention that run, by model type
DECODERS = [
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "gpt_oss", "gpt2",
    "gpt_neox", "gpt_bigcode", "opt", "phi", "phi3", "olmo2", "cohere2", "granite", "smollm3", "starcoder2", "stablelm",
    "deepseek_v3", "llama4_text", "persimmon", "biogpt", "jetmoe", "lfm2",
]  # fmt: skip
ENCODERS = ["bert", "roberta", "distilbert", "electra", "modernbert", "esm", "nomic_bert", "layoutlm"]
VISION_AND_AUDIO = ["vit", "deit", "dinov2", "dinov3_vit", "beit", "data2vec-vision", "wav2vec2", "hubert"]
PAIRS = ["t5", "mt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "moonshine", "whisper"]
COUNTS = {
    **dict.fromkeys([*DECODERS, *ENCODERS, *VISION_AND_AUDIO, "falcon"], 2),  # falcon calls SDPA itself
    **dict.fromkeys(PAIRS, 6),
    "albert": 1,  # its layers share a module
    "clip": 4,
    "siglip": 5,  # with an nn.MultiheadAttention
}
# without AttentionInterface, so `attn_implementation="clearhead"` does not exist
OWN_TABLE = ["falcon", "data2vec-vision"]
BY_HAND = ["bloom", "gptj", "mpnet", "xlnet", "openai-gpt", "deberta-v2"]
QUICK = ("llama", "gpt_oss", "falcon", "modernbert", "albert", "t5", "siglip", "wav2vec2")
VARIANTS = {
    f"{model_type}-{implementation}": (model_type, implementation)
    for model_type in COUNTS
    for implementation in ("sdpa", "clearhead")
    if implementation == "sdpa" or model_type not in OWN_TABLE
}


def given(model, inputs):
    dtype = next(model.parameters()).dtype
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}


def outputs(model, inputs):
    """Return all tensors of the output of a model."""

    def tensors(value):
        if isinstance(value, Tensor):
            return [value]
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return [tensor for part in parts for tensor in tensors(part)]

    torch.manual_seed(2)
    with torch.no_grad():
        return tensors(model(**given(model, inputs)))


def returned_weights(model, inputs, names):
    """Return the weights that eager attention returns from the modules of these names, by name."""
    weights = {name: [] for name in names}

    def note(name, output):
        per_head = [value for value in output[1:] if isinstance(value, Tensor) and value.ndim in (3, 4)]
        weights[name].append(per_head[-1])  # T5 returns its position bias before

    hooks = [
        model.get_submodule(name).register_forward_hook(lambda module, args, output, name=name: note(name, output))
        for name in names
    ]
    torch.manual_seed(2)
    try:
        with torch.no_grad(), finite_masks():
            model(**given(model, inputs), output_attentions=True)
    finally:
        for hook in hooks:
            hook.remove()
    return weights


def of_real_queries(weights, attention_mask):
    """Return the rows of queries that are not padding, if the queries are the tokens of the mask."""
    if attention_mask is None or weights.shape[-2] != attention_mask.shape[1]:
        return weights
    return weights.transpose(1, -2)[attention_mask.bool()]


@pytest.mark.parametrize(
    ("model_type", "implementation"),
    slow_except(VARIANTS, *(name for name, variant in VARIANTS.items() if variant[0] in QUICK)),
)
@pytest.mark.filterwarnings("ignore")
def test_weights_are_those_of_eager_and_outputs_are_unchanged(model_type, implementation):
    eager, possible = tiny(model_type)
    if implementation == "sdpa" and not eager._supports_sdpa:
        implementation = "eager"
    model = make(copy.deepcopy(eager.config), implementation)
    model.load_state_dict(eager.state_dict())
    for inputs in {id(inputs): inputs for inputs in (possible[0], possible[-1])}.values():  # plain, and padded left
        plain = outputs(model, inputs)
        with watch(model) as seen:
            watched = outputs(model, inputs)
        assert all(torch.equal(*pair) for pair in zip(plain, watched, strict=True))
        assert len(seen) == COUNTS[model_type]
        mask = inputs.get("attention_mask")
        expected = returned_weights(eager, inputs, seen)
        weights = {name: [call.weights.dense() for call in watched.calls] for name, watched in seen.items()}
        got = {
            name: [
                # nn.MultiheadAttention returns the mean over heads
                of_real_queries(matrix if peer.ndim == 4 else matrix.mean(dim=1), mask)
                for matrix, peer in zip(weights[name], expected[name], strict=True)
            ]
            for name in seen
        }

        def direct(model, inputs=inputs, names=tuple(seen), mask=mask):
            found = returned_weights(model, inputs, names)
            return {name: [of_real_queries(matrix, mask) for matrix in matrices] for name, matrices in found.items()}

        assert_agrees(got, direct, eager)


@pytest.mark.parametrize("model_type", slow_except({name: name for name in BY_HAND}, "bloom", "gptj"))
@pytest.mark.filterwarnings("ignore")
def test_attention_by_hand_is_refused_in_one_line(model_type):
    model, inputs = tiny(model_type)
    message = (
        f"watch observed no attention of {type(model).__name__}: no call of scaled_dot_product_attention, .*"
        " was observed; attention written out as matmul, softmax and matmul is not observed"
    )
    with pytest.raises(ValueError, match=message) as error, watch(model, entropy=True):
        outputs(model, inputs[0])
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_falcon_by_hand_is_refused():
    """Falcon has a class per implementation; that of eager multiplies by hand."""
    model, inputs = tiny("falcon")
    with pytest.raises(ValueError, match="watch observed no attention of FalconModel"), watch(model):
        outputs(model, inputs[0])
