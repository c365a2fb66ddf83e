"""Assignment of parameters to modules built on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def assign_parameters(module: ModuleT, parameters: Mapping[str, Tensor], training: bool) -> ModuleT:
    """Assign copies of parameters, with their `requires_grad`, to a module built on the meta device."""
    module.load_state_dict({name: tensor.detach().clone() for name, tensor in parameters.items()}, assign=True)
    for name, tensor in parameters.items():
        module.get_parameter(name).requires_grad_(tensor.requires_grad)
    return module.train(training)
