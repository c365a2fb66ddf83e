"""Tensors of a checkpoint: the weights of a model and the state of its optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def checkpoint_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the tensors by name: `model.NAME` for weights, `optimizer.INDEX.NAME` for the state of a parameter."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    return tensors


def load_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the tensors of a checkpoint. Raise ValueError if they are not finite or do not match the optimizer."""
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has values that are not finite")
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            states.setdefault(int(index), {})[key] = tensor
    _check_states(states, [parameter for group in optimizer.param_groups for parameter in group["params"]])
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_states(states: dict[int, dict[str, Tensor]], parameters: list[Tensor]) -> None:
    """Check the names and shapes of the states. AdamW loads them unchecked and fails later, in `step()`."""
    for index, state in states.items():
        if not 0 <= index < len(parameters):
            raise ValueError(f"optimizer.{index} does not match a parameter; expected 0 to {len(parameters) - 1}")
        shape = tuple(parameters[index].shape)
        expected = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
        actual = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if actual != expected:
            raise ValueError(f"optimizer.{index} is {actual}; expected {expected}")
