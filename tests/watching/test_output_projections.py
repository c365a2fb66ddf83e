"""Tests of output projections and value norms in recordings, against the outputs of the attention modules."""

import pytest
import torch

from clearhead import ALiBi, Causal, Recording, attention, record, watch
from clearhead.recording import Stack, output_projection
from clearhead.translation import Translator
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._row_calculation import calculate_row
from clearhead.watching._projections import find_names, projections_of
from support.model_types import tiny
from support.numerics import assert_matches
from support.recordings import tokens
from support.tiny_models import make

IDS = [4, 5, 6, 7, 8, 9, 4]
TEXT = "The cat ate the fish."


class Case:
    """Recorded model, with the input and output of each output projection."""

    def __init__(self, model, modules, run):
        self.model, self.modules = model, modules
        self.calls, handles = {}, []
        for address, name in modules.items():
            output = model.get_submodule(find_names(model, name).output)
            handles.append(output.register_forward_hook(self._keeper(address)))
        self.recording = run()
        for handle in handles:
            handle.remove()

    def _keeper(self, address):
        def keep(module, inputs, output):
            self.calls[address] = (module, inputs[0][0].detach(), output[0].detach())

        return keep


def case(name):
    if name == "en-ja":
        translator = Translator.load()
        modules = {("encoder", 1): "encoder.1.attention", ("cross", 2): "decoder.2.cross"}
        modules |= {("decoder", 0): "decoder.0.attention"}
        return Case(translator.model, modules, lambda: translator.record(TEXT, values=True))
    model = make(name)
    modules = {
        "llama": {("decoder", 1): "model.layers.1.self_attn"},
        "gpt2": {("decoder", 1): "transformer.h.1.attn"},
        "bert": {("encoder", 0): "encoder.layer.0.attention.self"},
    }[name]
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):  # most are 0 at first
            torch.nn.init.normal_(parameter)
    return Case(model, modules, lambda: record(model, input_ids=IDS, values=True))


@pytest.fixture(scope="module", params=["llama", "gpt2", "bert", "en-ja"])
def recorded(request):
    return case(request.param)


def test_value_weighted_maps_are_the_norms_of_a_dense_computation(recorded):
    cache = RecordingCache(recorded.recording)
    for (stack, layer), name in recorded.modules.items():
        assert cache.can_weight_values(stack)
        weights = recorded.recording[stack].layers[layer]
        heads, kv_heads = weights.shape[1], weights.value.shape[1]
        projections = projections_of(recorded.model, name)
        for head in range(heads):
            matrix = projections.output_weight(head).detach().double()
            value = weights.value[0, head * kv_heads // heads]
            exact = weights.part(heads=head).dense()[0, 0].double()[:, :, None] * (value.double() @ matrix)
            exact = exact.norm(dim=-1)
            naive = weights.part(heads=head).dense()[0, 0] * (value @ matrix.float()).norm(dim=-1)
            largest = (value.double() @ matrix).norm(dim=-1).max()
            got = cache.weights((stack, layer, head), value_weighted=True).dense()[0, 0]
            assert_matches(got, exact / largest, naive / largest.float())
            assert got.max() <= 1


def test_projected_rows_add_up_to_the_output_of_the_module(recorded):
    cache = RecordingCache(recorded.recording)
    for (stack, layer), (module, inputs, outputs) in recorded.calls.items():
        heads = recorded.recording[stack].layers[layer].shape[1]
        query = len(recorded.recording[stack].queries) - 2
        total, norms = 0, []
        for head in range(heads):
            address = (stack, layer, head)
            weights, norms_of_keys = recorded.recording.weights(address), cache.value_norms(address)
            output_weight = cache.output_weight(address)
            row = calculate_row(weights, query, 0, value_norms=norms_of_keys, output_weight=output_weight)
            total = total + torch.tensor(row.projected)
            for term in row.terms:
                projected = torch.tensor(term.contribution) @ output_weight
                assert term.projected_norm == pytest.approx(float(projected.norm()), rel=1e-4)
            norms.append(row.projected)
        bias = 0 if getattr(module, "bias", None) is None else module.bias.detach()
        plain = module.weight.detach() if hasattr(module, "nf") else module.weight.detach().T  # Conv1D of GPT-2
        size = inputs[query].abs() @ plain.abs()  # of the terms; the weights are computed again in float32
        assert ((total + bias - outputs[query]).abs() <= 100 * torch.finfo(torch.float32).eps * size).all()
        assert len({tuple(norm) for norm in norms}) == heads


def test_projections_are_references_that_are_not_saved(tmp_path):
    model = make("llama")
    made = record(model, input_ids=IDS, values=True)
    projection = made["decoder"].output_projections[1]
    parameter = model.model.layers[1].self_attn.o_proj.weight
    assert projection.weight.data_ptr() == parameter.data_ptr()
    assert made.to("cpu")["decoder"].output_projections[1] is projection
    cache = RecordingCache(made)
    assert torch.equal(cache.output_weight(("decoder", 1, 3)), parameter.T[24:32])
    made.save(tmp_path / "made.safetensors")
    read = Recording.load(tmp_path / "made.safetensors")
    assert read["decoder"].output_projections is None
    assert torch.equal(read["decoder"].value_norms[1], made["decoder"].value_norms[1])
    row = calculate_row(read.weights(("decoder", 1, 3)), 4, 2, value_norms=read["decoder"].value_norms[1][3])
    assert row.projected is None
    assert row.terms[0].projected_norm > 0
    with torch.no_grad():
        parameter.mul_(2)
    assert not projection.is_unchanged
    assert cache.output_weight(("decoder", 1, 3)) is None
    assert record(model, input_ids=IDS)["decoder"].output_projections is None


def test_long_texts_are_projected_in_parts(monkeypatch):
    made = record(make("llama"), input_ids=IDS * 7, values=True)["decoder"]
    value, projection = made.layers[0].value, made.output_projections[0]
    assert value.shape == (1, 2, 49, 8)
    monkeypatch.setattr(output_projection, "_MAX_PROJECTED", 3 * 32)
    for length in (7, 49):  # the longer one takes the QR decomposition of W_O
        got = projection.value_norms(value[:, :, :length])
        for head in range(4):
            naive = (value[0, head // 2, :length] @ projection.of_head(head)).norm(dim=1)
            exact = (value[0, head // 2, :length].double() @ projection.of_head(head).double()).norm(dim=1)
            assert_matches(got[head], exact, naive, scale=2 * float(exact.max()))


@pytest.mark.parametrize("model_type", ["bitnet", "afmoe"])
@pytest.mark.filterwarnings("ignore")
def test_heads_that_a_norm_or_a_gate_changes_have_no_projection(model_type):
    model, _ = tiny(model_type)
    made = record(model, input_ids=[24, 25, 26, 27, 28], values=True)["decoder"]
    assert made.has_values
    assert made.output_projections is made.value_norms is None
    with pytest.raises(ValueError, match="the recording has no value norms of 'decoder'; expected a recording with"):
        RecordingCache(record(model, input_ids=[24, 25], values=True)).weights(("decoder", 0, 0), value_weighted=True)


def test_watched_models_have_their_projections():
    llama, vit = make("llama"), make("vit")
    attention_layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(1, 7, 32)
    runs = [
        (llama, lambda: llama(input_ids=torch.tensor([IDS])), "decoder", llama.model.layers[1].self_attn.o_proj),
        (attention_layer, lambda: attention_layer(x, x, x, need_weights=False), "attention", attention_layer.out_proj),
    ]
    for model, run, stack, output in runs:
        with torch.no_grad(), watch(model, values=True) as seen:
            run()
        made = seen.recording()[stack]
        assert made.output_projections[-1].weight.data_ptr() == output.weight.data_ptr()
        weights = made.layers[-1]
        torch.testing.assert_close(
            weights.scaled(made.value_norms[-1]).dense(), weights.value_norms(output.weight).dense()
        )
    with torch.no_grad(), watch(llama) as seen:
        llama(input_ids=torch.tensor([IDS]))
    assert seen.recording()["decoder"].value_norms is None
    with torch.no_grad(), watch(vit, values=True) as seen:  # its output projection is outside of the attention module
        vit(pixel_values=torch.randn(1, 3, 32, 32))
    assert seen.recording()["encoder"].has_values


@pytest.mark.parametrize("model_type", ["bitnet", "afmoe"])
@pytest.mark.filterwarnings("ignore")
def test_watched_heads_that_a_norm_or_a_gate_changes_have_no_projection(model_type):
    model, _ = tiny(model_type)
    with torch.no_grad(), watch(model, values=True) as seen:
        model(input_ids=torch.tensor([[24, 25, 26]]))
    assert seen.recording()["decoder"].output_projections is None


def test_hiding_keys_changes_no_other_value_weighted_cell():
    made = record(make("bert"), input_ids=IDS, values=True)
    made["encoder"].value_norms[0][:, 0] *= 100
    cache = RecordingCache(made)
    shown = cache.weights(("encoder", 0, 1), hide=True, value_weighted=True).dense()[0, 0]
    assert shown[:, 0].abs().max() == 0
    norms, plain = made["encoder"].value_norms[0][1], cache.weights(("encoder", 0, 1)).dense()[0, 0]
    torch.testing.assert_close(shown[:, 1:], (plain * norms / norms.max())[:, 1:])
    visible = cache.weights(("encoder", 0, 1), value_weighted=True).dense()[0, 0]
    torch.testing.assert_close(shown[:, 1:], visible[:, 1:])
    overview = cache.overview(("encoder", 0, 1), hide=True, value_weighted=True)
    while not overview.finished:
        overview.advance()
    torch.testing.assert_close(torch.from_numpy(overview.heatmaps.heatmap("max").values), shown)
    scores = overview.heatmaps.heatmap("max").scores[:, 1:]
    expected = made["encoder"].layers[0].scores[0, 1, :, 1:].numpy()
    assert scores == pytest.approx(expected, rel=1e-5)


def test_alibi_gives_no_value_weighted_maps():
    bias = ALiBi(torch.tensor([0.5, 0.25]))
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    weights = attention(query, key, key, bias=bias, mask=Causal(), return_weights="keep_qk")[1]
    stack = Stack((weights,), tokens("abc"), tokens("abc"), value_norms=(torch.ones(2, 3),))
    cache = RecordingCache(Recording("m", {"decoder": stack}))
    assert cache.value_norms(("decoder", 0, 1)).tolist() == [1, 1, 1]
    assert not cache.can_weight_values("decoder")
    with pytest.raises(ValueError, match="value_weighted is True, but the recording has no value norms"):
        cache.weights(("decoder", 0, 1), value_weighted=True)
