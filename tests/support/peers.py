"""The numerics rule for whole models: float64 as the truth, the peer's own error as the yardstick."""

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
    """Assert that `got` has at most twice the error of `peer(*inputs)`, judged by the peer in float64.

    `got` and the peer's result are tensors, or the same nesting of tensors. The inputs are modules, tensors and
    containers of them. `scale` is that of `assert_matches`: one number, or a nesting of numbers as `got` has tensors.

    All errors of a deep model may come from a few early roundings, so one run of the peer may be exact by luck. Where
    `got` is worse, it is judged by the worst of several runs, on inputs that differ in their last place.
    """
    exact, naive = truth_of(peer, *inputs), peer(*inputs)
    assert tree_structure(got) == tree_structure(naive) == tree_structure(exact)
    scales = tree_leaves(tree_map(lambda _: scale, got) if isinstance(scale, float) else scale)
    truths, runs = _detached(exact), [_detached(naive)]
    largest = max(_largest(truth) for truth in truths)
    apart = max(_largest(one - truth) for one, truth in zip(runs[0], truths, strict=True))
    assert apart <= 0.01 * largest, "the peer computes something else in float64"
    for place, (path, mine) in enumerate(tree_flatten_with_path(got)[0]):
        try:
            assert_matches(mine.detach(), truths[place], runs[0][place], scale=scales[place])
        except AssertionError:
            if len(runs) == 1:
                runs += [_detached(peer(*_moved(inputs, seed))) for seed in range(NEIGHBORS)]
            worst = max((run[place] for run in runs), key=lambda run: _largest(run - truths[place]))
            try:
                assert_matches(mine.detach(), truths[place], worst, scale=scales[place])
            except AssertionError as error:
                raise AssertionError(f"{keystr(path) or 'result'}: {error}") from error


def truth_of(peer: Callable, *inputs: Any) -> Any:
    """Return `peer(*inputs)` computed in float64, also where a model of transformers casts to float32."""
    wide = doubled(inputs)
    # the mode would take torch's own modules off their fast paths, which give 0 at padding
    theirs = any(type(leaf).__module__.startswith("transformers.") for leaf in tree_leaves(wide))
    with _WithoutFloat32() if theirs else nullcontext():
        return peer(*wide)


def doubled(values: Any) -> Any:
    """Copy modules and floating-point tensors, in any container, to float64."""

    return _copied(values, nn.Module.double, Tensor.double)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of each submodule's parameters as one vector."""
    return by_module({name: p.grad for name, p in module.named_parameters() if p.grad is not None})


def by_module(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the tensors, named as parameters are, of each submodule to one vector.

    A bias may have a gradient that cancels to 0. Its rounding error is then judged by the weight's, whose gradient is
    a sum of the same terms.
    """
    found: dict[str, list[Tensor]] = {}
    for name, tensor in named.items():
        found.setdefault(name.rpartition(".")[0], []).append(tensor.flatten())
    return {name: torch.cat(parts) for name, parts in found.items()}


def _detached(values: Any) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(values)]


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _moved(values: Any, seed: int) -> Any:
    """Copy modules and floating-point tensors with every number moved by at most one last place."""
    generator = torch.Generator().manual_seed(seed)

    def moved(tensor: Tensor) -> Tensor:
        steps = torch.randint(-1, 2, tensor.shape, generator=generator)
        neighbor = tensor * (1 + steps * torch.finfo(tensor.dtype).eps)
        return torch.where(neighbor.isfinite(), neighbor, tensor)  # the lowest number, as masks have it, stays

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
    """Keep float64 where a model casts to float32, as in softmax and in norms."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = Tensor.double if func is Tensor.float else func
        args, kwargs = tree_map_only(
            torch.dtype, lambda dtype: torch.float64 if dtype == torch.float32 else dtype, (args, kwargs or {})
        )
        return func(*args, **kwargs)
