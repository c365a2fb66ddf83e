"""Extra keyword arguments that models pass to their attention function."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from clearhead.huggingface._transformers_internals import ignored_by_eager

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


def refuse_unsupported(module: nn.Module, arguments: dict[str, Any]) -> None:
    """Raise for an argument that may change what attention means.

    An argument that the model's own eager attention ignores has passed through from the user's call, such as `labels`
    given to a model without a head; it is ignored here too.
    """
    for name, value in arguments.items():
        if value is None or name in HARMLESS or name.startswith("output_"):
            continue
        if name in MEANINGFUL or not ignored_by_eager(type(module), name):
            raise ValueError(
                f"{type(module).__name__} gives its attention {name}={_short(value)}, which clearhead does not support;"
                f" choose another attn_implementation, or leave {name} out if you gave it"
            )


def _short(value: object) -> str:
    return f"<tensor {list(value.shape)}>" if isinstance(value, Tensor) else repr(value)[:40]
