"""Extra keyword arguments that models pass to their attention function."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from torch import Tensor, nn

EAGER = "eager_attention_forward"  # the name of a model's own plain attention, in its modelling code
# These change which keys a query attends to, in implementations other than eager.
MEANINGFUL = {
    "block_indices", "block_table", "cache", "cu_seq_lens_k", "cu_seq_lens_q", "indices", "max_length_k",
    "max_length_q",
}  # fmt: skip
# These change nothing, also for modules that have no eager attention to compare with.
HARMLESS = {
    "cache_position", "deterministic", "encoder_attention_mask", "encoder_hidden_states", "layer_idx", "logits_to_keep",
    "num_items_in_batch", "past_key_values", "position_embeddings", "position_ids", "return_dict", "token_type_ids",
    "use_cache",
}  # fmt: skip


def refuse_unsupported(module: nn.Module, others: dict[str, Any]) -> None:
    """Raise for an argument that may change what attention means.

    An argument that the model's own eager attention ignores has passed through from the user's call, such as `labels`
    given to a model without a head; it is ignored here too.
    """
    for name, given in others.items():
        if given is None or name in HARMLESS or name.startswith("output_"):
            continue
        if name in MEANINGFUL or not _ignored_by_eager(type(module), name):
            raise ValueError(
                f"{type(module).__name__} gives its attention {name}={_short(given)}, which clearhead does not support;"
                f" choose another attn_implementation, or leave {name} out if you gave it"
            )


@functools.cache
def _ignored_by_eager(kind: type[nn.Module], name: str) -> bool:
    """Return whether the eager attention beside a module swallows an argument in its `**kwargs` and never reads it."""
    code = sys.modules.get(kind.__module__)
    eager = getattr(code, EAGER, None)
    if not inspect.isfunction(eager):
        return False
    parameters = inspect.signature(eager).parameters
    swallows = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return swallows and name not in parameters and name not in inspect.unwrap(eager).__code__.co_consts


def _short(given: object) -> str:
    return f"<tensor {list(given.shape)}>" if isinstance(given, Tensor) else repr(given)[:40]
