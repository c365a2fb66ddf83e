"""Tests of what a recorded transformers model did: next tokens of its head, written tokens, input and output."""

import gc
import weakref

import pytest
import torch

from clearhead import Recording, record
from clearhead.huggingface import _predictions
from clearhead.models import load
from support.numerics import assert_matches
from support.tiny_models import DECODERS, make
from support.tiny_tokenizer import WORDS, tokenizer

IDS = [4, 5, 6, 7, 8, 9, 4, 5, 6, 7, 8]


def logits_of(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits[0]


@pytest.mark.parametrize("name", DECODERS)
def test_next_tokens_are_those_of_the_models_logits(name, monkeypatch):
    monkeypatch.setattr(_predictions, "MAX_LOGITS", 3 * 99)  # several steps
    model = make(name)
    made = record(model, input_ids=IDS)
    naive = logits_of(model, input_ids=torch.tensor([IDS])).softmax(1)
    exact = logits_of(make(name).double(), input_ids=torch.tensor([IDS])).softmax(1)
    got = made.next_tokens.computed()
    index = torch.tensor([[int(text) for text in row] for row in got.texts])
    assert (naive.argmax(1) == index[:, 0]).all()
    assert_matches(got.probabilities, exact.gather(1, index), naive.gather(1, index))
    assert made["decoder"].written.texts == (*map(str, IDS[1:]), str(int(naive[-1].argmax())))
    assert made.input is made.output is None


def test_the_model_and_its_attention_do_not_change():
    model = make("gpt2").train()
    base = model.transformer
    made, plain = record(model, input_ids=IDS), record(base, input_ids=IDS)
    assert plain.next_tokens is None
    assert plain["decoder"].written.texts == (*map(str, IDS[1:]), "")
    assert model.transformer is base
    assert model.training
    assert model.lm_head.training
    assert not base._forward_hooks
    assert made.next_tokens.at(3)
    for kept, weights in zip(made["decoder"].layers, plain["decoder"].layers, strict=True):
        assert torch.equal(kept.dense(), weights.dense())


def test_deferred_tokens_keep_the_head_but_not_the_layers():
    model = make("llama")
    made, layer = record(model, input_ids=IDS), weakref.ref(model.model.layers[0].mlp)
    del model
    gc.collect()
    assert layer() is None
    assert len(made.next_tokens.at(2)) == 5


def test_a_head_that_has_changed_is_refused():
    model = make("llama")
    made = record(model, input_ids=IDS)
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="the model's head was changed in place after the recording"):
        made.next_tokens.at(0)


def test_masked_models_predict_their_masked_tokens():
    from transformers import BertConfig, BertForMaskedLM

    from support.tiny_models import SIZES

    torch.manual_seed(0)
    model, pieces = BertForMaskedLM(BertConfig(**SIZES)).eval(), tokenizer()
    pieces.mask_token = "[PAD]"
    made = record(model, "the [PAD] run [PAD] .", tokenizer=pieces)
    inputs = pieces("the [PAD] run [PAD] .", return_tensors="pt")
    positions = [index for index, token in enumerate(inputs["input_ids"][0].tolist()) if token == 3]
    assert made.next_tokens.positions == tuple(positions) == (2, 4)
    exact = logits_of(model, **inputs)[positions].softmax(1)
    torch.testing.assert_close(made.next_tokens.computed().probabilities, exact.topk(5).values)
    assert made["encoder"].written is None
    assert record(model, "the dog", tokenizer=pieces).next_tokens is None


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_have_their_output_and_the_written_tokens(name, tmp_path):
    model, pieces = make(name), tokenizer()
    made = record(model, "the dogs run .", tokenizer=pieces, target="run dogs .")
    assert (made.input, made.output) == ("the dogs run .", pieces.decode(pieces("run dogs .")["input_ids"][1:-1]))
    assert made["cross"].written == made["decoder"].written
    assert made["cross"].written.texts == ("[CLS]", "run", "dog", "##s", ".", "[SEP]")
    assert made["cross"].written.special == (True, False, False, False, False, True)
    assert made["encoder"].written is None
    assert made["cross"].queries.texts[1:] == made["cross"].written.texts[:-1]
    decoder_ids = torch.tensor([[model.config.decoder_start_token_id, *pieces("run dogs .")["input_ids"][:-1]]])
    logits = logits_of(model, **pieces("the dogs run .", return_tensors="pt"), decoder_input_ids=decoder_ids)
    torch.testing.assert_close(made.next_tokens.probabilities, logits.softmax(1).topk(5).values)
    made.save(tmp_path / "made.safetensors")
    assert Recording.load(tmp_path / "made.safetensors").output == made.output
    by_ids = record(model, input_ids=[4, 5], decoder_input_ids=[2, 7])
    assert by_ids["decoder"].written.texts == ("7", by_ids.next_tokens.at(1)[0][0])
    assert by_ids.output is None
    generated = record(model, "the dogs", tokenizer=pieces)  # one query per written token
    assert generated["decoder"].queries.texts[1:] == generated["decoder"].written.texts[:-1]


def test_record_by_name_loads_the_head_if_the_files_contain_one(tmp_path):
    for name, model in (("with", make("llama")), ("without", make("llama").model), ("encoder", make("bert"))):
        model.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
    made = record(tmp_path / "with", "the dogs run")
    assert made.input == "the dogs run"
    assert made["decoder"].written.texts[:-1] == ("the", "dog", "##s", "run", "[SEP]")
    assert made["decoder"].written.texts[-1] == made.next_tokens.at(5)[0][0]
    assert record(load(tmp_path / "with"), "the dog").next_tokens is None
    for name in ("without", "encoder"):
        assert record(tmp_path / name, "the dog").next_tokens is None
    with pytest.raises(ValueError, match="without a language-model head"):
        load(tmp_path / "encoder", head=True)


def test_files_that_lack_the_head_they_name_are_recorded_without_it(tmp_path):
    model = make("llama")
    parameters = {name: value for name, value in model.state_dict().items() if not name.startswith("lm_head")}
    model.save_pretrained(tmp_path, state_dict=parameters)
    tokenizer().save_pretrained(tmp_path)
    made = record(tmp_path, ["the", "dogs", "run"])
    assert made.next_tokens is None
    assert made.input == "the dogs run"
    assert torch.equal(
        made["decoder"].layers[1].dense(),
        record(model, "the dogs run", tokenizer=tokenizer())["decoder"].layers[1].dense(),
    )
    assert set(made["decoder"].written.texts) <= {*WORDS, ""}
