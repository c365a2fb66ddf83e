"""Tests of the loss without each head: the predicted tokens, the changes, and unsuitable models."""

import pytest
import torch
import transformers

from clearhead.analysis.roles import Loss
from clearhead.huggingface import ablate
from clearhead.huggingface.effects import IGNORED, LossWithoutHeads
from clearhead.huggingface.model import HuggingFaceModel
from support.tiny_models import SIZES, make
from support.tiny_tokenizer import tokenizer

TEXTS = ["the dogs running . the dog run", "the dog"]
HEADS = [("decoder", 1, 3), ("decoder", 0, 2)]


def causal():
    return HuggingFaceModel.from_module(make("llama", "sdpa"), tokenizer())


def masked():
    torch.manual_seed(0)
    pieces = tokenizer()
    pieces.add_special_tokens({"mask_token": "[MASK]"})
    return HuggingFaceModel.from_module(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)), pieces)


def test_causal_models_predict_texts_and_the_second_copy_of_repeated_tokens():
    measured = LossWithoutHeads.of(causal(), TEXTS)
    for batch, text in zip(measured.text_batches, TEXTS, strict=True):
        ids = torch.tensor([tokenizer()(text)["input_ids"]])
        assert torch.equal(batch["input_ids"], ids)
        assert torch.equal(batch["labels"][:, 1:], ids[:, 1:])
    (batch,) = measured.repeated_batches
    ids, labels = batch["input_ids"], batch["labels"]
    assert ids.shape == (2, 14)  # [CLS], twice 6 different tokens, [SEP]
    assert torch.equal(ids[:, 1:7], ids[:, 7:13])
    assert not torch.equal(ids[0], ids[1])
    assert torch.equal(labels[:, 8:13], ids[:, 8:13])
    assert set(labels[:, :8].flatten().tolist()) | set(labels[:, 13:].flatten().tolist()) == {IGNORED}


def test_masked_models_predict_masked_tokens_only():
    owner = masked()
    measured = LossWithoutHeads.of(owner, TEXTS)
    for batch in (*measured.text_batches, *measured.repeated_batches):
        predicted = batch["labels"] != IGNORED
        assert (predicted.sum(dim=1) == 1).all()  # 15 % of at most 9 tokens, and at least one
        assert (batch["input_ids"][predicted] == owner.tokenizer.mask_token_id).all()
        assert not set(batch["labels"][predicted].tolist()) & set(owner.tokenizer.all_special_ids)
    assert (measured.repeated_batches[0]["labels"][:, :8] == IGNORED).all()
    assert list(measured.changes([("encoder", 0, 1)])) == [("encoder", 0, 1)]


def test_changes_are_the_loss_without_the_head_minus_the_whole_loss():
    owner = causal()
    measured = LossWithoutHeads.of(owner, TEXTS)
    changes = measured.changes(HEADS)
    whole = measured.whole()
    for head in HEADS:
        with ablate(owner.model, {head}):
            without = measured.whole()
        expected = Loss(without.text - whole.text, without.repeated - whole.repeated)
        assert changes[head].text == pytest.approx(expected.text, abs=1e-5)
        assert changes[head].repeated == pytest.approx(expected.repeated, abs=1e-5)
        assert abs(expected.text) > 1e-3
    with torch.no_grad():
        losses = [float(owner.model(**batch).loss) for batch in measured.text_batches]
    assert whole.text == pytest.approx(sum(losses) / 2)
    assert measured.changes([]) == {}


def test_rejects_models_without_a_suitable_head_and_short_texts():
    for name, kind in (("bert", "a BertModel"), ("t5", "an encoder–decoder"), ("bart", "an encoder–decoder")):
        owner = HuggingFaceModel.from_module(make(name), tokenizer())
        with pytest.raises(ValueError, match=f"is {kind}; expected a causal or masked language model with its head"):
            LossWithoutHeads.of(owner, TEXTS)
    with pytest.raises(ValueError, match="has no mask token; expected that of a masked language model"):
        LossWithoutHeads.of(HuggingFaceModel.from_module(masked().model, tokenizer()), TEXTS)
    with pytest.raises(ValueError, match=r"texts\[1\] is '', which has no token to predict; expected a longer text"):
        LossWithoutHeads.of(masked(), ["the dog", ""])
