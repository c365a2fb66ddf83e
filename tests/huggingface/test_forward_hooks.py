"""Tests of forward hooks on attention modules: with `attn_implementation="clearhead"` they find lazy weights."""

import pytest
import torch
from torch import nn

from clearhead import AttentionWeights
from support.peers import assert_agrees
from support.tiny_models import LENGTH, enable_checkpointing, inputs_for, make

KEPT = 6


class ObservedAttentionPress:
    """Hook that prunes the KV cache to the keys with most attention per query that sees them.

    It does with `output[1]` what the press of this name in kvpress does with a dense tensor.
    """

    def __init__(self):
        self.kinds, self.scores, self.kept = [], [], []

    def __call__(self, module, args, kwargs, output):
        attentions, layer = output[1], kwargs["past_key_values"].layers[module.layer_idx]
        batch, kv_heads, kv_len, width = layer.keys.shape
        scores = attentions.sum(2).view(batch, kv_heads, module.num_key_value_groups, kv_len).mean(2)
        scores = scores / torch.arange(kv_len, 0, -1)  # causal: so many queries see each key
        kept = scores.topk(KEPT, dim=-1).indices.sort(dim=-1).values
        indices = kept[..., None].expand(-1, -1, -1, width)
        layer.keys, layer.values = layer.keys.gather(2, indices), layer.values.gather(2, indices)
        self.kinds.append(type(attentions))
        self.scores.append(scores)
        self.kept.append(kept)


def pressed(model):
    """Return the press after a prompt; and its scores, the pruned cache and the logits of the next token."""
    ids, press = inputs_for("llama")["input_ids"], ObservedAttentionPress()
    hooks = [layer.self_attn.register_forward_hook(press, with_kwargs=True) for layer in model.model.layers]
    with torch.no_grad():
        cache = model(input_ids=ids).past_key_values
        for hook in hooks:
            hook.remove()
        positions = torch.full((2, 1), LENGTH)
        logits = model(input_ids=ids[:, :1], past_key_values=cache, position_ids=positions).logits
    return press, [*press.scores, *((layer.keys, layer.values) for layer in cache.layers), logits]


def test_a_press_keeps_the_same_keys_as_with_eager():
    press, results = pressed(make("llama"))
    eager, _ = pressed(make("llama", "eager"))
    assert press.kinds == [AttentionWeights] * 2
    assert eager.kinds == [torch.Tensor] * 2
    assert all(torch.equal(*pair) for pair in zip(press.kept, eager.kept, strict=True))
    assert results[2][0].shape[2] == KEPT + 1
    assert_agrees(results, lambda model: pressed(model)[1], make("llama", "eager"))


def collected(model, **options):
    """Return the second outputs that a hook on the first layer finds."""
    outputs = []
    hook = model.model.layers[0].self_attn.register_forward_hook(lambda module, args, output: outputs.append(output[1]))
    with torch.no_grad():
        model(**inputs_for("llama"), **options)
    hook.remove()
    return outputs


def test_weights_that_a_hook_finds_are_the_attentions():
    model = make("llama").double()
    (found,) = collected(model)
    with torch.no_grad():
        outputs = model(**inputs_for("llama"), output_attentions=True)
    assert torch.equal(found.dense(), outputs.attentions[0].dense())
    torch.testing.assert_close(found.received(), found.sum(2))


def test_weights_are_not_returned_without_a_hook(monkeypatch):
    """The hooks of transformers stay on the modules after `output_attentions=True`, and do not count."""
    model = make("llama")
    with torch.no_grad():
        model(**inputs_for("llama"), output_attentions=True)
    assert all(layer.self_attn._forward_hooks for layer in model.model.layers)
    returned = []
    forward = type(model.model.layers[0].self_attn).forward

    def noting(*args, **kwargs):
        outputs = forward(*args, **kwargs)
        returned.append(outputs[1])
        return outputs

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", noting)
    with torch.no_grad():
        model(**inputs_for("llama"))
    assert returned == [None, None]
    assert [type(weights) for weights in collected(model)] == [AttentionWeights]
    assert [type(weights) for weights in returned[2:]] == [AttentionWeights, type(None)]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_a_hook_does_not_change_outputs_and_gradients(checkpointing):
    results = []
    for hooked in (False, True):
        model, ids = make("llama").train(), inputs_for("llama")["input_ids"]
        if checkpointing:
            enable_checkpointing(model)
        if hooked:
            for layer in model.model.layers:
                layer.self_attn.register_forward_hook(lambda *_: None)
        output = model(input_ids=ids, labels=ids, use_cache=False)
        output.loss.backward()
        results.append([output.logits, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_a_hook_of_another_module_does_not_count():
    model = make("llama")
    model.model.layers[1].self_attn.register_forward_hook(lambda *_: None)
    model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    found = {}

    class Noting(nn.Module):
        def __init__(self, layer, module):
            super().__init__()
            self.layer, self.module = layer, module

        def forward(self, *args, **kwargs):
            output = self.module(*args, **kwargs)
            found[self.layer] = output[1]
            return output

    for index, layer in enumerate(model.model.layers):
        layer.self_attn = Noting(index, layer.self_attn)
    with torch.no_grad():
        model(**inputs_for("llama"))
    assert found[0] is None
    assert isinstance(found[1], AttentionWeights)
