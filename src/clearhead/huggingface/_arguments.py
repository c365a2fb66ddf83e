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
# These do not affect attention, even in modules without an eager attention function to compare with.
HARMLESS = {
    "cache_position", "deterministic", "encoder_attention_mask", "encoder_hidden_states", "layer_idx", "logits_to_keep",
    "num_items_in_batch", "past_key_values", "position_embeddings", "position_ids", "return_dict", "token_type_ids",
    "use_cache",
}  # fmt: skip


def refuse_unsupported(module: nn.Module, arguments: dict[str, Any]) -> None:
    """Raise for an argument that may change the result of attention.

    Arguments that the model's eager attention ignores are ignored here too. They come from the user's call, such as
    `labels` passed to a model without a head.
    """
    for name, value in arguments.items():
        if value is None or name in HARMLESS or name.startswith("output_"):
            continue
        if name in MEANINGFUL or not ignored_by_eager(type(module), name):
            raise ValueError(
                f"{type(module).__name__} calls attention with {name}={_short(value)}, which clearhead does not"
                f" support; choose another attn_implementation, or omit {name} if you passed it"
            )


def _short(value: object) -> str:
    return f"<tensor {list(value.shape)}>" if isinstance(value, Tensor) else repr(value)[:40]
