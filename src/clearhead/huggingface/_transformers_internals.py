"""Undocumented internals of transformers that clearhead relies on. `TESTED` has the last version that was tested.

Check this file first after an upgrade of transformers. Each docstring names what the function relies on.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import transformers
from torch import nn
from transformers import masking_utils
from transformers.models.auto import modeling_auto

from clearhead._utils.tested_versions import warn_if_untested

warn_if_untested("transformers", transformers.__version__)
try:
    from transformers.utils.output_capturing import _active_collector
except ImportError:  # moved in another version: weights are then always returned, which is correct but slower
    _active_collector = None

INTERFACE = "ALL_ATTENTION_FUNCTIONS"  # name, in modeling code, of the dictionary of attention functions
EAGER = "eager_attention_forward"  # name, in modeling code, of the eager attention function
OUTPUT_CAPTURING = "transformers.utils.output_capturing"


def set_implementation(config: Any, name: str | None) -> None:
    """Set the attention implementation of one configuration, without the checks of `set_attn_implementation`.

    Relies on the attribute `_attn_implementation_internal` behind the property `_attn_implementation`.
    """
    config._attn_implementation_internal = name


def get_implementation(config: Any) -> str | None:
    """Return the attention implementation of a configuration; None for an object without one."""
    return getattr(config, "_attn_implementation", None)


def has_implementation(config: Any) -> bool:
    """Return whether an object is a configuration with an attention implementation."""
    return hasattr(config, "_attn_implementation")


def collects_attentions() -> bool:
    """Return whether the running model collects attention weights for its output.

    Relies on the context variable `_active_collector` of `output_capturing`. The variable is None for older model
    classes and for a module that is called directly. Both return the weights, so the result is True.
    """
    collected = None if _active_collector is None else _active_collector.get()
    return collected is None or any(name.endswith("attentions") for name in collected)


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether a module has forward hooks, without those by which transformers collects outputs.

    Relies on the Python module of transformers' hooks, which stay on the module after the first use.
    """
    return any(getattr(hook, "__module__", None) != OUTPUT_CAPTURING for hook in module._forward_hooks.values())


@functools.cache
def uses_interface(module_class: type[nn.Module]) -> bool:
    """Return whether a module calls the attention function of transformers' AttentionInterface.

    Relies on the global name `ALL_ATTENTION_FUNCTIONS` in the code of one of its methods.
    """
    methods = (inspect.unwrap(method) for method in vars(module_class).values() if inspect.isfunction(method))
    looked_up = any(INTERFACE in method.__code__.co_names for method in methods)
    if looked_up or "forward" in vars(module_class):
        return looked_up
    bases = (base for base in module_class.__mro__[1:] if issubclass(base, nn.Module) and "forward" in vars(base))
    return any(uses_interface(base) for base in bases)


@functools.cache
def runs_own_attention(config_class: type) -> bool:
    """Return whether the modeling code of a configuration has attention modules and no AttentionInterface.

    Relies on the names of the files `configuration_x.py` and `modeling_x.py`.
    """
    code = sys.modules.get(config_class.__module__.replace(".configuration_", ".modeling_"))
    if code is None or INTERFACE in vars(code):
        return False
    return any("Attention" in name and _is_module(value) for name, value in vars(code).items())


def _is_module(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


@functools.cache
def makes_masks(module_class: type[nn.Module]) -> bool:
    """Return whether the modeling code of a module imports transformers' mask functions.

    clearhead's mask function never returns None. If the code imports mask functions, None therefore comes from the
    model itself and allows every key, as in eager attention. BridgeTower relies on this in modules with
    `is_causal = True`. Otherwise None has the meaning that sdpa gives it: causal if the module's `is_causal` is True.
    """
    names = vars(sys.modules[module_class.__module__]) if module_class.__module__ in sys.modules else {}
    return any(getattr(value, "__module__", None) == masking_utils.__name__ for value in names.values())


@functools.cache
def ignored_by_eager(module_class: type[nn.Module], argument: str) -> bool:
    """Return whether the eager attention of a module accepts an argument in its `**kwargs` and ignores it.

    Relies on the function's name, `eager_attention_forward`, and on the constants in its code.
    """
    eager = getattr(sys.modules.get(module_class.__module__), EAGER, None)
    if not inspect.isfunction(eager):
        return False
    parameters = inspect.signature(eager).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return takes_any and argument not in parameters and argument not in inspect.unwrap(eager).__code__.co_consts


def causal_model_classes() -> dict[str, str]:
    """Return the names of classes with a causal language-model head, by model type.

    Relies on the dictionary behind `AutoModelForCausalLM`.
    """
    return {str(kind): str(name) for kind, name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}


def masked_model_classes() -> dict[str, str]:
    """Return the names of classes with a masked language-model head, by model type.

    Relies on the dictionary behind `AutoModelForMaskedLM`.
    """
    return {str(kind): str(name) for kind, name in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.items()}


def mask_factory(function: Callable[..., Any]) -> str | None:
    """Return the name of the `masking_utils` function that created a mask function; None for any other.

    Relies on `__qualname__`, such as "sliding_window_overlay.<locals>.inner_mask".
    """
    if getattr(function, "__module__", "") != masking_utils.__name__:
        return None
    return getattr(function, "__qualname__", "").partition(".<locals>.")[0]


def closure(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables that a function closes over, by name."""
    cells = getattr(function, "__closure__", None) or ()
    code = getattr(function, "__code__", None)
    return dict(zip(code.co_freevars if code else (), (cell.cell_contents for cell in cells), strict=True))
