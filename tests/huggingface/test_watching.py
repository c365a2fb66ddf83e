"""Tests of `watch` on transformers models: statistics, spans, means and arguments."""

import gc

import pytest
import torch
import transformers

import clearhead
from clearhead.huggingface import HuggingFaceModel, watch
from support.peers import doubled
from support.tiny_models import LENGTH, SIZES, inputs_for, make
from support.tiny_tokenizer import tokenizer


def attentions(name, inputs):
    with torch.no_grad():
        return make(name)(**inputs, output_attentions=True)


def close_at(valid, got, expected):
    """Compare statistics [batch, heads, q_len, ...] at the queries that are not padding."""
    got, expected = (tensor.transpose(1, 2)[valid] for tensor in (got, expected))
    torch.testing.assert_close(got, expected)
    return True


def test_watch_is_the_one_for_any_model():
    assert watch is clearhead.watch


@pytest.mark.parametrize("implementation", ["sdpa", "clearhead"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_statistics_are_those_of_the_attentions(name, implementation):
    inputs = doubled(inputs_for(name, None if name == "vit" else "right"))
    model = make(name, implementation).double()
    with torch.no_grad(), watch(model, entropy=True, received=True, distance=True, top=3, pool=(2, 2)) as seen:
        assert model.config._attn_implementation == implementation
        model(**inputs)
    with torch.no_grad():
        outputs = make(name).double()(**inputs, output_attentions=True)
    assert len(seen) == 2
    for layer, weights in enumerate(outputs.attentions):
        (call,) = seen[layer].calls
        valid = inputs.get("attention_mask", torch.ones(weights.shape[0], weights.shape[2])).bool()
        assert call.entropy.transpose(1, 2)[~valid].abs().sum() == 0
        assert close_at(valid, call.entropy, weights.entropy())
        assert close_at(valid, call.distance, weights.distance())
        assert close_at(valid, call.top.weights, weights.topk(3).weights)
        visible = weights.dense() * valid[:, None, :, None]
        torch.testing.assert_close(call.received, visible.sum(dim=-2))
        torch.testing.assert_close(call.pooled, torch.nn.functional.adaptive_avg_pool2d(visible, (2, 2)))


def test_addresses_are_stacks_and_layers():
    model = make("bart", "sdpa")
    with torch.no_grad(), watch(model) as seen:
        model(**inputs_for("bart"))
    assert list(seen)[:3] == [
        "model.encoder.layers.0.self_attn",
        "model.encoder.layers.1.self_attn",
        "model.decoder.layers.0.self_attn",
    ]
    assert seen["cross", 1] is seen["model.decoder.layers.1.encoder_attn"] is seen[5]
    assert seen["encoder", 1] is seen[1]
    with pytest.raises(KeyError, match="'cross', 2.* is not an attention module that ran; expected one of 6 names"):
        seen["cross", 2]
    with pytest.raises(KeyError, match="6 is not an attention module that ran; .* a layer from 0 to 5"):
        seen[6]


@pytest.mark.parametrize("form", ["pairs", "segments"])
def test_keys_that_are_not_yet_in_the_cache_receive_no_attention(form):
    """The prompt runs in two chunks, and the second span lies in the second chunk."""
    model, ids = make("llama", "sdpa").double(), inputs_for("llama")["input_ids"][:1]
    segments = torch.full((LENGTH - 1,), -1)
    segments[1:4], segments[LENGTH - 3 : LENGTH - 1] = 0, 1
    spans = [(1, 4), (LENGTH - 3, LENGTH - 1)] if form == "pairs" else segments
    with torch.no_grad(), watch(model, spans=spans, entropy=True) as seen:
        cache = model(input_ids=ids[:, :5]).past_key_values
        model(input_ids=ids[:, 5:], past_key_values=cache)
    with torch.no_grad(), watch(model, spans=[(1, 4), (LENGTH - 3, LENGTH - 1)]) as whole:
        model(input_ids=ids)
    assert seen.spans == ("span_0", "span_1")
    for layer in range(2):
        first, second = (call.mass for call in seen[layer].calls)
        assert first[..., 1].abs().sum() == 0
        torch.testing.assert_close(torch.cat([first, second], dim=2), whole[layer].calls[0].mass)
        torch.testing.assert_close(seen[layer].means["mass"], whole[layer].means["mass"])


@pytest.mark.parametrize("implementation", ["sdpa", "clearhead"])
def test_spans_apply_to_stacks_of_different_lengths(implementation):
    model, inputs = make("bart", implementation), inputs_for("bart", "right")
    with torch.no_grad(), watch(model, spans={"*": {"end": (LENGTH - 2, LENGTH)}}, keep=0) as seen:
        model(**inputs)
    shapes = {stack: seen[stack, 0].means["mass"].shape for stack in ("encoder", "decoder", "cross")}
    assert shapes == dict.fromkeys(("encoder", "decoder", "cross"), (4, 1))
    assert (seen["encoder", 0].means["mass"] > 0).all()
    assert (seen["decoder", 0].means["mass"] == 0).all()  # has fewer tokens


def vision_language_model():
    """Return a model of two layers in each of two stacks, and inputs with 16 patches and 8 tokens of text."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = transformers.CLIPVisionConfig(**sizes, image_size=64, patch_size=16)
    text = transformers.LlamaConfig(**sizes, vocab_size=100)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=99)
    ids = torch.cat([torch.full((1, 16), 99), torch.arange(8)[None]], dim=1)
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 64, 64)}
    return transformers.LlavaForConditionalGeneration(config).eval(), inputs


IMAGE = {"image": (0, 16), "question": (16, 24)}


def test_spans_apply_to_one_stack():
    model, inputs = vision_language_model()
    with torch.no_grad(), watch(model, spans={"decoder": IMAGE}, entropy=True) as seen:
        model(**inputs)
    with torch.no_grad(), watch(model, spans=IMAGE, where="*language_model*") as alone:
        model(**inputs)
    assert seen.spans == alone.spans == ("image", "question")
    assert list(seen[0].means) == ["entropy"]
    for layer in (2, 3):
        assert torch.equal(seen[layer].means["mass"], alone[layer].means["mass"])
    table = seen.summary().to_dict()
    assert table["image"][:8] == [None] * 8
    assert table["image"][8:] == alone.summary().to_dict()["image"]
    with torch.no_grad(), watch(model, spans={"decoder": IMAGE}) as seen:
        model(**inputs)
    assert seen[0].means == {}
    assert set(seen.summary().to_dict()["stack"]) == {"decoder"}


def test_spans_of_several_stacks_have_their_own_names():
    model, inputs = vision_language_model()
    spans = {"encoder": {"class": (0, 1)}, "decoder": torch.tensor([0] * 16 + [1] * 8)}
    with torch.no_grad(), watch(model, spans=spans) as seen:
        model(**inputs)
    assert seen.spans == ("class", "span_0", "span_1")
    assert seen["encoder", 0].means["mass"].shape == (4, 1)
    assert seen["decoder", 0].means["mass"].shape == (4, 2)
    torch.testing.assert_close(seen["decoder", 0].means["mass"].sum(dim=1), torch.ones(4).double())
    table = seen.summary().to_dict()
    assert [value is None for value in table["class"]] == [False] * 8 + [True] * 8
    assert [value is None for value in table["span_1"]] == [True] * 8 + [False] * 8


def test_spans_without_a_stack_are_refused_if_several_run():
    model, inputs = vision_language_model()
    message = "spans has no stack, but attention runs in 'encoder' and 'decoder'; expected the spans of one stack"
    with pytest.raises(ValueError, match=message), torch.no_grad(), watch(model, spans=IMAGE):
        model(**inputs)
    with torch.no_grad(), watch(model, spans=IMAGE) as seen:  # without a picture, only one runs
        model(input_ids=torch.arange(24)[None])
    assert seen[0].means["mass"].shape == (4, 2)
    bart = make("bart", "sdpa")
    message = r"in 'encoder', 'decoder' and 'cross'; .* such as spans=\{'decoder': \{…\}\}, or \{'\*': \{…\}\} for all$"
    with pytest.raises(ValueError, match=message), torch.no_grad(), watch(bart, spans={"end": (2, 3)}):
        bart(**inputs_for("bart"))
    with torch.no_grad(), watch(bart, spans={"end": (2, 3)}, layers=[0, 1]) as seen:
        bart(**inputs_for("bart"))
    assert {seen.address(watched)[0] for watched in seen.values()} == {"encoder"}
    message = "spans has the stack 'text'; expected a stack that ran: 'encoder', 'decoder'"
    with pytest.raises(ValueError, match=message), torch.no_grad(), watch(model, spans={"text": IMAGE}):
        model(**inputs)


def test_summary_numbers_modules_as_seen_does():
    model, inputs = vision_language_model()
    with torch.no_grad(), watch(model, where="*language_model*", entropy=True) as seen:
        model(**inputs)
    summary = seen.summary()
    table = summary.to_dict()
    assert list(zip(table["stack"], table["layer"], table["module"], strict=True))[::4] == [
        ("decoder", 0, 2), ("decoder", 1, 3),
    ]  # fmt: skip
    assert seen[2] is seen["decoder", 0]
    assert repr(summary).startswith("AttentionSummary(decoder 2 layers (modules 2 to 3), entropy of 24 queries")
    assert "<th>1 (module 3)</th>" in summary._repr_html_()


def test_rejects_wrong_spans():
    model, inputs = make("llama", "sdpa"), inputs_for("llama")
    for spans, message in (
        ({"image": (5, LENGTH + 1)}, rf"spans\['image'\] is \(5, {LENGTH + 1}\); expected an end of at most {LENGTH}"),
        ([(0, 3), (LENGTH, 40)], rf"spans\[1\] is \({LENGTH}, 40\); expected an end of at most {LENGTH}"),
        (torch.zeros(LENGTH + 1, dtype=torch.long), rf"spans has shape \(1, {LENGTH + 1}\); expected ids of at most"),
    ):
        with pytest.raises(ValueError, match=message), torch.no_grad(), watch(model, spans=spans) as seen:
            model(**inputs)
        assert len(seen[0].calls) == 1  # the error is raised at the end of the block
        assert model.config._attn_implementation == "sdpa"
    for spans, message in (
        ({}, "spans is empty; expected"),
        ({"a": (3, 3)}, "expected start < end"),
        (
            {"decoder": {"a": (0, 3)}, "b": (0, 3)},
            r"spans\['b'\] is \(0, 3\); expected a stack in all spans or in none",
        ),
        ({"head": (0, 3)}, "spans has the name 'head', which is another column of the table"),
        ({1: (0, 3), "1": (3, 4)}, "spans has the name '1', which is another column"),
    ):
        with pytest.raises(ValueError, match=message):
            watch(model, spans=spans).__enter__()
    with pytest.raises(TypeError, match="spans is 3; expected"):
        watch(model, spans=3).__enter__()
    with pytest.raises(ValueError, match="input_ids"), watch(model, spans=[(0, 99)]):
        model()  # the error of the model is not replaced


def test_to_dict_has_one_row_per_head():
    model = make("bart", "sdpa")
    with torch.no_grad(), watch(model, entropy=True, distance=True, keep=0) as seen:
        model(**inputs_for("bart", "right"))
    table = seen.summary().to_dict()
    assert list(table) == ["stack", "layer", "module", "head", "queries", "entropy", "distance"]
    assert len(table["head"]) == 3 * 2 * 4
    assert sorted(set(table["stack"])) == ["cross", "decoder", "encoder"]
    row = [index for index, stack in enumerate(table["stack"]) if stack == "cross"][-1]
    assert (table["layer"][row], table["head"][row], table["queries"][row]) == (1, 3, 14)
    assert table["entropy"][row] == pytest.approx(float(seen["cross", 1].means["entropy"][3]))
    assert len(seen["cross", 1].calls) == 0
    with pytest.raises(KeyError, match="expected .stack, layer. with 'encoder' 0 to 1"):
        seen.summary()["cross", 5]


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "clearhead"])
def test_generate_gives_one_call_per_new_token(implementation):
    model, inputs = make("llama", implementation), inputs_for("llama", "left")
    with watch(model, entropy=True) as seen:
        text = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    new = text.shape[1] - LENGTH
    assert [tuple(call.entropy.shape) for call in seen[0].calls] == [(2, 4, LENGTH)] + [(2, 4, 1)] * (new - 1)
    assert seen[0].queries == 8 + LENGTH + 2 * (new - 1)
    with watch(model, entropy=True, keep=2) as last:
        model.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert [tuple(call.entropy.shape) for call in last[0].calls] == [(2, 4, 1)] * 2
    assert last[0].queries == seen[0].queries


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "clearhead"])
def test_no_queries_or_keys_are_kept(implementation):
    model = make("llama", implementation)
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(**inputs_for("llama"), use_cache=False)
        gc.collect()
        wide = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape[1:] == (4, LENGTH, 8)]
    assert seen[1].calls
    assert wide == []


def shared_layers():
    torch.manual_seed(0)
    return transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=16)).eval()


def test_layers_that_share_a_module_are_calls_of_it():
    model, ids = shared_layers().double(), inputs_for("bert")["input_ids"]
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(input_ids=ids)
        model(input_ids=ids)
    model.set_attn_implementation("clearhead")
    with torch.no_grad():
        outputs = model(input_ids=ids, output_attentions=True)
    assert list(seen) == ["encoder.albert_layer_groups.0.albert_layers.0.attention"]
    assert len(seen[0].calls) == 2 * len(outputs.attentions) == 4
    for layer, weights in enumerate(outputs.attentions * 2):
        torch.testing.assert_close(seen[0].calls[layer].entropy, weights.entropy())


def test_summaries_separate_layers_that_share_a_module():
    model = HuggingFaceModel.from_module(shared_layers().double(), tokenizer())
    text = "the dogs running ."
    summary = model.summarize(text, spans={"first": (0, 1)})
    weights = model.record(text).stacks["encoder"].layers
    assert list(summary.layers) == [("encoder", 0), ("encoder", 1)]
    for layer, expected in enumerate(weights):
        assert summary[layer].queries == expected.shape[2]
        means = summary[layer].means
        torch.testing.assert_close(means["entropy"], expected.entropy().mean(dim=(0, 2)))
        torch.testing.assert_close(means["mass"], expected.mass({"first": (0, 1)}).mean(dim=(0, 2)))


def test_submodels_with_separate_configurations_are_watched():
    encoder = transformers.BertConfig(**SIZES)
    decoder = transformers.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    model = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(encoder), decoder=transformers.BertLMHeadModel(decoder)
    ).eval()
    ids = inputs_for("bert")["input_ids"]
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(input_ids=ids, decoder_input_ids=ids[:, :5])
    addresses = sorted(seen.address(watched) for watched in seen.values())
    assert addresses == [(stack, layer) for stack in ("cross", "decoder", "encoder") for layer in range(2)]
    assert all(len(watched.calls) == 1 for watched in seen.values())
    assert encoder._attn_implementation == "sdpa"


def test_rejects_unknown_statistics_models_and_arguments():
    model = make("llama", "sdpa")
    with pytest.raises(TypeError, match="entropie is not a statistic; expected entropy, received"):
        watch(model, entropie=True).__enter__()
    with pytest.raises(TypeError, match="keep_calls is not a statistic"):
        watch(model, entropy=True, keep_calls=False).__enter__()
    with pytest.raises(TypeError, match="model is 'llama'; expected a torch.nn.Module, or a pipeline"):
        watch("llama").__enter__()
    config = transformers.GPTJConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=2, rotary_dim=4)
    by_hand = transformers.GPTJModel(config).eval()
    message = "observed no attention of GPTJModel: no call of scaled_dot_product_attention.* is not observed"
    with pytest.raises(ValueError, match=message), torch.no_grad(), watch(by_hand, entropy=True):
        by_hand(input_ids=torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="LlamaForCausalLM: it was not called within the block"), watch(model):
        pass


def test_no_mutation_check_in_inference_mode(monkeypatch):
    """Comparing hashes would synchronize the GPU in every layer; weights that are read at once do not require it."""
    monkeypatch.setattr("clearhead.weights.mutation._hash", lambda tensor: pytest.fail("hashed"))
    for implementation in ("sdpa", "eager", "clearhead"):
        model = make("llama", implementation)
        with torch.inference_mode(), watch(model, entropy=True) as seen:
            model(**inputs_for("llama"))
        assert seen[0].calls[0].entropy.isfinite().all()


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "clearhead"])
def test_weights_are_kept_in_inference_mode(implementation):
    model, inputs = make("llama", implementation), inputs_for("llama")
    with torch.inference_mode(), watch(model) as seen:
        model(**inputs)
    with torch.no_grad(), watch(model) as plain:
        model(**inputs)
    for layer in range(2):
        assert torch.equal(seen[layer].weights.dense(), plain[layer].weights.dense())
