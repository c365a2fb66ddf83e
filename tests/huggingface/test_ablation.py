"""Tests of `ablate`, which removes only the given heads, and of `head_importance`."""

import pytest
import torch
import transformers

from clearhead.huggingface import ablate, head_importance
from support.peers import assert_agrees
from support.tiny_models import SIZES, inputs_for, make


def without_columns(model, layer, head):
    """Return the model with the columns of W_O that multiply a head's output set to 0."""
    projection = model.model.layers[layer].self_attn.o_proj.weight
    with torch.no_grad():
        projection[:, head * 8 : (head + 1) * 8] = 0
    return model


def test_ablation_equals_zeros_in_the_output_projection():
    inputs = inputs_for("llama", "right")
    model = make("llama", "sdpa")
    with torch.no_grad():
        whole = model(**inputs).logits
        with ablate(model, {(1, 3), (0, 0)}):
            cut = model(**inputs).logits
        again = model(**inputs).logits
        eager = without_columns(without_columns(make("llama", "eager"), 1, 3), 0, 0)
        assert_agrees(cut, lambda model: model(**inputs).logits, eager)
    assert not torch.allclose(cut, whole, atol=1e-3)
    assert torch.equal(again, whole)
    assert model.config._attn_implementation == "sdpa"


def test_encoder_decoders_require_the_stack():
    model, inputs = make("t5"), inputs_for("t5")
    with torch.no_grad():
        whole = model(**inputs).logits
        for stack in ("encoder", "decoder", "cross"):
            with ablate(model, {(stack, 1, 2)}):
                assert not torch.allclose(model(**inputs).logits, whole)
    with pytest.raises(ValueError, match=r"expected \(stack, layer, head\), with stack one of encoder, decoder, cross"):
        ablate(model, {(1, 2)}).__enter__()


def test_layers_that_share_a_module_are_ablated_separately():
    torch.manual_seed(0)
    model = transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=16)).eval()
    ids = inputs_for("bert")["input_ids"]
    with torch.no_grad():
        outputs = []
        for heads in ((), {(0, 1)}, {(1, 1)}, {(0, 1), (1, 1)}):
            with ablate(model, heads):
                outputs.append(model(input_ids=ids).last_hidden_state)
    pairs = [(one, other) for index, one in enumerate(outputs) for other in outputs[:index]]
    assert all(not torch.allclose(one, other, atol=1e-6) for one, other in pairs)
    with pytest.raises(ValueError, match="encoder has no layer 2"), ablate(model, {(2, 1)}):
        model(input_ids=ids)


def test_gradients_of_an_ablated_head_are_zero():
    model = make("llama")
    with ablate(model, {(0, 1)}):
        model(**inputs_for("llama")).logits.sum().backward()
    gradient = model.model.layers[0].self_attn.q_proj.weight.grad
    assert gradient[8:16].abs().max() == 0
    assert gradient[:8].abs().max() > 0


def test_importance_is_the_increase_of_the_loss():
    model = make("llama").train()
    ids = inputs_for("llama")["input_ids"]
    batches = [{"input_ids": ids[:1], "labels": ids[:1]}, {"input_ids": ids[1:], "labels": ids[1:]}]
    ranked = head_importance(model, batches, progress=False)
    assert model.training
    assert sorted((i.layer, i.head) for i in ranked) == [(layer, head) for layer in range(2) for head in range(4)]
    assert [i.change for i in ranked] == sorted((i.change for i in ranked), reverse=True)

    def loss(model):
        with torch.no_grad():
            return torch.stack([model.eval()(**batch).loss for batch in batches]).mean()

    def change(whole, cut):
        return loss(cut) - loss(whole)

    best = ranked[0]
    models = make("llama", "eager"), without_columns(make("llama", "eager"), best.layer, best.head)
    # the error of a difference is that of the two losses, so it scales with the loss
    assert_agrees(torch.tensor(best.change), change, *models, scale=float(loss(models[0])))
    (one,) = head_importance(model, batches, heads=[(1, 2)], progress=False)
    assert one in ranked


def test_rejects_unknown_heads_and_batches_without_loss():
    model = make("llama")
    for heads, message in (
        ({(5, 0)}, "heads contains (5, 0), but decoder has layers 0 to 1"),
        ({(1, 4)}, "heads contains (1, 4), but that layer has heads 0 to 3"),
        ({(1, -1)}, "heads contains (1, -1)"),
        ({3}, "heads contains 3; expected (layer, head)"),
        ({("encoder", 0, 0)}, "but decoder has layers 0 to 1"),
    ):
        with pytest.raises(ValueError, match="heads contains") as error:
            ablate(model, heads).__enter__()
        assert message in str(error.value)
    with pytest.raises(ValueError, match=r"batches\[0\] gives no loss"):
        head_importance(model, [{"input_ids": inputs_for("llama")["input_ids"]}], progress=False)
    with pytest.raises(ValueError, match="batches is \\[\\]; expected a list of at least one batch"):
        head_importance(model, [], progress=False)
