"""Tests of the replacement of functions: nothing stays replaced after the last `watch`."""

import functools
import sys
import types
from types import SimpleNamespace

import torch
from torch.nn import functional

from clearhead.watching import watch

ORIGINAL = SimpleNamespace(sdpa=functional.scaled_dot_product_attention)  # `watch` replaces references in modules


def test_module_imported_between_two_nested_watches_is_restored(monkeypatch):
    layer, x = torch.nn.MultiheadAttention(6, 3), torch.randn(5, 6)
    imported = types.ModuleType("imported_while_watching")
    with watch(layer):
        layer(x, x, x, need_weights=False)
        exec("from torch.nn.functional import scaled_dot_product_attention", vars(imported))
        monkeypatch.setitem(sys.modules, imported.__name__, imported)
        with watch(layer):
            layer(x, x, x, need_weights=False)
        assert imported.scaled_dot_product_attention is not ORIGINAL.sdpa
    assert imported.scaled_dot_product_attention is ORIGINAL.sdpa
    assert functional.scaled_dot_product_attention is ORIGINAL.sdpa


def test_attribute_of_a_model_is_replaced_until_the_outer_watch_ends():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = functional.scaled_dot_product_attention

        def forward(self, x):
            return self.attend(x, x, x)

    layer, x = Layer(), torch.randn(2, 3, 5, 7)
    with watch(layer) as outer:
        with watch(layer):
            layer(x)
        layer(x)
    assert len(outer[0].calls) == 2
    assert layer.attend is ORIGINAL.sdpa


def test_a_wrapper_of_the_user_stays_in_use():
    """Only `torch.compile(function)` is replaced with the function; any other wrapper calls it."""

    @functools.wraps(ORIGINAL.sdpa)
    def doubled(*args):
        return 2 * functional.scaled_dot_product_attention(*args)

    class Layer(torch.nn.Module):
        def forward(self, x):
            return self.attend(x, x, x)

    layer, x = Layer(), torch.randn(2, 3, 5, 7)
    layer.attend = doubled
    with watch(layer) as seen:
        output = layer(x)
        assert layer.attend is doubled
    assert len(seen[0].calls) == 1
    assert torch.equal(output, 2 * ORIGINAL.sdpa(x, x, x))


def test_first_of_two_watches_may_end_first():
    class Layer(torch.nn.Module):
        def forward(self, x):
            return self.attend(x, x, x)

    layer, x = Layer(), torch.randn(2, 3, 5, 7)
    layer.attend = ORIGINAL.sdpa
    first, second = watch(layer), watch(layer)
    first.__enter__()
    seen = second.__enter__()
    layer(x)
    first.__exit__(None, None, None)
    layer(x)
    second.__exit__(None, None, None)
    assert len(seen[0].calls) == 2
    assert layer.attend is ORIGINAL.sdpa


def test_code_that_was_run_by_exec_without_a_name():
    namespace = {}
    source = """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Block(nn.Module):
    def forward(self, x):
        return scaled_dot_product_attention(x, x, x)
"""
    exec(source, namespace)
    block = namespace["Block"]()
    assert type(block).__module__ == "builtins"
    with watch(block) as seen:
        block(torch.randn(1, 2, 5, 8))
    assert list(seen) == [""]
