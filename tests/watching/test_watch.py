"""Tests of `watch`: what it returns, what it keeps, its arguments and its errors."""

import copy
import gc
import sys
import threading
import types
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from clearhead import watch
from support.watched_models import HEADS, MODEL_DIM, OwnModel, weights_of_calls

LENGTH = 7


def model_and_input(dropout=0.0):
    torch.manual_seed(0)
    return OwnModel(dropout).double(), torch.randn(2, LENGTH, MODEL_DIM, dtype=torch.float64)


def run(model, x, **options):
    with watch(model, **options):
        model(x)


def test_mapping_of_names_and_layers():
    model, x = model_and_input()
    with watch(model) as seen:
        assert len(seen) == 0
        model(x)
        assert len(seen) == 2  # also within the block
    assert list(seen) == ["layers.0", "layers.1"]
    assert seen[1] is seen["layers.1"]
    assert seen["layers", 1] is seen[1]
    assert seen[1].weights is seen[1].calls[-1].weights
    assert "layers.0" in seen
    assert repr(seen) == "Seen(OwnModel: 2 attention modules, 4 calls)"
    assert seen[-2] is seen[0]
    for key in ("layers", 2, -3, ("layers", 2), None):
        with pytest.raises(KeyError, match="expected one of 2 names"):
            seen[key]


def test_statistics_are_reduced_while_the_model_runs():
    model, x = model_and_input()
    with watch(model) as lazy:
        model(x)
    with watch(model, entropy=True, received=True, distance=True, peak=True, top=2, spans={"start": (0, 2)}) as seen:
        model(x)
    for name, watched in seen.items():
        for call, kept in zip(watched.calls, lazy[name].calls, strict=True):
            weights = kept.weights
            torch.testing.assert_close(call.entropy, weights.entropy())
            torch.testing.assert_close(call.received, weights.received())
            torch.testing.assert_close(call.distance, weights.distance())
            torch.testing.assert_close(call.peak, weights.peak())
            torch.testing.assert_close(call.mass, weights.mass([(0, 2)]))
            torch.testing.assert_close(call.top.weights, weights.topk(2).weights)
            with pytest.raises(AttributeError, match="statistics or `each` were requested"):
                call.weights  # noqa: B018
            with pytest.raises(
                AttributeError, match=r"pooled was not requested; pass pool=\(rows, cols\) to watch\(\)"
            ):
                call.pooled  # noqa: B018
        entropies = torch.cat([call.entropy for call in watched.calls], dim=2)
        torch.testing.assert_close(watched.means["entropy"], entropies.mean(dim=(0, 2)))
        assert watched.queries == 2 * 2 * LENGTH
    table = seen.summary().to_dict()
    assert table["stack"][0] == "layers"
    assert len(table["entropy"]) == 2 * HEADS


def test_keeps_neither_queries_nor_keys_with_statistics():
    model, x = model_and_input()
    kept = []
    handle = model.layers[0].query.register_forward_hook(lambda m, i, o: kept.append(weakref.ref(o)))
    with torch.no_grad(), watch(model, entropy=True):
        model(x)
        gc.collect()
        assert kept[0]() is None
    handle.remove()


@pytest.mark.parametrize("where", ["layers.1", "*.1", lambda name: name.endswith("1")])
def test_where_chooses_modules(where):
    model, x = model_and_input()
    with watch(model, where=where) as seen:
        model(x)
    assert list(seen) == ["layers.1"]
    assert seen[1].name == "layers.1"  # numbered among all attention modules
    assert seen[1].layer == 1
    assert seen["layers", 1] is seen[-1]


@pytest.mark.parametrize("where", ["first", "second", lambda name: name == "second"])
def test_where_matches_any_name_of_a_shared_module(where):
    _, x = model_and_input()
    shared = OwnModel().double().layers[0]
    model = nn.ModuleDict({"first": shared, "second": shared})
    with watch(model, where=where) as seen:
        model["second"](x)
    assert list(seen) == ["first"]


@pytest.mark.parametrize(("layers", "names"), [(1, ["layers.1"]), ([0], ["layers.0"]), (slice(1, None), ["layers.1"])])
def test_layers_choose_by_order_of_execution(layers, names):
    model, x = model_and_input()
    with watch(model, layers=layers) as seen:
        model(x)
    assert list(seen) == names
    assert seen[int(names[0][-1])].name == names[0]


def test_heads_and_queries_choose_parts():
    model, x = model_and_input()
    with watch(model) as whole:
        model(x)
    with watch(model, heads=[0, 3], queries=slice(-2, None)) as seen:
        model(x)
    with watch(model, heads=1, queries=slice(-3, None), entropy=True) as reduced:
        model(x)
    for name, watched in seen.items():
        expected = whole[name].weights.dense()
        torch.testing.assert_close(watched.weights.dense(), expected[:, [0, 3], -2:])
        entropy = torch.special.entr(expected[:, 1:2, -3:]).sum(dim=-1)
        torch.testing.assert_close(reduced[name].calls[-1].entropy, entropy)
        assert reduced[name].queries == 2 * 2 * 3


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_keep_is_the_number_of_last_calls(keep):
    model, x = model_and_input()
    with watch(model, entropy=True) as every:
        model(x)
        model(2 * x)
    with watch(model, entropy=True, keep=keep) as seen:
        model(x)
        model(2 * x)
    for name, watched in seen.items():
        assert len(watched.calls) == min(keep, 4)
        for call, expected in zip(watched.calls, list(every[name].calls)[4 - keep :], strict=True):
            assert torch.equal(call.entropy, expected.entropy)
        assert torch.equal(watched.means["entropy"], every[name].means["entropy"])
    if not keep:
        with pytest.raises(AttributeError, match="layers.0: no call was kept"):
            seen[0].weights  # noqa: B018


def test_each_receives_name_and_weights():
    model, x = model_and_input()
    with watch(model, each=lambda name, weights: (name, weights[0, 0, -1].argmax().item())) as seen:
        model(x)
    with watch(model) as lazy:
        model(x)
    for name, watched in seen.items():
        expected = [(name, call.weights.dense()[0, 0, -1].argmax().item()) for call in lazy[name].calls]
        assert [call.result for call in watched.calls] == expected


def test_memory_bound_has_an_estimate():
    model, x = model_and_input()
    with pytest.raises(ValueError, match=r"watch keeps .* more than max_bytes=4000 .*2 × OwnAttention keeps about"):
        run(model, torch.randn(8, 32, MODEL_DIM, dtype=torch.float64), max_bytes=4000)
    with pytest.raises(ValueError, match=r"of 1 call, more than max_bytes=1000 \(1,000 B\).* Request statistics"):
        run(model, x, max_bytes=1000)
    with pytest.raises(ValueError, match=r"keeps about \S+ \S+ Choose modules with where="):
        run(model, x, max_bytes=10, entropy=True)
    with watch(model, max_bytes=40_000, keep=1) as seen:  # calls that are dropped no longer count
        for _ in range(5):
            model(x)
    assert len(seen[0].calls) == 1


@pytest.mark.parametrize(("keep", "where"), [(None, " in sequence 1"), (2, " in sequence 1"), (1, ""), (0, "")])
def test_first_read_of_nan_names_the_module_and_the_call(keep, where):
    model, x = model_and_input()
    with watch(model, entropy=True, distance=True, keep=keep) as seen:
        model(x)
        calls = seen[0].summary.call_count
        x[1, 3] = torch.nan
        model(x)
    assert calls == 2
    message = rf"^layers.1: the statistics of call {calls} are NaN{where}, so means and maxima over all calls are NaN"
    with pytest.warns(UserWarning, match=message):
        assert seen[1].means["entropy"].isnan().all()
    assert seen[0].means["distance"].isnan().all()  # a second warning would be an error
    seen.summary().to_dict()
    seen.summary().to_sums()


def test_warning_of_nan_names_all_sequences():
    model, x = model_and_input()
    x[:, 3] = torch.nan
    with watch(model, entropy=True) as seen:
        model(x)
    with pytest.warns(UserWarning, match="of call 0 are NaN in sequences 0 to 1, so"):
        assert seen[0].means["entropy"].isnan().all()


def test_statistics_without_nan_do_not_warn():
    model, x = model_and_input()
    with watch(model, entropy=True) as seen:
        model(x)
    assert seen[0].means["entropy"].isfinite().all()
    assert seen[0].summary.calls_before_nan == seen[0].summary.call_count


@pytest.mark.parametrize("length", [1, 7, 611])
def test_maximum_of_scores_with_nan_is_nan(length):
    class Layer(nn.Module):
        def forward(self, query, key, mask=None):
            return functional.scaled_dot_product_attention(query, key, key, mask)

    layer, query, key = Layer(), torch.randn(1, 2, length, 8), torch.randn(1, 2, 13, 8)
    query[0, 1, 0, 3] = torch.nan
    for mask in (None, torch.rand(length, 13) > 0.2):
        with torch.no_grad(), watch(layer, peak=True, entropy=True) as seen:
            layer(query, key, mask)
        with pytest.warns(UserWarning, match=r"^Layer: the statistics of call 0 are NaN in sequence 0, so means"):
            assert seen[0].maxima["peak"].isnan().tolist() == [False, True]
        assert seen[0].means["entropy"].isnan().tolist() == [False, True]
        assert seen[0].queries == length


def test_values_are_kept_on_request():
    model, x = model_and_input()
    with watch(model, values=True) as seen:
        model(x)
    assert seen[0].weights.value.shape == (2, 2, LENGTH, 8)
    with watch(model) as seen:
        model(x)
    assert seen[0].weights.value is None


# -- bit for bit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statistics", [{}, {"entropy": True, "top": 1}], ids=["lazy", "statistics"])
@pytest.mark.parametrize("recompute", [False, True], ids=["plain", "checkpoint"])
def test_outputs_gradients_and_random_state_are_equal(statistics, recompute):
    model, x = model_and_input(dropout=0.3)

    def step():
        torch.manual_seed(5)
        model.zero_grad()
        output = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
        output.square().sum().backward()
        return output, [parameter.grad.clone() for parameter in model.parameters()], torch.get_rng_state()

    plain = step()
    with watch(model, **statistics) as outer, watch(model.layers[0]) as inner:
        watched = step()
    for before, after in zip((plain[0], *plain[1], plain[2]), (watched[0], *watched[1], watched[2]), strict=True):
        assert torch.equal(before, after)
    assert [len(outer[name].calls) for name in outer] == [2, 2]  # not again in the recomputation
    assert list(inner) == [""]


def test_weights_are_those_before_dropout():
    model, x = model_and_input(dropout=0.5)
    torch.manual_seed(5)
    expected = weights_of_calls(model, lambda: model(x))
    torch.manual_seed(5)
    with watch(model) as seen:
        model(x)
    for call, weights in zip((c for w in seen.values() for c in w.calls), expected, strict=True):
        torch.testing.assert_close(call.weights.dense(), weights)
        assert not call.weights.requires_grad


def test_each_thread_observes_its_calls():
    model, x = model_and_input()
    counts, barrier = {}, threading.Barrier(2)

    def count(index, passes):
        with torch.no_grad(), watch(model) as seen:
            barrier.wait()
            for _ in range(passes):
                model(x)
            barrier.wait()
        counts[index] = len(seen[0].calls)

    threads = [threading.Thread(target=count, args=(index, index + 1)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {0: 2, 1: 4}
    with torch.no_grad(), watch(model) as seen:  # a thread without a watch is observed
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()
    assert len(seen[0].calls) == 2


def test_functions_are_restored_everywhere():
    original, native = functional.scaled_dot_product_attention, torch._native_multi_head_attention
    model, x = model_and_input()
    module = types.ModuleType("imported_meanwhile")
    with watch(model):
        model(x)
        sys.modules["imported_meanwhile"] = module
        exec("from torch.nn.functional import scaled_dot_product_attention", module.__dict__)
        assert module.scaled_dot_product_attention is not original
    assert functional.scaled_dot_product_attention is original
    assert torch._native_multi_head_attention is native
    assert sys.modules.pop("imported_meanwhile").scaled_dot_product_attention is original
    with pytest.raises(RuntimeError, match="mat1 and mat2"), watch(model):
        model(x[..., :3])
    assert functional.scaled_dot_product_attention is original


def test_a_copy_made_within_the_block_is_not_watched():
    model, x = model_and_input()
    with watch(model) as seen:
        model(x)
        copy.deepcopy(model)(x)
    assert len(seen[0].calls) == 2


# -- errors ------------------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, dim=-1) @ x


class ByHandTimm(ByHand):
    fused_attn = False


@pytest.mark.parametrize(
    ("model", "called", "message"),
    [
        (ByHand(), True, "watch observed no attention of ByHand: no call of scaled_dot_product_attention"),
        (ByHandTimm(), True, r"call timm.layers.set_fused_attn\(True, experimental=True\)"),
        (nn.Linear(3, 3), True, "watch observed no attention of Linear"),
        (OwnModel(), False, "watch observed no attention of OwnModel: it was not called within the block"),
    ],
)
def test_nothing_observed(model, called, message):
    with pytest.raises(ValueError, match=message), watch(model):
        _ = model(torch.randn(3, 3)) if called else None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"where": "encoder.*"}, ValueError, r"where is 'encoder.\*', which matches none of"),
        ({"where": 3}, TypeError, "where is 3; expected a pattern"),
        ({"where": lambda name: False}, ValueError, "where= excludes all modules with attention, such as 'layers.0'"),
        ({"where": "head"}, ValueError, "where is 'head', which matches none of 10 modules, such as 'layers.0'"),
        (
            {"where": "*.query"},
            ValueError,
            r"where='\*.query' matches modules that did not run, or .* ran in 'layers.0'",
        ),
        ({"layers": 5}, ValueError, "layers= excludes all 2 modules"),
        ({"layers": 0, "where": "*.1"}, ValueError, "layers= excludes all modules that where= chooses, .* layer 1"),
        ({"queries": 5}, TypeError, r"queries is 5; expected a slice of step 1, such as slice\(-32, None\)"),
        ({"queries": slice(0, 4, 2)}, ValueError, r"queries is slice\(0, 4, 2\); expected a slice of step 1"),
        ({"each": 3}, TypeError, "each is 3; expected a function"),
        ({"layers": -1}, ValueError, "layers is -1; expected a whole number of at least 0"),
        ({"layers": slice(-2, None)}, ValueError, "the last layer is not known yet"),
        ({"keep": -1}, ValueError, "keep is -1"),
        ({"top": 0}, ValueError, "top is 0; expected a whole number of at least 1"),
        ({"entrophy": True}, TypeError, "entrophy is not a statistic; expected entropy"),
        ({"spans": {"image": (5, 99)}}, ValueError, r"spans\['image'\] is \(5, 99\); expected an end of at most 7"),
        ({"heads": 9}, IndexError, "index 9 is out of range for heads of size 4"),
    ],
)
def test_wrong_arguments(options, error, message):
    model, x = model_and_input()
    with pytest.raises(error, match=message), watch(model, **options):
        model(x)


def test_wrong_models():
    with pytest.raises(TypeError, match="model is 'bert'; expected a torch.nn.Module"), watch("bert"):
        pass


def test_changed_inputs_are_refused():
    class Changing(nn.Module):
        def forward(self, x):
            output = functional.scaled_dot_product_attention(x, x, x)
            x.add_(1)
            return output

    module, x = Changing(), torch.randn(1, 2, 300, 8)
    with torch.no_grad(), watch(module) as seen:
        module(x)
    with pytest.raises(RuntimeError, match=r"query was changed in place .* or request statistics from watch\(\)"):
        seen[0].weights[0, 0, 0]


def test_attention_in_a_compiled_graph_is_refused():
    model, x = model_and_input()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        with pytest.raises(ValueError, match="the model is compiled"), watch(compiled):
            compiled(x)
        with watch(compiled) as seen:  # the original may be called
            model(x)
        assert len(seen) == 2
        with pytest.raises(ValueError, match="in a compiled graph"), watch(model):
            torch.compile(lambda: model(x), backend="eager")()
