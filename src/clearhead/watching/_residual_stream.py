"""Residual stream of a language model: the outputs of its heads, and a check that they are added to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead._utils.checks import describe

ROUNDINGS = 4  # of each term of a sum, in the dtype of the model
States = Float[Tensor, "batch positions model_dim"]


@dataclass(eq=False)
class ResidualStream:
    """Hooks on the blocks of a model, which record one forward pass.

    Attributes:
        outputs: names of the output projections of all attention modules, by the names of their blocks.
        kept: names of the output projections whose inputs are kept.
        heads: kept inputs of the output projections, which are the outputs of all heads, by name.
        final: residual stream after the last block.
        unembedded: input of the unembedding.
        norm: module that computes `unembedded` from `final`; None if they are the same.
        logits: output of the unembedding at the last position.
    """

    model: nn.Module
    blocks: Sequence[str]
    outputs: dict[str, str]
    kept: set[str]
    unembedding: nn.Module
    heads: dict[str, Float[Tensor, "batch positions columns"]] = field(default_factory=dict)
    final: States | None = None
    unembedded: States | None = None
    norm: nn.Module | None = None
    logits: Float[Tensor, "batch vocabulary"] | None = None
    _input: States | None = None
    _terms: list[States] = field(default_factory=list)
    _attention: States | None = None
    _normed: States | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the forward pass within a `with` block."""
        with ExitStack() as stack:
            for name in self.blocks:
                block = self.model.get_submodule(name)
                # registered first, so that a block sees its input before its children run
                stack.callback(block.register_forward_pre_hook(self._enter(name), with_kwargs=True).remove)
                for child in block.children():
                    stack.callback(child.register_forward_hook(self._add_term).remove)
                stack.callback(block.register_forward_hook(self._leave(name)).remove)
            for name in self.outputs.values():
                stack.callback(self.model.get_submodule(name).register_forward_hook(self._keep_heads(name)).remove)
            inside = {id(module) for name in self.blocks for module in self.model.get_submodule(name).modules()}
            for module in self.model.modules():
                if id(module) not in inside and module is not self.unembedding and not [*module.children()]:
                    stack.callback(module.register_forward_hook(self._note_norm).remove)
            stack.callback(self.unembedding.register_forward_hook(self._unembed).remove)
            yield

    def check(self) -> None:
        """Raise unless the pass went through all blocks, a norm and the unembedding."""
        if self.final is None:
            raise ValueError(f"{self._kind} ran without its layers {self.blocks[0]} to {self.blocks[-1]}")
        if self.unembedded is None:
            raise ValueError(f"{self._kind} ran without its unembedding (get_output_embeddings)")
        if self.unembedded.shape != self.final.shape:
            raise ValueError(
                f"the logits are those of {self.unembedded.shape[1]} positions, but the input has"
                f" {self.final.shape[1]}; expected all. Omit logits_to_keep"
            )
        if self.norm is None and not torch.equal(self.unembedded, self.final):
            raise ValueError(
                f"{self._kind} has more than a norm between its last layer and its unembedding; expected only a norm"
            )

    @property
    def _kind(self) -> str:
        return type(self.model).__name__

    def _enter(self, name: str) -> Any:
        def enter(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            entered = _first_tensor([*args, *kwargs.values()])
            before = self.final
            if entered is None:
                raise ValueError(f"{name} has no tensor as input; expected the residual stream")
            if before is not None and not _is_same(entered, before):
                raise ValueError(f"the input of {name} is not the output of the layer before it, but another tensor")
            self._input, self._terms, self._attention = entered, [], None

        return enter

    def _add_term(self, _: nn.Module, args: tuple, output: Any) -> None:
        term, entered = _first_tensor([output]), self._input
        if term is not None and entered is not None and term.numel() == entered.numel():
            self._terms.append(term.reshape(entered.shape).clone())  # a block may add to it in place

    def _keep_heads(self, name: str) -> Any:
        def keep(_: nn.Module, args: tuple, output: Tensor) -> None:
            if self._attention is not None:
                raise ValueError(f"{name} runs several times in one pass; expected one call per layer")
            self._attention = output.clone()
            if name in self.kept:
                self.heads[name] = args[0]

        return keep

    def _leave(self, name: str) -> Any:
        def leave(_: nn.Module, args: tuple, output: Any) -> None:
            left, entered = _first_tensor([output]), self._input
            if left is None or entered is None or left.shape != entered.shape:
                raise ValueError(f"the output of {name} is {describe(left)}; expected a tensor like its input")
            required = [entered]
            if name in self.outputs:
                if self._attention is None or self._attention.numel() != entered.numel():
                    raise ValueError(f"{name} did not call {self.outputs[name]} on the whole residual stream")
                required.append(self._attention.reshape(entered.shape))
            if not _is_sum(left, required, self._terms):
                raise ValueError(
                    f"the output of {name} is not its input plus the outputs of"
                    f" {self.outputs.get(name, 'its children')} and another child; expected attention that is added to"
                    " the residual stream without a norm or a factor"
                )
            self.final, self._terms = left, []

        return leave

    def _note_norm(self, module: nn.Module, args: tuple, output: Any) -> None:
        is_tensor = bool(args) and isinstance(args[0], Tensor) and isinstance(output, Tensor)
        if is_tensor and output.shape == args[0].shape and _is_same(args[0], self.final):
            self.norm, self._normed = module, output

    def _unembed(self, _: nn.Module, args: tuple, output: Tensor) -> None:
        self.unembedded, self.logits = args[0], output[:, -1]
        if not _is_same(args[0], self._normed):
            self.norm = None


def _is_sum(result: States, required: list[States], optional: list[States]) -> bool:
    """Return whether a tensor is the sum of all required and at most two optional terms, up to rounding."""
    rounding = ROUNDINGS * torch.finfo(result.dtype).eps
    required = [term.float() if term.dtype.itemsize < 4 else term for term in required]
    rest, size = result - sum(required), result.abs() + sum(term.abs() for term in required)
    choices = [chosen for count in range(3) for chosen in combinations(optional, count)]
    return any(
        bool(((rest - sum(chosen)).abs() <= rounding * (size + sum(term.abs() for term in chosen))).all())
        for chosen in choices
    )


def _is_same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and (tensor is other or torch.equal(tensor, other))


def _first_tensor(values: Sequence[Any]) -> Tensor | None:
    """Return the first floating-point tensor among values, or in a tuple among them."""
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
        if isinstance(value, tuple | list) and (inner := _first_tensor(value)) is not None:
            return inner
    return None
