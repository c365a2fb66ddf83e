"""Private APIs of torch that clearhead relies on. `TESTED` has the last version that was tested.

Check this file first if a new version of torch breaks clearhead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor, peek_interpreter_stack  # pyright: ignore[reportMissingImports]
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as modules_of_torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_map as tree_map

from clearhead._utils.tested_versions import warn_if_untested

warn_if_untested("torch", torch.__version__)
PLAIN_TENSORS = (Tensor, torch.nn.Parameter)  # other classes, such as FakeTensor, represent tensors in a trace

no_torch_function: Any = torch._C._disabled_torch_function_impl  # as __torch_function__: keeps the subclass
flash_attention_cpu: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_attention_cuda: Any = torch.ops.aten._scaled_dot_product_flash_attention
cudnn_attention: Any = torch.ops.aten._scaled_dot_product_cudnn_attention
# the kernel that scaled_dot_product_attention uses, as the value of an SDPBackend
chosen_kernel: Any = torch._fused_sdp_choice  # pyright: ignore[reportPrivateImportUsage]
native_multi_head_attention: Any = torch._native_multi_head_attention  # pyright: ignore[reportPrivateImportUsage]
native_encoder_layer: Any = torch._transformer_encoder_layer_fwd  # pyright: ignore[reportPrivateImportUsage]
efficient_attention: Any = torch.ops.aten._scaled_dot_product_efficient_attention


def is_traced(tensor: Tensor) -> bool:
    """Return whether a tensor is a placeholder: traced, under vmap, or on the meta device."""
    return type(tensor) not in PLAIN_TENSORS or tensor.is_meta or is_batchedtensor(tensor)


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor is a FakeTensor, which has a shape but no values."""
    return isinstance(tensor, FakeTensor)


def in_functorch_transform() -> bool:
    """Return whether this code runs under vmap, grad or another functorch transform."""
    return peek_interpreter_stack() is not None


def in_dispatch_mode() -> bool:
    """Return whether a mode sees each operation of torch, as `make_fx` does: it would not see other functions."""
    return _get_current_dispatch_mode() is not None


def is_jit_tracing() -> bool:
    """Return whether torch.jit.trace is recording this call."""
    return torch._C._get_tracing_state() is not None


def in_backward_pass() -> bool:
    """Return whether autograd is running this code, such as the recomputation of gradient checkpointing."""
    return torch._C._current_graph_task_id() != -1


def compilation_rules() -> dict[Any, Any]:
    """Return how torch.compile traces each function of torch.

    It looks the functions up by name at the first compilation, and again after a process group was initialized.
    """
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    return get_torch_obj_rule_map()


def discard_compilation_rules() -> None:
    """Make torch.compile look up the functions of torch by name again."""
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    get_torch_obj_rule_map.cache_clear()


def current_cuda_stream(device: torch.device) -> int:
    """Return the address of the current stream. The public way builds an object, which takes 10 times as long."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch._C._cuda_getCurrentRawStream(index)


def version_of(tensor: Tensor) -> int:
    """Return the version counter of a tensor, which in-place operations increment. Inference tensors have none."""
    return tensor._version


def has_forward_hooks(model: nn.Module) -> bool:
    """Return whether a hook runs when a module of a model, or any module of the process, is called."""
    of_all = modules_of_torch._global_forward_hooks or modules_of_torch._global_forward_pre_hooks
    return bool(of_all) or any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
