"""Tests of `watch` on padded batches: padding queries do not count, on any implementation."""

import pytest
import torch
import transformers

from clearhead.huggingface import ablate, watch
from support.peers import doubled
from support.tiny_models import LENGTH, SIZES, inputs_for, make

IMPLEMENTATIONS = {"llama": ["sdpa", "eager", "clearhead"], "gpt-oss": ["eager", "clearhead"], "gemma2": ["clearhead"]}
IMPLEMENTATIONS |= {"bert": ["sdpa", "clearhead"], "t5": ["sdpa", "clearhead"]}


def variants(*names):
    return [(name, implementation) for name in names for implementation in IMPLEMENTATIONS[name]]


def attentions(name, inputs):
    with torch.no_grad():
        return make(name).double()(**inputs, output_attentions=True)


def exact(name, implementation):
    """Return a model whose rounding errors are below the tolerance, and the tolerance.

    The masks of eager overflow in float64, because its softmax is in float32.
    """
    model = make(name, implementation)
    return (model, {"atol": 1e-5, "rtol": 1e-4}) if implementation == "eager" else (model.double(), {})


def close_at(valid, got, expected):
    """Compare statistics [batch, heads, q_len, ...] at the queries that are not padding."""
    got, expected = (tensor.transpose(1, 2)[valid] for tensor in (got, expected))
    torch.testing.assert_close(got, expected)
    return True


@pytest.mark.parametrize(
    ("name", "implementation", "side"),
    [
        ("llama", "clearhead", "left"),
        ("llama", "sdpa", "left"),
        ("gpt-oss", "clearhead", "right"),
        ("bert", "clearhead", "right"),
        ("bert", "sdpa", "right"),
    ],
)
def test_mass_and_peak_exclude_padding(name, implementation, side):
    padded = doubled(inputs_for(name, side))
    valid = padded["attention_mask"].bool()
    spans = {"start": (0, 3), "all": (0, LENGTH), "one": (5, 6)}
    model = make(name, implementation).double()
    with torch.no_grad(), watch(model, peak=True, spans=spans) as seen:
        model(**padded)
        model(**padded)
    assert seen.spans == ("start", "all", "one")
    for layer, weights in enumerate(attentions(name, padded).attentions):
        first, _ = seen[layer].calls
        mass, peak = weights.mass(spans), weights.peak()
        assert close_at(valid, first.mass, mass)
        assert first.mass.transpose(1, 2)[~valid].abs().sum() == 0
        assert close_at(valid, first.peak, peak)
        assert (first.peak.transpose(1, 2)[~valid] == -torch.inf).all()
        assert seen[layer].queries == 2 * int(valid.sum())
        torch.testing.assert_close(seen[layer].means["mass"], mass.transpose(1, 2)[valid].mean(dim=0))
        torch.testing.assert_close(seen[layer].maxima["peak"], peak.transpose(1, 2)[valid].amax(dim=0))
    summary = seen.summary()
    table = summary.to_dict()
    assert list(table) == ["stack", "layer", "module", "head", "queries", "start", "all", "one", "peak"]
    assert table["one"] == [value for watched in seen.values() for value in watched.means["mass"][:, 2].tolist()]
    assert table["peak"] == [value for watched in seen.values() for value in watched.maxima["peak"].tolist()]
    assert "mass, peak" in repr(summary)
    assert "mass, peak" in repr(seen)
    assert seen._repr_html_() is None or "one" in seen._repr_html_()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "implementation"), variants("llama", "bert", "t5"))
def test_means_exclude_padding_and_cover_all_calls(name, implementation, side):
    padded, whole = inputs_for(name, side), inputs_for(name)
    model = make(name, implementation)
    with torch.no_grad(), watch(model, entropy=True, top=1) as seen:
        model(**padded)
        model(**whole)
    valid = padded["attention_mask"].bool()
    runs = [attentions(name, inputs) for inputs in (padded, whole)]
    stack = "decoder" if name == "llama" else "encoder"
    weights = [run["encoder_attentions" if name == "t5" else "attentions"][1] for run in runs]

    def mean(statistic):
        first, second = (statistic(matrix).transpose(1, 2) for matrix in weights)
        return torch.cat([first[valid], second.flatten(0, 1)]).mean(dim=0)

    watched = seen[stack, 1]
    assert watched.queries == int(valid.sum()) + 2 * LENGTH
    close = {"atol": 1e-5, "rtol": 1e-4}  # the model runs in float32
    torch.testing.assert_close(watched.means["entropy"], mean(lambda matrix: matrix.entropy()), **close)
    torch.testing.assert_close(watched.means["largest"], mean(lambda matrix: matrix.topk(1).weights[..., 0]), **close)


@pytest.mark.parametrize(
    ("name", "implementation", "side"),
    [
        *((*variant, side) for variant in variants("llama", "gpt-oss") for side in ("left", "right")),
        *((*variant, "right") for variant in variants("bert")),
    ],
)
def test_received_and_pooled_do_not_depend_on_padding(name, implementation, side):
    padded = inputs_for(name, side)
    valid = padded["attention_mask"][0].bool()
    model, close = exact(name, implementation)
    with torch.no_grad(), watch(model, received=True, pool=(1, 1), reduce="max") as seen:
        model(**padded)
    ids = padded["input_ids"][:1, valid]
    with torch.no_grad(), watch(model, received=True, pool=(1, 1), reduce="max") as alone:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    for layer in range(2):
        both, one = seen[layer].calls[0], alone[layer].calls[0]
        assert both.received[0, :, ~valid].abs().sum() == 0
        torch.testing.assert_close(both.received[0, :, valid], one.received[0], **close)
        torch.testing.assert_close(both.pooled[0], one.pooled[0], **close)


@pytest.mark.parametrize(("name", "implementation"), variants("llama", "gpt-oss", "gemma2"))
def test_padding_is_excluded_with_a_static_cache(name, implementation):
    """`generate` then passes 4-D masks, and with sinks the log-sum-exp of a row without visible keys is finite."""
    inputs = inputs_for(name, "left")
    results = []
    for options in ({}, {"cache_implementation": "static"}):
        model, close = exact(name, implementation)
        with watch(model, entropy=True) as seen:
            model.generate(**inputs, max_new_tokens=3, do_sample=False, **options)
        results.append(seen)
    dynamic, static = results
    for layer in range(2):
        assert static[layer].queries == dynamic[layer].queries == 8 + LENGTH + 2 * 2
        torch.testing.assert_close(static[layer].means["entropy"], dynamic[layer].means["entropy"], **close)


@pytest.mark.parametrize(("name", "implementation"), variants("llama", "gpt-oss"))
def test_padding_is_excluded_with_a_mask_as_long_as_a_static_cache(name, implementation):
    """The slots after the prompt are free, so the queries are not at the end of the mask."""
    model, inputs = make(name, implementation), inputs_for(name, "left")
    mask = torch.cat([inputs["attention_mask"], torch.zeros(2, 9, dtype=torch.long)], dim=1)
    cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(input_ids=inputs["input_ids"], attention_mask=mask, past_key_values=cache)
    assert seen[1].queries == 8 + LENGTH


@pytest.mark.parametrize(("name", "implementation"), variants("llama"))
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_prompt_in_chunks(name, implementation, side):
    """The queries of a chunk are the tokens after those in the cache."""
    model, inputs = make(name, implementation), inputs_for(name, side)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad(), watch(model, entropy=True) as seen:
        cache = model(input_ids=ids[:, :5], attention_mask=mask[:, :5]).past_key_values
        model(input_ids=ids[:, 5:], attention_mask=mask, past_key_values=cache)
    with torch.no_grad(), watch(model, entropy=True) as whole:
        model(**inputs)
    assert seen[1].queries == whole[1].queries == 8 + LENGTH
    torch.testing.assert_close(seen[1].means["entropy"], whole[1].means["entropy"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "implementation"), variants("llama", "gpt-oss"))
@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -torch.inf])
def test_rows_that_an_additive_mask_hides_are_excluded(name, implementation, hidden):
    if hidden == -torch.inf and implementation == "eager":
        pytest.skip("the softmax of eager is nan")
    inputs = inputs_for(name, "left")
    allowed = torch.ones(LENGTH, LENGTH).tril().bool() & inputs["attention_mask"][:, None, None].bool()
    added = torch.zeros(allowed.shape).masked_fill(~allowed, hidden)
    model = make(name, implementation)
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(input_ids=inputs["input_ids"], attention_mask=added)
    assert seen[1].queries == 8 + LENGTH


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "clearhead"])
def test_padding_of_audio_samples_becomes_padding_of_queries(implementation):
    """A query covers several samples; the mask that the model makes defines the padding queries."""
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, conv_dim=(8, 8),
        conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2, feat_extract_norm="layer",
    )  # fmt: skip
    model = transformers.Wav2Vec2Model(config).eval()
    model.set_attn_implementation(implementation)
    mask = torch.ones(2, 1000, dtype=torch.long)
    mask[0, 600:] = 0
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(torch.randn(2, 1000), attention_mask=mask)
    frames = model._get_feat_extract_output_lengths(mask.sum(dim=1))
    assert seen[0].queries == int(frames.sum()) < seen[0].calls[0].entropy[:, 0].numel()


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "clearhead"])
def test_latent_queries_over_padded_keys_are_not_padding(implementation):
    """The latents of Idefics2's perceiver attend to a padded image."""
    text = {**SIZES, "model_type": "mistral", "num_key_value_heads": 2, "pad_token_id": 0}
    vision = {**SIZES, "image_size": 32, "patch_size": 4}
    latents = {"resampler_n_latents": 4, "resampler_depth": 2, "resampler_n_heads": 4, "resampler_head_dim": 8}
    perceiver = {"hidden_size": 32, "num_key_value_heads": 2, **latents}
    config = transformers.Idefics2Config(
        text_config=text, vision_config=vision, perceiver_config=perceiver, image_token_id=5
    )
    model = transformers.Idefics2Model(config).eval()
    model.set_attn_implementation(implementation)
    shown = torch.ones(1, 2, 32, 32, dtype=torch.bool)
    shown[0, 0, 16:] = False
    ids = torch.tensor([[10, *[5] * 4, 11, *[5] * 4, 12]])
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(input_ids=ids, pixel_values=torch.randn(1, 2, 3, 32, 32), pixel_attention_mask=shown)
    assert {stack: seen[stack, 1].queries for stack in ("vision encoder", "perceiver encoder", "decoder")} == {
        "vision encoder": 32 + 64,
        "perceiver encoder": 2 * 4,
        "decoder": ids.shape[1],
    }


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


def test_repeated_runs_of_one_module_are_calls_of_one_layer():
    """Qwen2.5-VL runs the attention of a vision layer once per window."""
    model, inputs = image_model()
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
        with watch(model, entropy=True) as seen:
            watched = model(**inputs).last_hidden_state
        with ablate(model, {("encoder", 0, 1)}):
            assert not torch.allclose(model(**inputs).last_hidden_state, plain)
    assert torch.equal(watched, plain)
    assert [len(seen["encoder", layer].calls) for layer in range(2)] == [4, 2]
    assert seen["decoder", 1].queries == inputs["input_ids"].shape[1]
