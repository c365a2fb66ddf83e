"""Real pretrained models: the same numbers as eager attention, and the heads they are known for."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from clearhead.models import PASSAGE, load
from clearhead.roles import head_roles
from clearhead.surveys import roles
from pretrained import minilm, smollm2

TEXTS = [PASSAGE[0], "A short one."]


def compared(model, inputs):
    """Outputs of both, and the largest difference between their attentions at real queries."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
        model.set_attn_implementation("clearhead")
        ours = model(**inputs, output_attentions=True)
    real = inputs["attention_mask"].bool()
    pairs = zip(ours.attentions, eager.attentions, strict=True)
    apart = max(float((a.dense() - b).transpose(1, 2)[real].abs().max()) for a, b in pairs)
    return ours.last_hidden_state[real], eager.last_hidden_state[real], apart


def test_minilm():
    folder = minilm()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32)
    ours, eager, apart = compared(model.eval(), tokenizer(TEXTS, padding=True, return_tensors="pt"))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert apart < 1e-5
    found = roles(load(folder), PASSAGE)
    assert len(found.heads) == 6 * 12
    (best, score), *_ = found.top("previous")
    assert best == ("encoder", 0, 2)
    assert score > 0.95
    assert found.labels(best)[0] == "positional −1"


@pytest.mark.slow
def test_smollm2():
    """Loading it takes half a minute: transformers reads GGUF files in Python."""
    loaded = load(smollm2())
    loaded.tokenizer.padding_side = "left"
    inputs = loaded.tokenizer(TEXTS, padding=True, return_tensors="pt")
    ours, eager, apart = compared(loaded.model, inputs)
    torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-3)
    assert apart < 1e-4
    found = roles(loaded, PASSAGE)
    assert len(found.heads) == 30 * 9
    assert found.top("induction")[0][1] > 0.5
    assert found.top("previous")[0][1] > 0.5


def test_recordings_are_what_roles_are_found_in(tmp_path):
    from clearhead import Recording, record

    record(minilm(), PASSAGE[1]).save(tmp_path / "kept.safetensors")
    found = head_roles([Recording.load(tmp_path / "kept.safetensors")])
    assert found.top("previous")[0][0] == ("encoder", 0, 2)
