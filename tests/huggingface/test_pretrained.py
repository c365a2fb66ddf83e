"""Tests with pretrained models: outputs as exact as those of eager attention, and known heads."""

from functools import cache

import gguf
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import clearhead.huggingface  # noqa: F401
from clearhead.analysis.corpus import corpus_roles
from clearhead.analysis.roles import head_roles
from clearhead.huggingface import ablate, composition, composition_scores, direct_logits, heads
from clearhead.huggingface.effects import LossWithoutHeads
from clearhead.models import head_roles as roles_of_model
from clearhead.models import load
from clearhead.recording.example_texts import EXAMPLE_PASSAGES
from support.peers import assert_agrees
from support.pretrained import minilm, smollm2

pytestmark = pytest.mark.pretrained
TEXTS = [EXAMPLE_PASSAGES[0], "A short one."]


def assert_as_exact_as_eager(model, inputs):
    """Compare the outputs and the attentions at queries that are not padding."""
    valid = inputs["attention_mask"].bool()

    def outputs_of(model):
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
        states = outputs.last_hidden_state[valid]
        return [states, *(weights[...].transpose(1, 2)[valid] for weights in outputs.attentions)], outputs

    model.set_attn_implementation("clearhead")
    got, outputs = outputs_of(model)
    # a weight is exp(score - lse), so a rounding error of lse is a relative error of the weight
    sizes = [float(w.lse[w.lse > -torch.inf].abs().max()) for w in outputs.attentions]
    model.set_attn_implementation("eager")
    assert_agrees(got, lambda model: outputs_of(model)[0], model, scale=[0.0, *sizes])
    model.set_attn_implementation("clearhead")


def test_minilm_matches_eager_and_has_a_previous_token_head():
    folder = minilm()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32)
    assert_as_exact_as_eager(model.eval(), tokenizer(TEXTS, padding=True, return_tensors="pt"))
    roles = corpus_roles(load(folder), EXAMPLE_PASSAGES)
    assert len(roles.heads) == 6 * 12
    (best, score), *_ = roles.top("previous")
    assert best == ("encoder", 0, 2)
    assert score > 0.95
    assert roles.labels(best)[0] == "positional −1"


def test_smollm2_matches_eager_and_has_induction_heads(monkeypatch):
    monkeypatch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))  # transformers reads the whole file four times
    loaded = load(smollm2())
    loaded.tokenizer.padding_side = "left"
    inputs = loaded.tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert_as_exact_as_eager(loaded.model, inputs)
    roles = corpus_roles(loaded, EXAMPLE_PASSAGES)
    assert len(roles.heads) == 30 * 9
    assert roles.top("induction")[0][1] > 0.5
    assert roles.top("previous")[0][1] > 0.5


def test_smollm2_roles_and_their_effects_in_one_call(monkeypatch):
    monkeypatch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
    loaded = load(smollm2(), head=True)
    roles = roles_of_model(loaded.model, loaded.tokenizer)
    previous, induction = ("decoder", 16, 0), ("decoder", 18, 6)
    assert roles.top("previous")[0][0] == previous
    assert roles.top("induction")[0][0] == induction
    assert "induction" in roles.labels(induction)
    measured = LossWithoutHeads.of(loaded, EXAMPLE_PASSAGES)
    assert measured.whole().repeated == pytest.approx(3.75, abs=0.05)
    effects = measured.changes([previous, induction])
    # repeated tokens need the induction head and the previous-token head that it composes with; the texts do not
    assert effects[induction].repeated == pytest.approx(2.24, abs=0.1)
    assert effects[previous].repeated == pytest.approx(6.56, abs=0.2)
    assert all(abs(effect.text) < 0.05 for effect in effects.values())
    ids = loaded.tokenizer(TEXTS[1])["input_ids"]
    by_ids, by_text = loaded.record_ids(ids)["decoder"], loaded.record(TEXTS[1])["decoder"]
    assert by_ids.queries.texts == by_text.queries.texts
    assert torch.equal(by_ids.layers[18].dense(), by_text.layers[18].dense())


def test_head_roles_of_a_saved_recording(tmp_path):
    from clearhead import Recording, record

    record(minilm(), EXAMPLE_PASSAGES[1]).save(tmp_path / "kept.safetensors")
    roles = head_roles([Recording.load(tmp_path / "kept.safetensors")])
    assert roles.top("previous")[0][0] == ("encoder", 0, 2)


@pytest.mark.slow
@torch.no_grad()
def test_induction_head_of_smollm2_copies_and_reads_the_previous_token_head(monkeypatch):
    monkeypatch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
    file = smollm2()
    options = {"gguf_file": file.name, "dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(file.parent, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    found = heads(model)
    assert len(found) == 270
    assert float(found[18, 6].copying_score()) == pytest.approx(0.644, abs=1e-3)
    assert float(composition(found[16, 0], found[18, 6], "K")) == pytest.approx(0.202, abs=1e-3)  # as TransformerLens
    scores = composition_scores(found, "K")
    assert scores[:, :, 18, 6].argmax() == 16 * 9 + 0
    assert float(scores[16, 0, 18, 6]) == pytest.approx(0.202, abs=1e-3)
    inputs = tokenizer("When Mary and John went to the store, John gave a drink to", return_tensors="pt")
    mary, john = (tokenizer(name).input_ids[0] for name in (" Mary", " John"))
    logits = direct_logits(model, dict(inputs), (mary, john))[:, :, -1]
    # the values of TransformerLens' stack_head_results
    expected = {(23, 3): 2.855, (29, 1): 1.730, (24, 4): -1.071}
    assert {divmod(int(index), 9) for index in logits.abs().flatten().topk(3).indices} == expected.keys()
    for head, value in expected.items():
        assert float(logits[head]) == pytest.approx(value, abs=2e-3)

    def without_head(module, arguments):
        (states,) = arguments
        states = states.clone()
        states[..., 6 * 64 : 7 * 64] = 0.0
        return (states,)

    tokens = torch.randint(1000, 40000, (1, 32), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([tokens, tokens], dim=1)
    with ablate(model, [(18, 6)]):
        ablated = model(ids).logits
    hook = model.model.layers[18].self_attn.o_proj.register_forward_pre_hook(without_head)
    expected = model(ids).logits
    hook.remove()
    assert torch.equal(ablated, expected)
    losses = [cross_entropy(logits[0, 32:-1], ids[0, 33:]) for logits in (model(ids).logits, ablated)]
    assert losses[1] > losses[0] + 1
