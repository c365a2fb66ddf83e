"""The numerics rule for whole models: float64 as the truth, the peer's own error as the yardstick."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map, tree_map_only, tree_structure

from harness import assert_matches

NEIGHBORS = 4


def assert_agrees(got: Any, peer: Callable, *inputs: Any, scale: Any = 0.0) -> None:
    """Assert that `got` has at most twice the error of `peer(*inputs)`, judged by the peer in float64.

    `got` and the peer's result are tensors, or the same nesting of tensors. The inputs are modules, tensors and
    containers of them. `scale` is that of `assert_matches`: one number, or a nesting of numbers as `got` has tensors.

    All errors of a deep model may come from a few early roundings, so one run of the peer may be exact by luck. Where
    `got` is worse, it is judged by the worst of several runs, on inputs that differ in their last place.
    """
    exact, naive = truth_of(peer, *inputs), peer(*inputs)
    assert tree_structure(got) == tree_structure(naive)
    scales = tree_leaves(tree_map(lambda _: scale, got) if isinstance(scale, float) else scale)
    truths, runs = tree_leaves(exact), [tree_leaves(naive)]
    for place, (path, mine) in enumerate(tree_flatten_with_path(got)[0]):
        try:
            _judge(mine, truths[place], runs[0][place], scales[place])
        except AssertionError:
            if len(runs) == 1:
                runs += [tree_leaves(peer(*_moved(inputs, seed))) for seed in range(NEIGHBORS)]
            worst = max((run[place] for run in runs), key=lambda run: float((run.detach() - truths[place]).abs().max()))
            try:
                _judge(mine, truths[place], worst, scales[place])
            except AssertionError as error:
                raise AssertionError(f"{keystr(path) or 'result'}: {error}") from error


def truth_of(peer: Callable, *inputs: Any) -> Any:
    """Return `peer(*inputs)` computed in float64."""
    wide = doubled(inputs)
    with _WithoutFloat32():
        return peer(*wide)


def doubled(values: Any) -> Any:
    """Copy modules and floating-point tensors, in any container, to float64."""

    def wide(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return copy.deepcopy(value).double()
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.detach().double().requires_grad_(value.requires_grad)
        return value

    return tree_map(wide, values)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of each submodule's parameters as one vector.

    A bias may have a gradient that cancels to 0. Its rounding error is then judged by the weight's, whose gradient is
    a sum of the same terms.
    """
    found: dict[str, list[Tensor]] = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            found.setdefault(name.rpartition(".")[0], []).append(parameter.grad.flatten())
    return {name: torch.cat(parts) for name, parts in found.items()}


def _judge(got: Tensor, exact: Tensor, naive: Tensor, scale: float) -> None:
    assert_matches(got.detach(), exact, naive.detach(), scale=scale)


def _moved(values: Any, seed: int) -> Any:
    """Copy modules and floating-point tensors with every number moved by at most one last place."""
    generator = torch.Generator().manual_seed(seed)

    def moved(tensor: Tensor) -> Tensor:
        steps = torch.randint(-1, 2, tensor.shape, generator=generator)
        neighbor = tensor * (1 + steps * torch.finfo(tensor.dtype).eps)
        return torch.where(neighbor.isfinite(), neighbor, tensor)  # the lowest number, as masks have it, stays

    def copied(value: Any) -> Any:
        if isinstance(value, nn.Module):
            value = copy.deepcopy(value)
            with torch.no_grad():
                for parameter in value.parameters():
                    parameter.copy_(moved(parameter))
        elif isinstance(value, Tensor) and value.is_floating_point():
            return moved(value.detach()).requires_grad_(value.requires_grad)
        return value

    return tree_map(copied, values)


class _WithoutFloat32(TorchFunctionMode):
    """Keep float64 where a model casts to float32, as transformers does in softmax and in norms."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args, kwargs = tree_map_only(
            torch.dtype, lambda dtype: torch.float64 if dtype == torch.float32 else dtype, (args, kwargs or {})
        )
        return func(*args, **kwargs)
