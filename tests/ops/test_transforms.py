"""Tests of `attention` under torch.compile, torch.export, torch.func and vmap."""

import functools

import pytest
import torch

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window, attention
from support.backend_checks import DENSE, random_inputs
from support.parameters import slow_except
from support.peers import assert_agrees


@pytest.mark.parametrize("backend", ["streaming", "triton"])
def test_compiled_graph_contains_one_node(backend):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    x = torch.randn(1, 2, 5, 4)
    torch.compile(lambda x: attention(x, x, x, backend=backend), fullgraph=True, backend=keep)(x)
    names = [str(node.target) for node in graphs[0].graph.nodes if "clearhead" in str(node.target)]
    assert names == [f"clearhead.{backend}_forward.default"], names
    torch._dynamo.reset()


def test_func_grad_matches_the_reference():
    x, key = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)

    def gradient(x, key, backend="reference"):
        return torch.func.grad(lambda x: attention(x, key, key, backend=backend).square().sum())(x)

    assert_agrees(gradient(x, key, "streaming"), gradient, x, key)


def test_vmap_and_meta_tensors_are_supported():
    x = torch.randn(3, 1, 2, 5, 4)

    def looped(x):
        return torch.stack([attention(one, one, one, backend="streaming") for one in x])

    assert_agrees(torch.vmap(lambda one: attention(one, one, one, backend="streaming"))(x), looped, x)
    assert attention(*[x[0].to("meta")] * 3, backend="streaming").is_meta


class TestCompile:
    """Tests of `torch.compile(fullgraph=True)`: no graph breaks, the same results and gradients."""

    @pytest.fixture(autouse=True)
    def reset_dynamo(self, monkeypatch):
        torch._dynamo.reset()
        if " " in torch.__file__:  # torch 2.13 does not quote the folder of its libraries when it calls g++
            monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))

    @pytest.mark.parametrize(
        ("options", "backend"),
        slow_except(
            {
                "fused kernel": ({}, "sdpa"),
                "fused kernel with padding": ({"mask": Causal() & Padding([7, 4])}, "sdpa"),
                "documents and softcap": ({"mask": Causal() & Documents([3, 4]), "softcap": 3.0}, "streaming"),
                "several ranges": ({"mask": Window(2) | Prefix(1), "query_start": torch.tensor([0, 1])}, "streaming"),
                "dense": ({"mask": Dense(DENSE[..., :7])}, "reference"),
            },
            "several ranges",
        ),
    )
    def test_compiled_call_matches_eager(self, options, backend):
        def call(query, key, value, sinks):
            extra = {} if backend == "sdpa" else {"sinks": sinks, "bias": ALiBi(sinks.abs())}
            output, weights = attention(query, key, value, **options, **extra, return_weights=True, backend=backend)
            return output.square(), weights

        def results(*inputs, function=call):
            output, weights = function(*inputs)
            gradients = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
            empty, keys = weights.lse == -torch.inf, weights.topk(2).keys
            exact = [t.to(output.dtype) for t in (empty, keys)]
            lse = torch.where(empty, 0.0, weights.lse)
            rounded = [output, lse, weights.dense(), weights.entropy(), *gradients]
            return [*exact, *(t for t in rounded if t is not None)]

        inputs = [torch.randn(2, heads, 7, 5, requires_grad=True) for heads in (6, 3, 3)]
        inputs.append(torch.randn(6, requires_grad=True))
        got = results(*inputs, function=torch.compile(call, fullgraph=True))
        assert_agrees(got, results, *inputs)

    @pytest.mark.slow
    def test_weights_can_be_read_in_a_compiled_graph(self):
        def call(x):
            _, weights = attention(x, x, x, mask=Causal(), return_weights=True)
            return weights[0, 1, 3:9:2], weights.diagonal(-1), weights.dense()

        x = torch.randn(1, 2, 30, 4)
        assert_agrees(torch.compile(call, fullgraph=True)(x), call, x)

    def test_one_exported_graph_serves_all_lengths(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return attention(x, x, x, mask=Window(3))

        length = torch.export.Dim("n", min=2, max=4096)
        program = torch.export.export(Model(), (torch.randn(1, 2, 30, 4),), dynamic_shapes=({2: length},))
        x = torch.randn(1, 2, 1000, 4)
        assert_agrees(program.module()(x), Model(), x)

    def test_compiled_dropout_gives_finite_outputs(self):
        compiled = torch.compile(attention, fullgraph=True)
        output = compiled(*random_inputs(torch.float32), mask=Causal(), dropout=0.5)
        assert output.isfinite().all()
