"""Tests of the tokens and indices that recordings and summaries of a watched model show."""

import re

import pytest
import torch
from torch import nn

from clearhead import report, watch
from support.tiny_models import inputs_for, make
from support.watched_models import MODEL_DIM, OwnModel

IMPLEMENTATIONS = ["clearhead", "sdpa", "eager"]
GENERATE = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}


def language_model(implementation="sdpa"):
    return make("llama", implementation).double(), inputs_for("llama")["input_ids"][:1]


def query_texts(recording):
    return {name: stack.queries.texts for name, stack in recording.stacks.items()}


# -- positions of queries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("queries", [slice(-3, None), slice(2, 5)])
def test_chosen_queries_have_their_tokens(implementation, queries):
    model, ids = language_model(implementation)
    tokens = [f"tok{index}" for index in range(ids.shape[1])]
    with torch.no_grad(), watch(model, queries=queries) as seen:
        model(ids)
    for given in (tokens, {"decoder": tokens}, {"decoder": (tokens, tokens)}, {"decoder": (tokens[queries], tokens)}):
        stack = seen.recording(tokens=given)["decoder"]
        assert stack.queries.texts == tuple(tokens[queries])
        assert stack.keys.texts == tuple(tokens)
    assert query_texts(seen.recording()) == {"decoder": tuple(map(str, range(len(tokens))[queries]))}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}], ids=["growing", "static"])
@pytest.mark.parametrize("keep", [1, 2, None])
def test_kept_calls_of_a_generation_have_their_positions(implementation, options, keep):
    model, ids = language_model(implementation)
    with torch.no_grad(), watch(model, keep=keep) as seen:
        text = model.generate(ids, **GENERATE, **options)
    with torch.no_grad(), watch(model) as whole:
        model(text[:, :-1])
    length = text.shape[1] - 1
    rows = length if keep is None else keep
    tokens = [f"tok{index}" for index in range(length)]
    assert query_texts(seen.recording(tokens)) == {"decoder": tuple(tokens[-rows:])}
    joined, expected = seen[1].joined(), whole[1].weights
    torch.testing.assert_close(joined.dense(), expected.dense()[:, :, -rows:])
    torch.testing.assert_close(joined.distance()[..., :-1], expected.distance()[..., -rows:-1])


def test_queries_that_leave_gaps_are_not_joined():
    model, ids = language_model()
    with torch.no_grad(), watch(model, queries=slice(0, 2)) as seen:
        model.generate(ids, **GENERATE)
    length = ids.shape[1]
    texts = query_texts(seen.recording())
    assert texts == {"decoder, run 1": ("0", "1"), "decoder, run 2": tuple(map(str, range(length, length + 3)))}
    with pytest.raises(ValueError, match="queries= leaves out queries between them"):
        seen[0].joined()


def test_cross_attention_has_the_positions_of_the_decoder():
    model, ids = make("bart").double(), inputs_for("bart")["input_ids"][:1]
    with torch.no_grad(), watch(model, keep=2) as seen:
        model.generate(input_ids=ids, num_beams=1, **GENERATE | {"max_new_tokens": 5, "min_new_tokens": 5})
    texts = query_texts(seen.recording())
    assert texts["decoder"] == texts["cross"] == ("3", "4")


def test_recording_of_one_sequence_of_a_generation():
    model = make("llama", "sdpa").double()
    ids = torch.randint(1, 90, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    with torch.no_grad(), watch(model, queries=slice(-2, None)) as seen:
        model.generate(ids, attention_mask=mask, **GENERATE)
    for batch in range(2):
        recording = seen.recording(batch=batch)
        assert query_texts(recording) == {"decoder": tuple("56789")}
        torch.testing.assert_close(recording["decoder"].layers[1].dense(), seen[1].joined().dense()[batch : batch + 1])


class Pooled(nn.Module):
    """Self-attention, then attention of a learned query that is not one of the tokens."""

    def __init__(self):
        super().__init__()
        self.attn, self.pool = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.latent = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x):
        x = self.attn(x, x, x, need_weights=False)[0]
        return self.pool(self.latent, x, x, need_weights=False)[0]


def test_learned_queries_are_not_tokens():
    model = Pooled().eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 5, 8))
    recording = seen.recording(list("abcde"))
    assert query_texts(recording) == {"attn": tuple("abcde"), "pool": ("0",)}
    assert recording["pool"].keys.texts == tuple("abcde")


def test_recording_without_queries_is_refused():
    model, ids = language_model()
    with torch.no_grad(), watch(model, queries=slice(50, 60)) as seen:
        model(ids)
    with pytest.raises(ValueError, match="queries= leaves out all queries of 2 modules"):
        seen.recording()


# -- several texts and sequences ---------------------------------------------------------------------------------


def test_generations_are_separate_stacks():
    model, ids = language_model()
    with torch.no_grad(), watch(model) as seen:
        model.generate(ids, **GENERATE)
        model.generate(ids[:, 2:], **GENERATE)
    length = ids.shape[1] + 3
    recording = seen.recording()
    sizes = {name: (len(stack.layers), *stack.layers[0].shape[2:]) for name, stack in recording.stacks.items()}
    assert sizes == {"decoder, run 1": (2, length, length), "decoder, run 2": (2, length - 2, length - 2)}
    tokens = [f"tok{index}" for index in range(length)]
    with pytest.raises(
        ValueError, match="tokens is one list, but the calls are those of several texts; expected a dict"
    ):
        seen.recording(tokens)
    labeled = seen.recording({"decoder, run 1": tokens})
    assert labeled["decoder, run 1"].queries.texts == tuple(tokens)
    with pytest.raises(ValueError, match=r"call 4 is .* it reads a text from the start"):
        seen[0].joined()


def test_generations_from_one_source_are_separate_in_all_stacks():
    model, ids = make("bart"), inputs_for("bart")["input_ids"][:1]
    with torch.no_grad(), watch(model) as seen:
        for _ in range(2):
            model.generate(input_ids=ids, num_beams=1, **GENERATE)
    names = [f"{stack}, run {run}" for stack in ("encoder", "decoder", "cross") for run in (1, 2)]
    recording = seen.recording()
    assert sorted(recording.stacks) == sorted(names)
    assert {len(stack.layers) for stack in recording.stacks.values()} == {2}


def test_generation_without_a_cache_is_described():
    model, ids = language_model()
    with torch.no_grad(), watch(model) as seen:
        model.generate(ids, use_cache=False, **GENERATE)
    with pytest.raises(ValueError, match=re.escape("without a KV cache (use_cache=False)")) as error:
        seen[0].joined()
    assert "beam" not in str(error.value)


def encoder_decoder(target_length):
    model = nn.Transformer(16, 2, 2, 2, 32, batch_first=True).eval()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(1, 6, 16), torch.randn(1, target_length, 16))
    return seen


def test_one_list_for_two_sequences_of_that_length_is_refused():
    seen = encoder_decoder(6)
    cross = "decoder.layers.multihead_attn"
    with pytest.raises(ValueError, match=f"'{cross}' attends from one sequence of that length to another; expected"):
        seen.recording(list("abcdef"))
    with pytest.raises(ValueError, match=rf"tokens\['{cross}'\] is one list; expected a pair"):
        seen.recording({cross: list("abcdef")})
    recording = seen.recording({cross: (list("uvwxyz"), list("abcdef"))})
    assert recording[cross].queries.texts == tuple("uvwxyz")
    assert recording[cross].keys.texts == tuple("abcdef")
    with pytest.raises(ValueError, match=r"tokens\['encoder.layers.self_attn'\] has 5 entries; expected 6"):
        seen.recording({"encoder.layers.self_attn": list("abcde")})


def test_one_list_names_the_sequence_of_its_length():
    recording = encoder_decoder(5).recording(list("abcdef"))
    assert recording["encoder.layers.self_attn"].queries.texts == tuple("abcdef")
    assert recording["decoder.layers.self_attn"].queries.texts == tuple("01234")
    assert recording["decoder.layers.multihead_attn"].queries.texts == tuple("01234")
    assert recording["decoder.layers.multihead_attn"].keys.texts == tuple("abcdef")


def test_report_names_the_way_to_choose_a_sequence():
    model = OwnModel()
    with torch.no_grad(), watch(model) as seen:
        model(torch.randn(2, 7, MODEL_DIM))
    with pytest.raises(ValueError, match=r"choose one with seen.recording\(batch=0\), which report\(\) and view\(\)"):
        report(seen)
    assert report(seen.recording(tokens=list("abcdefg"), batch=0)).html


# -- indices of layers and heads ---------------------------------------------------------------------------------


def watched_encoder(**options):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 4).eval()
    with torch.no_grad(), watch(model, **options) as seen:
        model(torch.randn(1, 6, 16))
    return seen


def test_summary_has_the_indices_of_chosen_layers_and_heads():
    seen = watched_encoder(layers=[2, 3], heads=[1, 3], entropy=True, pool=(4, 4))
    table = seen.summary().to_dict()
    assert table["layer"] == [2, 2, 3, 3]
    assert table["head"] == [1, 3, 1, 3]
    html = seen._repr_html_()
    assert "<th>3</th>" in html
    assert "layers.self_attn 2.1" in html
    with pytest.raises(KeyError, match=r"layer is .* 0\); expected \(stack, layer\) with 'layers.self_attn' 2 to 3"):
        seen.summary()[0]
    with pytest.raises(ValueError, match="summary has some layers or heads of 'layers.self_attn'; expected all"):
        seen.summary().to_sums()


def test_modules_chosen_by_name_keep_their_index():
    seen = watched_encoder(where="layers.2*", entropy=True)
    assert seen[2].name == "layers.2.self_attn"
    assert set(seen.summary().to_dict()["layer"]) == {2}
    with pytest.raises(KeyError, match="or a layer from 2 to 2"):
        seen[0]
    both = watched_encoder(where=lambda name: name[7] in "13", layers=[0, 1, 2], entropy=True)
    assert list(both) == ["layers.1.self_attn"]  # `layers` are indices among all modules


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2, 3]}, r"watch kept layers \[2, 3\] of 'layers.self_attn'; expected all layers, or the first"),
        ({"where": "layers.2*"}, r"watch kept layers \[2\] of 'layers.self_attn'"),
        ({"heads": [1, 3]}, r"layers.0.self_attn: watch kept heads \[1, 3\]; expected all heads, or the first ones"),
    ],
)
def test_recordings_with_other_indices_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        watched_encoder(**options).recording()


def test_recordings_of_the_first_layers_and_heads():
    recording = watched_encoder(layers=slice(2), heads=slice(3)).recording()
    assert [layer.shape[1] for layer in recording["layers.self_attn"].layers] == [3, 3]


def test_means_over_no_queries_are_nan():
    seen = watched_encoder(queries=slice(50, 60), entropy=True)
    assert seen[0].queries == 0
    assert seen[0].means["entropy"].isnan().all()
    assert "no queries" in seen._repr_html_()
