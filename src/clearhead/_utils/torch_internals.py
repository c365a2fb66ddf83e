"""Private APIs of torch, in one place. Checked on torch 2.11 and 2.13.

Look here first when a new version of torch breaks something.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, peek_interpreter_stack  # pyright: ignore[reportMissingImports]
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map as tree_map

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)  # other classes, such as FakeTensor, stand for tensors in a trace

no_torch_function: Any = torch._C._disabled_torch_function_impl  # as __torch_function__: operators see the subclass
flash_attention_cpu: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_attention_cuda: Any = torch.ops.aten._scaled_dot_product_flash_attention
cudnn_attention: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
efficient_attention: Any = torch.ops.aten._scaled_dot_product_efficient_attention


def is_traced(tensor: Tensor) -> bool:
    """Return whether a tensor stands for others: in a trace, under vmap, or without memory."""
    return type(tensor) not in PLAIN_TENSORS or tensor.is_meta or is_batchedtensor(tensor)


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor is a FakeTensor, which has a shape and no values."""
    return isinstance(tensor, FakeTensor)


def in_functorch_transform() -> bool:
    """Return whether code runs under vmap, grad or another functorch transform."""
    return peek_interpreter_stack() is not None


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace records this call."""
    return torch._C._get_tracing_state() is not None


def in_backward_pass() -> bool:
    """Return whether autograd runs this code, as when a checkpoint computes a layer again."""
    return torch._C._current_graph_task_id() != -1


def version_of(tensor: Tensor) -> int:
    """Return the counter that every in-place change of a tensor raises. Inference tensors have none."""
    return tensor._version
