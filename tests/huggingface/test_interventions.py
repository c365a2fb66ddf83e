"""Tests of `ablate`, `patch` and `cut` on transformers models, on each implementation."""

import pytest
import torch

from clearhead.huggingface import ablate, cut, patch, patching, watch
from support.peers import doubled
from support.tiny_models import LENGTH, inputs_for, make
from support.written_out import plain, with_head, without_edges, written_out

VARIANTS = [("llama", "sdpa"), ("llama", "clearhead"), ("gpt2", "sdpa"), ("gpt2", "clearhead"), ("bert", "sdpa")]
HEAD = 2


def output_of(outputs):
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


def pair(name, implementation):
    """Return a model in float64, and the same model on sdpa, which tests write out."""
    return make(name, implementation).double(), make(name, "sdpa").double()


@pytest.mark.parametrize(("name", "implementation"), VARIANTS)
def test_cut_and_ablated_heads(name, implementation):
    model, reference = pair(name, implementation)
    inputs = doubled(inputs_for(name, "right"))
    valid = inputs["attention_mask"].bool()

    def change(index, scores, value):
        scores = without_edges(scores, slice(None), slice(3, None), 1)
        output = plain(scores, value)
        return with_head(output, HEAD, 0.0) if index == 1 else output

    with torch.no_grad():
        whole = output_of(model(**inputs))
        with cut(model, [(slice(3, None), 1)]), ablate(model, {(1, HEAD)}), watch(model) as seen:
            got = output_of(model(**inputs))
        with written_out(change):
            expected = output_of(reference(**inputs))
        again = output_of(model(**inputs))
    torch.testing.assert_close(got[valid], expected[valid])
    assert torch.equal(again, whole)
    assert not torch.allclose(got[valid], whole[valid])
    assert seen[1].weights[:, :, 3:, 1].abs().max() == 0


@pytest.mark.parametrize(("name", "implementation"), VARIANTS)
def test_patched_patterns_and_outputs(name, implementation):
    model, reference = pair(name, implementation)
    inputs = doubled(inputs_for(name))
    other = {**inputs, "input_ids": inputs["input_ids"].flip(1)}
    with torch.no_grad():
        with watch(model, values=True) as seen:
            model(**other)
        pattern, output = seen[0].weights, seen[1].output
        with patch(model, {(0, HEAD): pattern, (1, 0): output}, positions=slice(2, None)):
            got = output_of(model(**inputs))

        def change(index, scores, value):
            computed = plain(scores, value)
            if index == 0:
                return with_head(computed, HEAD, pattern[:, HEAD, 2:] @ value[:, HEAD], slice(2, None))
            return with_head(computed, 0, output[:, 0, 2:], slice(2, None))

        with written_out(change):
            torch.testing.assert_close(got, output_of(reference(**inputs)))


def test_eager_attention():
    # its softmax is in float32
    model = make("llama", "eager")
    inputs = inputs_for("llama")
    with torch.no_grad():
        with cut(model, [(slice(3, None), 1)]), ablate(model, {(1, HEAD)}):
            outputs = model(**inputs, output_attentions=True)
        expected_model = make("llama", "sdpa")
        with cut(expected_model, [(slice(3, None), 1)]), ablate(expected_model, {(1, HEAD)}):
            expected = expected_model(**inputs)
    torch.testing.assert_close(outputs.logits, expected.logits, atol=1e-5, rtol=1e-4)
    assert outputs.attentions[1][:, :, 3:, 1].abs().max() == 0
    torch.testing.assert_close(outputs.attentions[1].sum(-1), torch.ones(outputs.attentions[1].shape[:3]))


@pytest.mark.parametrize("implementation", ["sdpa", "clearhead"])
def test_cross_attention_of_encoder_decoders(implementation):
    model = make("t5", implementation).double()
    inputs = doubled(inputs_for("t5"))
    with torch.no_grad():
        whole = model(**inputs).logits
        with cut(model, {("cross", 1): [(None, 0)]}), watch(model) as seen:
            changed = model(**inputs).logits
    assert not torch.allclose(changed, whole)
    assert seen["cross", 1].weights[..., 0].abs().max() == 0
    assert seen["cross", 0].weights[..., 0].abs().max() > 0


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("name", "implementation"),
    [("llama", "sdpa"), ("llama", "clearhead"), ("mistral", "sdpa"), ("mistral", "clearhead"), ("gemma2", "clearhead")],
)
def test_generation_applies_positions_of_the_whole_sequence(name, implementation, cache):
    model = make(name, implementation).double()
    ids = inputs_for(name)["input_ids"][:1]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "output_logits": True}
    edges = [(slice(4, None), 1), (2, 0), (LENGTH + 2, slice(LENGTH - 3, LENGTH)), (slice(LENGTH, None), LENGTH)]
    given = torch.full((8,), 2.0, dtype=torch.float64)
    logits = []
    for settings in ({"use_cache": False}, {"cache_implementation": cache}):
        with torch.no_grad(), cut(model, edges), patch(model, {(1, 0): given}, positions=[3, LENGTH + 1]):
            generated = model.generate(
                ids, attention_mask=torch.ones_like(ids), return_dict_in_generate=True, **options, **settings
            )
        logits.append(torch.stack(generated.logits))
    torch.testing.assert_close(*logits)


def test_generation_of_encoder_decoders_with_a_cache():
    model = make("t5", "sdpa").double()
    inputs = doubled(inputs_for("t5"))
    ids = inputs["input_ids"][:1]
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "output_logits": True}
    logits = []
    for use_cache in (False, True):
        with torch.no_grad(), cut(model, {("cross", 0): [(2, [1, 2, 3])], ("decoder", 1): [(3, 0)]}):
            generated = model.generate(ids, return_dict_in_generate=True, use_cache=use_cache, **options)
        logits.append(torch.stack(generated.logits))
    torch.testing.assert_close(*logits)


def test_means_exclude_padding():
    model = make("llama").double()
    padded = doubled(inputs_for("llama", "right"))
    valid = padded["attention_mask"].bool()
    with torch.no_grad():
        with watch(model, values=True) as seen:
            model(**padded)
        mean = seen[1].output[:, HEAD][valid].mean(dim=0)
        with ablate(model, [(1, HEAD)], mean):
            expected = model(**padded).logits
        with ablate(model, [(1, HEAD)], "mean", batches=[padded]):
            torch.testing.assert_close(model(**padded).logits, expected)


def test_patching_returns_layers_and_heads():
    model = make("llama")
    clean = inputs_for("llama")
    corrupted = {**clean, "input_ids": clean["input_ids"].flip(1)}

    def metric(outputs):
        return outputs.logits[0, LENGTH - 1, 3]

    got = patching(model, clean, corrupted, metric, progress=False)
    assert got.shape == (2, 4)
    assert len({*got.flatten().tolist()}) == 8
    with torch.no_grad(), watch(model, values=True) as seen:
        model(**clean)
    with torch.no_grad(), patch(model, {(1, 3): seen[1].output}):
        torch.testing.assert_close(got[1, 3], metric(model(**corrupted)))
