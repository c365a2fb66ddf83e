"""Base class of observers of and interventions in the attention of one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from clearhead.watching import _multihead, _operator, _sdpa, flex  # noqa: F401, they register themselves
from clearhead.watching._unwrap import is_compiled, unwrap
from clearhead.watching.adapters import functions_replaced, load_optional
from clearhead.watching.model_adapters import CallPositions, ModelAdapter, adapter_of
from clearhead.watching.observed import ObservedCall


class ModelObserver:
    """Observer of or intervention in the attention calls of one model.

    Attributes:
        verb: name of the public function, for errors.
        participle: what it does to a call, for errors.
        model: the model, without wrappers.
        names: names of its modules, by id.
        adapter: stacks, layers and padding of the model, if a library is known; otherwise None.
        compiled_calls: names of functions that were traced into a compiled graph.
        hidden_calls: ways in which calls ran that have no values to read.
        was_called: whether the model ran.
    """

    verb = "watch"
    participle = "observed"

    def __init__(self, model: Any) -> None:
        load_optional()
        self.model: nn.Module = unwrap(model)
        self.names = {id(module): name for name, module in self.model.named_modules()}
        self.adapter: ModelAdapter | None = adapter_of(self.model)
        self.compiled_calls: set[str] = set()
        self.hidden_calls: set[str] = set()
        self.was_called = False
        self._given = model

    def __deepcopy__(self, memo: object) -> ModelObserver:
        return self  # copying a model copies its forward hooks, which refer to this object

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Replace attention functions within a `with` block, and notice whether the model runs."""
        with ExitStack() as stack:
            if self.adapter is not None:
                stack.enter_context(self.adapter.attached())
            if is_compiled(self._given):
                stack.callback(self._given.register_forward_pre_hook(self._refuse_compiled).remove)
            else:
                stack.callback(self._notice_first_call())
            stack.enter_context(functions_replaced(self.model))
            yield

    def valid_queries(
        self, module: nn.Module, observed: ObservedCall
    ) -> tuple[Bool[Tensor, "batch q_len"] | None, Bool[Tensor, "batch q_len"] | None]:
        """Return which queries of a call are padding, and which are valid: neither padding nor without visible keys.

        Each is None if there is nothing to exclude.
        """
        valid = observed.attending()
        padding = None if self.adapter is None else self.adapter.padding(module, observed)
        if padding is not None:
            valid = ~padding if valid is None else valid & ~padding
        return padding, valid

    def positions(self, module: nn.Module, q_len: int, kv_len: int) -> CallPositions:
        """Return the positions of the queries and keys of a call: rows and columns, if the library is not known."""
        if self.adapter is None:
            return CallPositions(0, q_len, 0, kv_len)
        return self.adapter.positions(module, q_len, kv_len)

    def check_compiled(self) -> None:
        """Raise if attention ran in a compiled graph."""
        if self.compiled_calls:
            raise ValueError(
                f"{type(self.model).__name__} calls {', '.join(sorted(self.compiled_calls))} in a compiled graph, which"
                f" cannot be {self.participle}; call the model without torch.compile, or within"
                " torch.compiler.set_stance('force_eager')"
            )

    def likely_attention(self) -> list[str]:
        """Return the names of modules that are known to compute attention, or whose class is named so, for errors."""
        if self.adapter is not None and (known := self.adapter.modules()):
            return [module.name for module in known]
        return [name for name, module in self.model.named_modules() if _is_named_attention(module)]

    def reason_for_none(self) -> str:
        """Return why no attention call of the model was seen."""
        if any(module._compiled_call_impl is not None for module in self.model.modules()):
            return "its modules are compiled; use it before model.compile(), or a copy that is not compiled"
        if not self.was_called:
            return "it was not called within the block"
        unfused = [name for name, module in self.model.named_modules() if getattr(module, "fused_attn", None) is False]
        if unfused:
            return (
                f"{unfused[0]} multiplies by hand; call timm.layers.set_fused_attn(True, experimental=True) before the"
                " model is created"
            )
        if self.hidden_calls:
            ways = " and ".join(sorted(self.hidden_calls))
            return f"it was called {ways}, where attention is not {self.participle}"
        scripted = [name for name, module in self.model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
        if scripted:
            name = scripted[0] or type(self.model).__name__
            return f"{name} is a TorchScript module, which is not {self.participle}; expected the original module"
        return (
            "no call of scaled_dot_product_attention, nn.MultiheadAttention or flex_attention was observed; attention"
            f" written out as matmul, softmax and matmul is not {self.participle}, nor are functions that a closure or"
            " a helper object holds"
        )

    def _notice_first_call(self) -> Callable[[], None]:
        """Notice whether the model runs at all. Return a function that ends this.

        The hook applies to all modules of the process, so it is removed at the first call. A hook on a module of the
        model would switch off fast paths of torch.
        """

        def notice(module: nn.Module, _: object) -> None:
            if not torch.compiler.is_compiling() and id(module) in self.names:
                self.was_called = True
                hook.remove()

        hook = register_module_forward_pre_hook(notice)
        return hook.remove

    def _refuse_compiled(self, *_: object) -> None:
        raise ValueError(
            f"{self.verb}: the model is compiled, and attention in a compiled graph cannot be {self.participle}; call"
            " the original model, model._orig_mod"
        )


def _is_named_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "attention" in name or "attn" in name
