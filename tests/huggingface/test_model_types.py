"""Tests of a sample of transformers' model types; `python benchmarks/model_types.py` runs all of them."""

import json

import pytest
import torch
import transformers
from transformers import MptConfig, MptForCausalLM

from clearhead.huggingface import watch
from clearhead.huggingface.lazy_mask import _warn_of_own_attention
from support.model_types import compare
from support.paths import ROOT

OWN_ATTENTION = ["mpt", "longformer", "canine", "bloom", "led", "big_bird"]
INTERFACE = ["bridgetower", "t5", "gemma2", "clip", "vit", "opt", "esm", "qwen2_vl", "wav2vec2"]
# results of benchmarks/model_types.py, without the types that no recipe runs
SWEEP = [
    outcome
    for outcome in json.loads((ROOT / "benchmarks/results/model-types.json").read_text())
    if outcome["outcome"] != "not run"
]


@pytest.mark.parametrize("model_type", [*OWN_ATTENTION, *INTERFACE])
@pytest.mark.filterwarnings("ignore")
def test_outputs_are_those_of_eager(model_type):
    outcome = compare(model_type)
    assert outcome.outcome == "equal", outcome
    assert (outcome.calls > 0) == (model_type in INTERFACE)


@pytest.mark.slow
@pytest.mark.parametrize("recorded", SWEEP[::3], ids=lambda recorded: recorded["type"])
@pytest.mark.filterwarnings("ignore")
def test_outcome_is_that_of_the_complete_sweep(recorded):
    outcome = compare(recorded["type"])
    assert outcome.outcome == recorded["outcome"], outcome


def test_models_with_their_own_attention_warn_and_give_the_outputs_of_eager():
    _warn_of_own_attention.cache_clear()
    config = MptConfig(vocab_size=100, d_model=32, n_layers=2, n_heads=4)
    ids = torch.arange(1, 8)[None]
    torch.manual_seed(0)
    model = MptForCausalLM._from_config(config, attn_implementation="clearhead").eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="mpt models run their own attention code"):
        logits = model(input_ids=ids).logits
    config._attn_implementation = "eager"
    with torch.no_grad():
        assert torch.equal(logits, model(input_ids=ids).logits)
    with pytest.raises(ValueError, match="watch observed no attention of MptForCausalLM"), watch(model, entropy=True):
        model(input_ids=ids)


@pytest.mark.parametrize("name", ["labels", "special_tokens_mask"])
def test_arguments_that_eager_ignores_are_ignored(name):
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = transformers.LlamaModel(transformers.LlamaConfig(**sizes, intermediate_size=48)).eval()
    model.set_attn_implementation("clearhead")
    ids = torch.arange(1, 8)[None]
    with torch.no_grad():
        plain = model(input_ids=ids).last_hidden_state
        assert torch.equal(model(input_ids=ids, **{name: ids}).last_hidden_state, plain)
        with pytest.raises(ValueError, match="calls attention with cu_seq_lens_q=<tensor"):
            model(input_ids=ids, cu_seq_lens_q=torch.tensor([0, 7]))
