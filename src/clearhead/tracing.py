"""Knowing when values are not there to be looked at."""

import torch


def traced() -> bool:
    """Whether tensors may be stand-ins: while compiling or tracing, or under vmap and its like.

    Their values cannot be looked at then, and writing into other tensors (`out=`) is not supported.
    """
    transformed = torch._C._functorch.peek_interpreter_stack()  # pyright: ignore[reportAttributeAccessIssue]
    return transformed is not None or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
