"""Numerics rule for whole models: errors against float64 are at most twice those of a peer implementation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map, tree_map_only, tree_structure

from clearhead import ALiBi
from support.numerics import assert_matches

NEIGHBORS = 4


def assert_agrees(got: Any, peer: Callable, *inputs: Any, scale: Any = 0.0) -> None:
    """Assert that `got` has at most twice the error of `peer(*inputs)`, measured against the peer in float64.

    `got` and the peer's result are tensors, or the same nesting of tensors. The inputs are modules, tensors and
    containers of them. `scale` is the argument of `assert_matches`: one number, or the same nesting of numbers.

    All errors of a deep model may come from a few early roundings, so one run of the peer may be exact by luck. If
    `got` is worse, it is compared with the worst of several runs, on inputs that differ by one ulp.
    """
    exact, naive = truth_of(peer, *inputs), peer(*inputs)
    assert tree_structure(got) == tree_structure(naive) == tree_structure(exact)
    scales = tree_leaves(tree_map(lambda _: scale, got) if isinstance(scale, float) else scale)
    truths, runs = _detached(exact), [_detached(naive)]
    largest = max(_largest(truth) for truth in truths)
    apart = max(_largest(one - truth) for one, truth in zip(runs[0], truths, strict=True))
    assert apart <= 0.01 * largest, "the peer computes something else in float64"
    for index, (path, mine) in enumerate(tree_flatten_with_path(got)[0]):
        try:
            assert_matches(mine.detach(), truths[index], runs[0][index], scale=scales[index])
        except AssertionError:
            if len(runs) == 1:
                runs += [_detached(peer(*_moved(inputs, seed))) for seed in range(NEIGHBORS)]
            worst = max((run[index] for run in runs), key=lambda run: _largest(run - truths[index]))
            try:
                assert_matches(mine.detach(), truths[index], worst, scale=scales[index])
            except AssertionError as error:
                raise AssertionError(f"{keystr(path) or 'result'}: {error}") from error


def truth_of(peer: Callable, *inputs: Any) -> Any:
    """Return `peer(*inputs)` computed in float64, including casts to float32 in models of transformers."""
    wide = doubled(inputs)
    # not for torch's modules: the mode disables their fast paths, which output 0 at padding
    is_transformers = any(type(leaf).__module__.startswith("transformers.") for leaf in tree_leaves(wide))
    with _WithoutFloat32() if is_transformers else nullcontext():
        return peer(*wide)


def doubled(values: Any) -> Any:
    """Copy modules and floating-point tensors, in any container, to float64."""
    return _copied(values, nn.Module.double, Tensor.double)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of each submodule's parameters as one vector."""
    return by_module({name: p.grad for name, p in module.named_parameters() if p.grad is not None})


def by_module(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate the tensors of each submodule into one vector. The names are those of parameters.

    The gradient of a bias may cancel to 0. Its rounding error is then compared with that of the weight, whose gradient
    is a sum of the same terms.
    """
    parts_of: dict[str, list[Tensor]] = {}
    for name, tensor in named.items():
        parts_of.setdefault(name.rpartition(".")[0], []).append(tensor.flatten())
    return {name: torch.cat(parts) for name, parts in parts_of.items()}


def _detached(values: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(values)]


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _moved(values: Any, seed: int) -> Any:
    """Copy modules and floating-point tensors with every number moved by at most one ulp."""
    generator = torch.Generator().manual_seed(seed)

    def moved(tensor: Tensor) -> Tensor:
        steps = torch.randint(-1, 2, tensor.shape, generator=generator)
        neighbor = tensor * (1 + steps * torch.finfo(tensor.dtype).eps)
        return torch.where(neighbor.isfinite(), neighbor, tensor)  # keeps the lowest number, which masks contain

    def moved_module(module: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(moved(parameter))
        return module

    return _copied(values, moved_module, moved)


def _copied(values: Any, modules: Callable[[nn.Module], nn.Module], tensors: Callable[[Tensor], Tensor]) -> Any:
    def changed(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return modules(copy.deepcopy(value))
        if isinstance(value, Tensor) and value.is_floating_point():
            return tensors(value.detach()).requires_grad_(value.requires_grad)
        return ALiBi(changed(value.slopes)) if isinstance(value, ALiBi) else value

    return tree_map(changed, values)


class _WithoutFloat32(TorchFunctionMode):
    """Mode that replaces casts to float32, as in softmax and norms, by float64."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args, kwargs = tree_map_only(
            torch.dtype, lambda dtype: torch.float64 if dtype == torch.float32 else dtype, (args, kwargs or {})
        )
        return func(*args, **kwargs)
