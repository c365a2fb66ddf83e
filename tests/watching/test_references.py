"""Tests that `watch` replaces a function wherever a model or a Python module refers to it, and restores it exactly."""

import contextlib
import functools
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from clearhead import watch
from clearhead.watching import ablate

GLOBAL_DICT = {"sdpa": functional.scaled_dot_product_attention, "other": None}
GLOBAL_LIST = [functional.relu, functional.scaled_dot_product_attention]
GLOBAL_TUPLE = ("sdpa", functional.scaled_dot_product_attention)
GLOBAL_PARTIAL = functools.partial(functional.scaled_dot_product_attention, is_causal=True)


class FromGlobalDict(nn.Module):
    def forward(self, x):
        return GLOBAL_DICT["sdpa"](x, x, x)


class FromGlobalList(nn.Module):
    def forward(self, x):
        return GLOBAL_LIST[1](x, x, x)


class FromGlobalTuple(nn.Module):
    def forward(self, x):
        return GLOBAL_TUPLE[1](x, x, x)


class FromGlobalPartial(nn.Module):
    def forward(self, x):
        return GLOBAL_PARTIAL(x, x, x)


class FromAttribute(nn.Module):
    attend = functional.scaled_dot_product_attention

    def forward(self, x):
        return self.attend(x, x, x)


class FromStaticMethod(FromAttribute):
    attend = staticmethod(functional.scaled_dot_product_attention)


class FromPartial(FromAttribute):
    attend = functools.partial(functional.scaled_dot_product_attention, scale=0.3)


class FromStaticPartial(FromAttribute):
    attend = staticmethod(functools.partial(functional.scaled_dot_product_attention, scale=0.3))


class FromDict(nn.Module):
    functions = {"sdpa": functional.scaled_dot_product_attention}  # noqa: RUF012

    def forward(self, x):
        return self.functions["sdpa"](x, x, x)


class FromDictOfPartials(FromDict):
    functions = {"sdpa": functools.partial(functional.scaled_dot_product_attention, scale=0.3)}  # noqa: RUF012


class FromTuple(nn.Module):
    functions = (functional.scaled_dot_product_attention,)

    def forward(self, x):
        return self.functions[0](x, x, x)


class FromInstance(nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, x):
        return self.functions[0](x, x, x)


class FromDefault(nn.Module):
    def forward(self, x, attend=functional.scaled_dot_product_attention):
        return attend(x, x, x)


class FromKeywordDefault(nn.Module):
    def forward(self, x, *, attend=functional.scaled_dot_product_attention):
        return attend(x, x, x)


class FromMethodOfBase(FromDict):
    pass


MODELS = [
    FromGlobalDict(), FromGlobalList(), FromGlobalTuple(), FromGlobalPartial(), FromAttribute(), FromStaticMethod(),
    FromPartial(), FromStaticPartial(), FromDict(), FromDictOfPartials(), FromTuple(), FromDefault(),
    FromKeywordDefault(), FromMethodOfBase(), FromInstance([functional.scaled_dot_product_attention]),
    FromInstance((functional.scaled_dot_product_attention, None)),
    FromInstance({0: functional.scaled_dot_product_attention}),
    FromInstance({0: functools.partial(functional.scaled_dot_product_attention, dropout_p=0.0)}),
]  # fmt: skip


def held_values(model):
    """Return all objects from which the functions are reached, which must be the same objects afterwards."""
    values = [*vars(model).values(), GLOBAL_DICT, GLOBAL_LIST, GLOBAL_TUPLE, GLOBAL_PARTIAL, GLOBAL_PARTIAL.func]
    for base in type(model).__mro__[:-2]:
        values += vars(base).values()
    values += [*GLOBAL_DICT.values(), *GLOBAL_LIST, type(model).forward.__defaults__]
    for value in [*values]:
        values += [*value.values()] if type(value) is dict else [*value] if type(value) in (list, tuple) else []
    values += [value.func for value in values if isinstance(value, functools.partial)]
    return values + [value.__kwdefaults__ for value in values if isinstance(value, types.FunctionType)]


@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor")  # of Python 3.13, in FromPartial
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_every_holder_is_replaced_and_restored(model):
    x, before = torch.randn(2, 3, 5, 7), held_values(model)
    plain = model(x)
    with watch(model) as seen:
        with watch(model) as inner:
            assert torch.equal(model(x), plain)
        assert torch.equal(model(x), plain)
    assert (len(seen[""].calls), len(inner[""].calls)) == (2, 1)
    with pytest.raises(TypeError, match="must be Tensor"), watch(model):
        model("text")
    with ablate(model, [(0, 0), (0, 1), (0, 2)]):
        assert not model(x).any()
    after = held_values(model)
    assert all(new is old for new, old in zip(after, before, strict=True))


@pytest.mark.parametrize("wrap", [lambda function: function, lambda function: {"sdpa": function}], ids=["name", "dict"])
def test_name_that_is_bound_again_after_the_first_watch(monkeypatch, wrap):
    """The namespace of the Python module has the same size before and after."""
    library = types.ModuleType("library_of_functions")
    library.attend = None
    monkeypatch.setitem(sys.modules, library.__name__, library)

    class Layer(nn.Module):
        def forward(self, x):
            attend = library.attend or functional.scaled_dot_product_attention
            return (attend["sdpa"] if isinstance(attend, dict) else attend)(x, x, x)

    layer, x = Layer(), torch.randn(2, 3, 5, 7)
    with watch(layer):
        layer(x)
    library.attend = wrap(functional.scaled_dot_product_attention)
    with watch(layer) as seen:
        layer(x)
        library.attend = wrap(functional.scaled_dot_product_attention)  # the wrapper
    assert len(seen[""].calls) == 1
    original = functional.scaled_dot_product_attention
    assert (library.attend["sdpa"] if isinstance(library.attend, dict) else library.attend) is original


def test_function_that_is_bound_within_a_block_is_replaced_by_the_next(monkeypatch):
    original, library = functional.scaled_dot_product_attention, types.ModuleType("library_of_functions")
    library.attend = original
    monkeypatch.setitem(sys.modules, library.__name__, library)

    class Layer(nn.Module):
        def forward(self, x):
            attend = library.attend
            return (attend[0] if isinstance(attend, tuple) else attend)(x, x, x)

    layer, x = Layer(), torch.randn(2, 3, 5, 7)
    with watch(layer) as outer:
        for value in (original, (original,), (original, None)):
            library.attend = value
            with watch(layer) as seen:
                layer(x)
            assert len(seen[""].calls) == 1
    assert library.attend is value
    assert len(outer[""].calls) == 3


def test_attribute_that_is_bound_within_the_block_is_restored():
    class Lazy(nn.Module):
        def forward(self, x):
            self.attend = functional.scaled_dot_product_attention
            return self.attend(x, x, x)

    layer = Lazy()
    with watch(layer):
        layer(torch.randn(2, 3, 5, 7))
    assert layer.attend is functional.scaled_dot_product_attention


def test_a_graph_that_was_compiled_with_a_partial_is_refused_and_stays_valid():
    model, x = FromGlobalPartial(), torch.randn(2, 3, 5, 7)
    compiled = torch.compile(lambda: model(x), backend="eager")
    plain = compiled()
    with pytest.raises(ValueError, match="in a compiled graph"), watch(model):
        compiled()
    assert torch.equal(compiled(), plain)


class Plain(nn.Module):
    def forward(self, x):
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("within_block", [False, True])
def test_attention_compiles_after_torch_compile_looked_functions_up_within_a_block(within_block):
    """`torch.distributed.init_process_group` makes torch.compile look up the functions of torch again, by name."""
    model, x = Plain(), torch.randn(2, 3, 5, 7)
    torch._dynamo.reset()
    if not within_block:
        torch._dynamo.trace_rules.clear_lru_cache()
    with contextlib.suppress(ValueError), watch(model):  # refuses the compiled graph
        model(x)
        if within_block:
            torch._dynamo.trace_rules.clear_lru_cache()
        torch.compile(model, backend="eager")(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model, x: torch.vmap(model)(x), "it was called under torch.vmap or a transform of torch.func, where"),
        (lambda model, x: torch.func.grad(lambda y: model(y).sum())(x), "it was called under torch.vmap or"),
        (lambda model, x: model(x.to("meta")), "it was called on tensors without values"),
        (
            lambda model, x: torch.jit.trace(model, x, check_trace=False),
            "it was called under torch.jit.trace, where attention is not",
        ),
    ],
    ids=["vmap", "grad", "meta", "trace"],
)
@pytest.mark.filterwarnings("ignore")
def test_calls_without_values_are_named_in_the_error(call, message):
    model, x = Plain(), torch.randn(2, 3, 5, 7)
    with pytest.raises(ValueError, match=f"watch observed no attention of Plain: {message}"), watch(model):
        call(model, x)
    with pytest.raises(ValueError, match="where attention is not changed"), ablate(model, [(0, 0)]):
        call(model, x)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_is_named_in_the_error():
    model = nn.Sequential(torch.jit.trace(Plain(), torch.randn(2, 3, 5, 7)))
    with pytest.raises(ValueError, match="0 is a TorchScript module, which is not observed"), watch(model):
        model(torch.randn(2, 3, 5, 7))


def test_function_in_a_closure_is_not_observed():
    attend = functional.scaled_dot_product_attention

    class Closure(nn.Module):
        def forward(self, x):
            return attend(x, x, x)

    model = Closure()
    with pytest.raises(ValueError, match="was observed; .* nor are functions that a closure"), watch(model):
        model(torch.randn(2, 3, 5, 7))
