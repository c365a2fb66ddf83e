"""Tests of `watch`: its statistics are those of the model's attentions, and it keeps no queries or keys."""

import copy
import gc
import threading

import pytest
import torch
import transformers
from transformers import GPTJConfig, GPTJModel

from clearhead.huggingface import ablate, watch
from clearhead.huggingface._hooks import HOOK_SETS
from support.peers import assert_agrees, doubled
from support.tiny_models import LENGTH, SIZES, inputs_for, make


def attentions(name, inputs):
    with torch.no_grad():
        return make(name)(**inputs, output_attentions=True)


def close_at(valid, got, expected):
    """Compare statistics [batch, heads, q_len, ...] at the queries that are not padding."""
    got, expected = (tensor.transpose(1, 2)[valid] for tensor in (got, expected))
    torch.testing.assert_close(got, expected)
    return True


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_statistics_are_those_of_the_attentions(name):
    inputs = doubled(inputs_for(name, None if name == "vit" else "right"))
    model = make(name, "sdpa").double()
    with torch.no_grad(), watch(model, entropy=True, received=True, distance=True, top=3, pool=(2, 2)) as summary:
        assert model.config._attn_implementation == "clearhead"
        model(**inputs)
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        outputs = make(name).double()(**inputs, output_attentions=True)
    assert len(summary) == 2
    for layer, weights in enumerate(outputs.attentions):
        (call,) = summary[layer].calls
        valid = inputs.get("attention_mask", torch.ones(weights.shape[0], weights.shape[2])).bool()
        assert call.entropy.transpose(1, 2)[~valid].abs().sum() == 0
        assert close_at(valid, call.entropy, weights.entropy())
        assert close_at(valid, call.distance, weights.distance())
        assert close_at(valid, call.top.weights, weights.topk(3).weights)
        visible = weights.dense() * valid[:, None, :, None]
        torch.testing.assert_close(call.received, visible.sum(dim=-2))
        torch.testing.assert_close(call.pooled, torch.nn.functional.adaptive_avg_pool2d(visible, (2, 2)))


@pytest.mark.parametrize(("name", "side"), [("llama", "left"), ("gpt-oss", "right"), ("bert", "right")])
def test_mass_and_peak_exclude_padding(name, side):
    padded = doubled(inputs_for(name, side))
    valid = padded["attention_mask"].bool()
    spans = {"start": (0, 3), "all": (0, LENGTH), "one": (5, 6)}
    model = make(name).double()
    with torch.no_grad(), watch(model, peak=True, spans=spans) as summary:
        model(**padded)
        model(**padded)
    with torch.no_grad():
        outputs = make(name).double()(**padded, output_attentions=True)
    assert summary.spans == ("start", "all", "one")
    for layer, weights in enumerate(outputs.attentions):
        first, _ = summary[layer].calls
        mass, peak = weights.mass(spans), weights.peak()
        assert close_at(valid, first.mass, mass)
        assert first.mass.transpose(1, 2)[~valid].abs().sum() == 0
        assert close_at(valid, first.peak, peak)
        assert (first.peak.transpose(1, 2)[~valid] == -torch.inf).all()
        assert summary[layer].queries == 2 * int(valid.sum())
        torch.testing.assert_close(summary[layer].means["mass"], mass.transpose(1, 2)[valid].mean(dim=0))
        torch.testing.assert_close(summary[layer].maxima["peak"], peak.transpose(1, 2)[valid].amax(dim=0))
    table = summary.to_dict()
    assert list(table) == ["stack", "layer", "head", "queries", "start", "all", "one", "peak"]
    assert table["one"] == [value for layer in summary for value in layer.means["mass"][:, 2].tolist()]
    assert table["peak"] == [value for layer in summary for value in layer.maxima["peak"].tolist()]
    assert "mass, peak" in repr(summary)
    assert summary._repr_html_() is None or "one" in summary._repr_html_()


@pytest.mark.parametrize("form", ["pairs", "segments"])
def test_keys_that_are_not_yet_in_the_cache_receive_no_attention(form):
    """The prompt runs in two chunks, and the second span lies in the second chunk."""
    model, ids = make("llama").double(), inputs_for("llama")["input_ids"][:1]
    segments = torch.full((LENGTH - 1,), -1)
    segments[1:4], segments[LENGTH - 3 : LENGTH - 1] = 0, 1
    spans = [(1, 4), (LENGTH - 3, LENGTH - 1)] if form == "pairs" else segments
    with torch.no_grad(), watch(model, spans=spans, entropy=True) as summary:
        cache = model(input_ids=ids[:, :5]).past_key_values
        model(input_ids=ids[:, 5:], past_key_values=cache)
    with torch.no_grad(), watch(model, spans=[(1, 4), (LENGTH - 3, LENGTH - 1)]) as whole:
        model(input_ids=ids)
    assert summary.spans == ("span_0", "span_1")
    for layer in range(2):
        first, second = (call.mass for call in summary[layer].calls)
        assert first[..., 1].abs().sum() == 0
        torch.testing.assert_close(torch.cat([first, second], dim=2), whole[layer].calls[0].mass)
        torch.testing.assert_close(summary[layer].means["mass"], whole[layer].means["mass"])


def test_spans_apply_to_stacks_of_different_lengths():
    model, inputs = make("bart"), inputs_for("bart", "right")
    with torch.no_grad(), watch(model, spans={"end": (LENGTH - 2, LENGTH)}, peak=True, keep_calls=False) as summary:
        model(**inputs)
    lengths = {stack: summary[stack, 0].means["mass"].shape for stack in ("encoder", "decoder", "cross")}
    assert lengths == dict.fromkeys(("encoder", "decoder", "cross"), (4, 1))
    assert (summary["encoder", 0].means["mass"] > 0).all()
    assert (summary["decoder", 0].means["mass"] == 0).all()  # has fewer tokens


def test_rejects_wrong_spans():
    model, inputs = make("llama"), inputs_for("llama")
    for spans, message in (
        ({"image": (5, LENGTH + 1)}, rf"spans\['image'\] is \(5, {LENGTH + 1}\); expected an end of at most {LENGTH}"),
        ([(0, 3), (LENGTH, 40)], rf"spans\[1\] is \({LENGTH}, 40\); expected an end of at most {LENGTH}"),
        (torch.zeros(LENGTH + 1, dtype=torch.long), rf"spans has shape \(1, {LENGTH + 1}\); expected ids of at most"),
    ):
        with pytest.raises(ValueError, match=message), torch.no_grad(), watch(model, spans=spans) as summary:
            model(**inputs)
        assert len(summary[0].calls) == 1  # the error is raised at the end of the block
        assert model.config._attn_implementation == "clearhead"
    for spans, message in (
        ({}, "spans is empty; expected"),
        ({"a": (3, 3)}, "expected start < end"),
        ({"head": (0, 3)}, "spans has the name 'head', which is another column of the table"),
        ({1: (0, 3), "1": (3, 4)}, "spans has the name '1', which is another column"),
    ):
        with pytest.raises(ValueError, match=message):
            watch(model, spans=spans).__enter__()
    with pytest.raises(TypeError, match="spans is 3; expected"):
        watch(model, spans=3).__enter__()
    with pytest.raises(ValueError, match="no statistic is requested"):
        watch(model, spans=None, peak=False).__enter__()
    with pytest.raises(ValueError, match="input_ids"), watch(model, spans=[(0, 99)]):
        model()  # the error of the model is not replaced


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_means_exclude_padding_and_cover_all_calls(name, side):
    padded, whole = inputs_for(name, side), inputs_for(name)
    model = make(name)
    with torch.no_grad(), watch(model, entropy=True, top=1) as summary:
        model(**padded)
        model(**whole)
    valid = padded["attention_mask"].bool()
    runs = [attentions(name, inputs) for inputs in (padded, whole)]
    kind, stack = ("encoder_attentions", "encoder") if name == "t5" else ("attentions", summary.stacks[0])
    first, second = (run[kind][1].entropy().double() for run in runs)
    expected = torch.cat([first.transpose(1, 2)[valid], second.transpose(1, 2).flatten(0, 1)]).mean(dim=0)
    layer = summary[stack, 1]
    assert layer.queries == int(valid.sum()) + 2 * LENGTH
    torch.testing.assert_close(layer.means["entropy"], expected)
    largest = torch.cat(
        [
            runs[0][kind][1].topk(1).weights[..., 0].transpose(1, 2)[valid].double(),
            runs[1][kind][1].topk(1).weights[..., 0].transpose(1, 2).flatten(0, 1).double(),
        ]
    ).mean(dim=0)
    torch.testing.assert_close(layer.means["largest"], largest)


@pytest.mark.parametrize(
    ("name", "side"),
    [("llama", "left"), ("llama", "right"), ("gpt-oss", "left"), ("gpt-oss", "right"), ("bert", "right")],
)
def test_received_and_pooled_do_not_depend_on_padding(name, side):
    padded = inputs_for(name, side)
    valid = padded["attention_mask"][0].bool()
    model = make(name).double()  # rounding errors are then below the default tolerance
    with torch.no_grad(), watch(model, received=True, pool=(1, 1), reduce="max") as summary:
        model(**padded)
    ids = padded["input_ids"][:1, valid]
    with torch.no_grad(), watch(model, received=True, pool=(1, 1), reduce="max") as alone:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    for layer in range(2):
        both, one = summary[layer].calls[0], alone[layer].calls[0]
        assert both.received[0, :, ~valid].abs().sum() == 0
        torch.testing.assert_close(both.received[0, :, valid], one.received[0])
        torch.testing.assert_close(both.pooled[0], one.pooled[0])


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "gemma2"])
def test_padding_is_excluded_with_a_static_cache(name):
    """`generate` then passes 4-D masks, and with sinks the log-sum-exp of a row without visible keys is finite."""
    inputs = inputs_for(name, "left")
    results = []
    for options in ({}, {"cache_implementation": "static"}):
        model = make(name).double()
        with watch(model, entropy=True) as summary:
            model.generate(**inputs, max_new_tokens=3, do_sample=False, **options)
        results.append(summary)
    dynamic, static = results
    for layer in range(2):
        assert static[layer].queries == dynamic[layer].queries == 8 + LENGTH + 2 * 2
        torch.testing.assert_close(static[layer].means["entropy"], dynamic[layer].means["entropy"])


def test_to_dict_has_one_row_per_head():
    model = make("bart")
    with torch.no_grad(), watch(model, entropy=True, distance=True, keep_calls=False) as summary:
        model(**inputs_for("bart", "right"))
    table = summary.to_dict()
    assert list(table) == ["stack", "layer", "head", "queries", "entropy", "distance"]
    assert len(table["head"]) == 3 * 2 * 4
    assert sorted(set(table["stack"])) == ["cross", "decoder", "encoder"]
    row = [index for index, stack in enumerate(table["stack"]) if stack == "cross"][-1]
    assert (table["layer"][row], table["head"][row], table["queries"][row]) == (1, 3, 14)
    assert table["entropy"][row] == pytest.approx(float(summary["cross", 1].means["entropy"][3]))
    assert summary["cross", 1].calls == []


def test_generate_gives_one_call_per_new_token():
    model, inputs = make("llama"), inputs_for("llama", "left")
    with watch(model, entropy=True) as summary:
        text = model.generate(**inputs, max_new_tokens=5, do_sample=False)
    new = text.shape[1] - LENGTH
    assert [tuple(call.entropy.shape) for call in summary[0].calls] == [(2, 4, LENGTH)] + [(2, 4, 1)] * (new - 1)
    assert summary[0].queries == 8 + LENGTH + 2 * (new - 1)


def test_no_queries_or_keys_are_kept():
    model = make("llama")
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(**inputs_for("llama"))
        gc.collect()
        wide = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape[1:] == (4, LENGTH, 8)]
    assert summary[1].calls
    assert wide == []


def test_gradients_are_unchanged():
    model = make("llama")
    ids = inputs_for("llama")["input_ids"]
    with watch(model, entropy=True):
        model(input_ids=ids, labels=ids).loss.backward()
    inside = model.lm_head.weight.grad.clone()
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    assert torch.equal(inside, model.lm_head.weight.grad)


def test_nested_watches_and_errors_restore_the_implementation():
    model = make("gpt2", "eager")
    with watch(model, entropy=True) as outer, watch(model, distance=True) as inner:
        model(**inputs_for("gpt2"))
    assert len(inner[0].calls) == len(outer[0].calls) == 1
    with pytest.raises(ValueError, match="input_ids"), watch(model, entropy=True):
        model()
    assert model.config._attn_implementation == "eager"
    assert not any(getattr(module, HOOK_SETS, ()) for module in model.modules())


def shared_layers():
    torch.manual_seed(0)
    return transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=16)).eval()


def test_layers_that_share_a_module_have_separate_statistics():
    model, ids = shared_layers().double(), inputs_for("bert")["input_ids"]
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(input_ids=ids)
        model(input_ids=ids)
    model.set_attn_implementation("clearhead")
    with torch.no_grad():
        outputs = model(input_ids=ids, output_attentions=True)
    assert len(summary) == len(outputs.attentions) == 2
    for layer, weights in enumerate(outputs.attentions):
        assert len(summary[layer].calls) == 2
        torch.testing.assert_close(summary[layer].calls[1].entropy, weights.entropy())


def test_recomputed_layers_are_counted_once():
    model, ids = make("llama").train(), inputs_for("llama")["input_ids"]
    model.gradient_checkpointing_enable()
    with watch(model, entropy=True) as summary:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert [len(layer.calls) for layer in summary] == [1, 1]


def test_padding_of_audio_samples_becomes_padding_of_queries():
    """A query covers several samples; the mask that the model makes defines the padding queries."""
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, conv_dim=(8, 8),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2, feat_extract_norm="layer",
    )  # fmt: skip
    model = transformers.Wav2Vec2Model(config).eval()
    mask = torch.ones(2, 1000, dtype=torch.long)
    mask[0, 600:] = 0
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(torch.randn(2, 1000), attention_mask=mask)
    frames = model._get_feat_extract_output_lengths(mask.sum(dim=1))
    assert summary[0].queries == int(frames.sum()) < summary[0].calls[0].entropy[:, 0].numel()


def test_submodels_with_separate_configurations_are_watched():
    encoder = transformers.BertConfig(**SIZES)
    decoder = transformers.BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    model = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(encoder), decoder=transformers.BertLMHeadModel(decoder)
    ).eval()
    ids = inputs_for("bert")["input_ids"]
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(input_ids=ids, decoder_input_ids=ids[:, :5])
    assert sorted(summary.layers) == [(stack, layer) for stack in ("cross", "decoder", "encoder") for layer in range(2)]
    assert all(len(layer.calls) == 1 for layer in summary)
    assert encoder._attn_implementation == "sdpa"


def test_rejects_unknown_statistics_models_and_layers():
    model = make("llama")
    with pytest.raises(TypeError, match="entropie is not a statistic; expected any of entropy, received"):
        watch(model, entropie=True).__enter__()
    with pytest.raises(ValueError, match="no statistic is requested"):
        watch(model, entropy=False).__enter__()
    without_interface = GPTJModel(GPTJConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=2, rotary_dim=4))
    with pytest.raises(ValueError, match="GPTJModel does not use"):
        watch(without_interface, entropy=True).__enter__()
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(**inputs_for("llama"))
    with pytest.raises(KeyError, match="expected .stack, layer. with 'decoder' 0 to 1"):
        summary[5]


def test_no_mutation_check_in_inference_mode(monkeypatch):
    """Comparing hashes would synchronize the GPU in every layer; weights that are read at once do not require it."""
    monkeypatch.setattr("clearhead.weights.mutation._hash", lambda tensor: pytest.fail("hashed"))
    model = make("llama")
    with torch.inference_mode(), watch(model, entropy=True) as summary:
        model(**inputs_for("llama"))
    assert summary[0].calls[0].entropy.isfinite().all()


def test_threads_that_watch_one_model_observe_their_own_calls():
    """Two threads watch the same model at the same time, also one whose layers share a module."""
    for model in (make("llama", "sdpa"), shared_layers()):
        lengths = {0: 5, 1: 9}
        results, errors = {}, []
        barrier = threading.Barrier(2)

        def run(thread, model=model, lengths=lengths, results=results, errors=errors, barrier=barrier):
            try:
                with torch.no_grad(), watch(model, entropy=True) as summary:
                    for _ in range(8):
                        barrier.wait()
                        model(input_ids=torch.full((1, lengths[thread]), 7 + thread))
                    barrier.wait()
                results[thread] = summary
            except BaseException as error:
                errors.append(error)
                barrier.abort()
                raise

        threads = [threading.Thread(target=run, args=(thread,)) for thread in lengths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        for thread, summary in results.items():
            assert len(summary) == 2
            assert [[call.entropy.shape[-1] for call in layer.calls] for layer in summary] == [
                [lengths[thread]] * 8
            ] * 2
        assert model.config._attn_implementation == "sdpa"


def test_calls_of_threads_without_a_watch_are_observed():
    model = make("llama", "sdpa")
    with watch(model, entropy=True) as summary:
        threads = [
            threading.Thread(target=model, kwargs={"input_ids": torch.full((1, length), 7)}) for length in (4, 6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(call.entropy.shape[-1] for call in summary[1].calls) == [4, 6]
    assert summary[1].queries == 10


def test_repeated_runs_of_one_module_are_calls_of_one_layer():
    """Qwen2.5-VL runs the attention of a vision layer once per window."""
    model, inputs = image_model()
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
        with watch(model, entropy=True) as summary:
            watched = model(**inputs).last_hidden_state
        with ablate(model, {("encoder", 0, 1)}):
            assert not torch.allclose(model(**inputs).last_hidden_state, plain)
    assert torch.isfinite(watched).all()
    assert [len(layer.calls) for (stack, _), layer in summary.layers.items() if stack == "encoder"] == [4, 2]
    assert summary["decoder", 1].queries == inputs["input_ids"].shape[1]


def image_model():
    """Return a tiny Qwen2.5-VL whose first vision layer attends in windows, and inputs with two images."""
    text = {**SIZES, "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    vision = {
        "depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 32,
        "patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1], "spatial_merge_size": 2,
    }  # fmt: skip
    tokens = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens)
    torch.manual_seed(0)
    model = transformers.Qwen2_5_VLModel(config).eval()
    grid = torch.tensor([[1, 4, 8], [1, 4, 8]])
    image = [7, *[5] * 8, 8]
    ids = torch.tensor([[10, *image, 11, *image, 12]])
    images = {"pixel_values": torch.randn(64, 3 * 2 * 4 * 4), "image_grid_thw": grid}
    return model, {"input_ids": ids, "mm_token_type_ids": (ids == 5).int(), **images}


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
def test_padding_is_excluded_with_a_mask_as_long_as_a_static_cache(name):
    """The slots after the prompt are free, so the queries are not at the end of the mask."""
    model, inputs = make(name), inputs_for(name, "left")
    mask = torch.cat([inputs["attention_mask"], torch.zeros(2, 9, dtype=torch.long)], dim=1)
    cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(input_ids=inputs["input_ids"], attention_mask=mask, past_key_values=cache)
    assert summary[1].queries == 8 + LENGTH


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -torch.inf])
def test_rows_that_an_additive_mask_hides_are_excluded(name, hidden):
    inputs = inputs_for(name, "left")
    allowed = torch.ones(LENGTH, LENGTH).tril().bool() & inputs["attention_mask"][:, None, None].bool()
    added = torch.zeros(allowed.shape).masked_fill(~allowed, hidden)
    model = make(name)
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(input_ids=inputs["input_ids"], attention_mask=added)
    assert summary[1].queries == 8 + LENGTH


def test_latent_queries_over_padded_keys_are_not_padding():
    """The latents of Idefics2's perceiver attend to a padded image."""
    text = {**SIZES, "model_type": "mistral", "num_key_value_heads": 2, "pad_token_id": 0}
    vision = {**SIZES, "image_size": 32, "patch_size": 4}
    latents = {"resampler_n_latents": 4, "resampler_depth": 2, "resampler_n_heads": 4, "resampler_head_dim": 8}
    perceiver = {"hidden_size": 32, "num_key_value_heads": 2, **latents}
    config = transformers.Idefics2Config(
        text_config=text, vision_config=vision, perceiver_config=perceiver, image_token_id=5
    )
    model = transformers.Idefics2Model(config).eval()
    shown = torch.ones(1, 2, 32, 32, dtype=torch.bool)
    shown[0, 0, 16:] = False
    ids = torch.tensor([[10, *[5] * 4, 11, *[5] * 4, 12]])
    with torch.no_grad(), watch(model, entropy=True) as summary:
        model(input_ids=ids, pixel_values=torch.randn(1, 2, 3, 32, 32), pixel_attention_mask=shown)
    assert {stack: summary[stack, 1].queries for stack in summary.stacks} == {
        "vision encoder": 32 + 64,
        "perceiver encoder": 2 * 4,
        "decoder": ids.shape[1],
    }


def test_a_watch_that_begins_during_a_pass_of_another_thread_does_not_change_it():
    """A missing sdpa mask still means causal after a `watch` begins in the middle of the pass."""
    model, ids = make("llama", "sdpa"), inputs_for("llama")["input_ids"]
    watches, summaries = [], []

    def enter(*_):
        def run():
            watches.append(watch(model, entropy=True))
            summaries.append(watches[0].__enter__())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    hook = model.model.layers[1].register_forward_pre_hook(enter)
    with torch.no_grad():
        got = model(input_ids=ids).logits
        hook.remove()
        assert [len(layer.calls) for layer in summaries[0]] == [0, 0]
        model(input_ids=ids)
    assert [len(layer.calls) for layer in summaries[0]] == [1, 1]
    watches[0].__exit__(None, None, None)
    assert_agrees(got, lambda model: model(input_ids=ids).logits, make("llama", "eager"))
    assert model.config._attn_implementation == "sdpa"


def test_a_copy_of_a_watched_model_is_not_watched():
    model, inputs = make("llama"), inputs_for("llama")
    with torch.no_grad(), watch(model, entropy=True) as summary:
        copy.deepcopy(model)(**inputs)
        assert summary[0].calls == []
        model(**inputs)
    assert len(summary[0].calls) == 1
