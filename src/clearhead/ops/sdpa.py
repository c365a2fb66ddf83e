"""Backend `sdpa`: torch's fused kernels with their log-sum-exp, for the masks they support.

CPU: flash attention without a mask, causal from the first key, with hidden keys (the same for every query), with a
dense mask or with a tensor bias.

CUDA: half precision. Without a mask or causal, cuDNN is used if it is faster, otherwise flash attention. Dense masks
and tensor biases use cuDNN. Short texts with hidden keys, as in batches of sentences, use torch's memory-efficient
kernel.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from clearhead._utils.torch_internals import (
    cudnn_attention,
    efficient_attention,
    flash_attention_cpu,
    flash_attention_cuda,
)
from clearhead.ops._mask_cache import cached, current_stream, is_cacheable
from clearhead.ops._precision import without_autocast
from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import OPTIONS, AttentionCall
from clearhead.ops.gpu import gpu_of
from clearhead.ops.masks import And, Causal, Dense, Mask, Or, Padding, Prefix, query_positions
from clearhead.ops.tiled import backend as tiled

HALF_DTYPES = (torch.float16, torch.bfloat16)
MAX_DECODING_QUERIES = 16
MIN_CUDNN_QUERIES = 128  # with fewer queries, cuDNN's planning costs more time than its kernel saves
# Of queries and keys; above it `triton` is faster (benchmarks/hidden_keys.py). At 512 tokens on an H200, torch's
# memory-efficient kernel takes 0.22 ms forward and 0.81 ms with gradients. `triton` takes 0.09 to 0.19 and 0.74 to 1.11
# ms, because the host determines its time.
MAX_HIDDEN_KEY_LENGTH = 512
# Wider heads were not measured with a bias. With heads of 128 and 8,192 tokens on an H200, cuDNN takes 1.66 ms forward
# and 6.49 ms with gradients, `triton` 3.33 and 9.01 ms; with a dense mask 1.53 and 6.15 against 3.44 and 10.7 ms.
MAX_CUDNN_BIAS_WIDTH = 128
CUDNN_ALIGNMENT_BYTES = 16  # of the rows of a bias


class UnsupportedMask(NamedTuple):
    """Reason that shows a mask. It is formatted when it is read, because `auto` only counts the reasons of a call."""

    mask: Mask | None
    supported: str

    def __str__(self) -> str:
        return f"mask {self.mask} is not supported, only {self.supported}"


Reason = str | UnsupportedMask


def unsupported_reasons(call: AttentionCall, task: str = "output") -> list[Reason]:
    if task == "statistics":
        return ["statistics are not supported"]
    batch, _, q_len, kv_len = call.shape
    assert call.value is not None
    reasons: list[Reason] = []
    if 0 in (batch, q_len, kv_len):
        reasons.append(f"batch {batch}, q_len {q_len}, kv_len {kv_len}: torch's kernel crashes on empty axes")
    value_dim, key_dim = call.value.shape[3], call.query.shape[3]
    if value_dim != key_dim:
        reasons.append(f"value_dim is {value_dim}, but key_dim is {key_dim}")
    reasons += [f"{option} is not supported" for option in OPTIONS if getattr(call, option) is not None]
    if call.dropout:
        reasons.append("dropout is not supported by torch's CPU kernel, and not reproducible in its CUDA kernels")
    if isinstance(call.bias, ALiBi):
        reasons.append("ALiBi would require an n × n bias tensor")
    device = call.query.device.type
    if device == "cpu":
        return reasons + _unsupported_cpu(call)
    if device == "cuda":
        return reasons + _unsupported_cuda(call)
    return [*reasons, f"device {device} is neither cpu nor cuda"]


@without_autocast
def attend(
    call: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"] | None]:
    """Return output and log-sum-exp, computed by a fused kernel."""
    assert call.value is not None
    query, key, value = _readable(call.query), _readable(call.key), _readable(call.value)
    causal, rest = _split(call)
    if query.device.type == "cuda":
        if rest is not None and not isinstance(rest, Dense):
            return _attend_hiding(call, query, key, value, rest, with_lse)
        bias = _cudnn_bias(call, rest)
        return _attend_cuda(query, key, value, causal, bias, call.scale, with_lse)
    if not with_lse and rest is None and call.bias is None:
        # torch's public function returns no log-sum-exp, but takes half the time of the kernel's Python binding
        grouped = query.shape[1] != key.shape[1]
        output = scaled_dot_product_attention(query, key, value, is_causal=causal, scale=call.scale, enable_gqa=grouped)
        return output, None
    added = _added(call, rest)
    attn_mask = None if added is None else added.expand(-1, -1, query.shape[2], key.shape[2])
    output, lse = flash_attention_cpu(query, key, value, is_causal=causal, attn_mask=attn_mask, scale=call.scale)
    if with_lse and query.dtype in HALF_DTYPES:
        with torch.no_grad():
            # in half precision the kernel's exp has 20 bits: enough for its output, but not for sums of weights
            lse = tiled.log_sum_exp(call)
    elif with_lse and added is not None:
        lse = torch.where(_has_key(call, added, causal), lse, -torch.inf)  # the kernel returns 0 for empty rows
    return output, lse


def _attend_cuda(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, bias: Tensor | None, scale: float, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    if not _suits_cudnn(query):
        return flash_attention_cuda(query, key, value, is_causal=causal, scale=scale)[:2]
    output, lse = cudnn_attention(
        query, key, value, attn_bias=bias, compute_log_sumexp=True, is_causal=causal, scale=scale
    )[:2]
    return output, lse.squeeze(-1) if with_lse else None


def _attend_hiding(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, rest: Mask, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    added = _hidden_keys(rest, query, key.shape[2])
    bias = added.expand(*query.shape[:3], key.shape[2])
    # the backward pass needs log-sum-exp, so it is always computed; its rows are padded to a multiple of 32
    output, lse = efficient_attention(query, key, value, bias, True, 0.0, False, scale=call.scale)[:2]
    if not with_lse:
        return output, None
    return output, torch.where(_has_key(call, added, False), lse[..., : query.shape[2]], -torch.inf)


def _suits_cudnn(query: Tensor) -> bool:
    """Return whether cuDNN is the fastest kernel (benchmarks/gpu.py, benchmarks/wide_heads.py).

    cuDNN takes 50 ms to plan for every new shape. So it is not used for a KV cache that grows token by token, nor for
    batches of sentences. Heads wider than 128 require Hopper.
    """
    capability = 0 if torch.version.hip is not None else gpu_of(query.device).capability[0]
    widest = {9: 256}.get(capability, 128)
    # torch.compile cannot trace cudnn_sdp_enabled()
    allowed = torch.compiler.is_compiling() or torch.backends.cuda.cudnn_sdp_enabled()
    return capability >= 9 and query.shape[2] >= MIN_CUDNN_QUERIES and query.shape[3] <= widest and allowed


def _readable(tensor: Tensor) -> Tensor:
    """Make the last axis contiguous: these kernels ignore its stride."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _unsupported_cpu(call: AttentionCall) -> list[Reason]:
    if call.mask is None and call.bias is None:
        return []
    causal, rest = _split(call)
    reasons: list[Reason] = []
    if causal and call.scale <= 0:
        reasons.append(f"scale {call.scale:g} with a causal mask: the kernel scales the −inf of the mask, giving nan")
    if not (rest is None or isinstance(rest, Dense) or _hides_keys_only(rest)):
        reasons.append(UnsupportedMask(rest, "None, Causal with query_start=0, Padding or Prefix, or one Dense"))
    if call.tensor_bias is not None:
        reasons += _unsupported_bias(call.tensor_bias, call.query)
        if rest is not None:
            reasons.append("bias and mask together would require an n × n bias tensor")
    return reasons


def _unsupported_bias(bias: Tensor, query: Tensor) -> list[Reason]:
    reasons: list[Reason] = []
    if bias.requires_grad and torch.is_grad_enabled():
        reasons.append("bias requires a gradient, which torch's kernel does not compute")
    if bias.dtype != query.dtype:
        reasons.append(f"bias has dtype {bias.dtype}, but query has {query.dtype}")
    return reasons


def _unsupported_cuda(call: AttentionCall) -> list[Reason]:
    causal, rest = _split(call)
    _, _, q_len, kv_len = call.shape
    bias = call.tensor_bias
    reasons: list[Reason] = []
    if causal and q_len != kv_len and not _suits_cudnn(call.query):
        reasons.append(
            f"causal from the first key with q_len {q_len} and kv_len {kv_len}:"
            " flash attention aligns the last query with the last key"
        )
    if causal and call.scale <= 0:
        reasons.append(f"scale {call.scale:g} with a causal mask is not supported")
    if gpu_of(call.query.device).capability < (8, 0):
        reasons.append("flash attention requires compute capability 8.0 or higher")
    if call.query.dtype not in HALF_DTYPES:
        reasons.append(f"dtype {call.query.dtype} is not float16 or bfloat16")
    if call.query.shape[3] > 256 or call.query.shape[3] % 8:
        reasons.append(f"key_dim {call.query.shape[3]} is over 256 or not a multiple of 8")
    if bias is not None:
        reasons += _unsupported_bias(bias, call.query)
        if call.mask is not None:
            reasons.append("on CUDA bias and mask together are not supported")
        reasons += _unsupported_cudnn_bias(call, bias)
    elif rest is not None:
        if isinstance(rest, Dense) and not causal:
            reasons += _unsupported_cudnn_bias(call, rest.allowed)
        elif _hides_keys_only(rest) and not causal:
            reasons += _unsupported_hiding(call)
        else:
            supported = "None, Causal with query_start=0, Padding or Prefix, or one Dense, on CUDA"
            reasons.append(UnsupportedMask(call.mask, supported))
    return reasons


def _unsupported_cudnn_bias(call: AttentionCall, bias: Tensor) -> list[Reason]:
    """Return why cuDNN does not support a tensor bias, or a dense mask, which becomes one."""
    _, _, q_len, kv_len = call.shape
    reasons: list[Reason] = []
    if torch.compiler.is_compiling() or call.query.shape[3] > MAX_CUDNN_BIAS_WIDTH or not _suits_cudnn(call.query):
        reasons.append(
            "on CUDA a bias or dense mask requires cuDNN: compute capability 9.0 or higher, at least"
            f" {MIN_CUDNN_QUERIES} queries, key_dim up to {MAX_CUDNN_BIAS_WIDTH}, and no compiled graph"
        )
    if bias.shape[2:] != (q_len, kv_len) or kv_len % (CUDNN_ALIGNMENT_BYTES // 2):
        reasons.append(
            f"bias or dense mask has shape {tuple(bias.shape)}; cuDNN requires one row per query and kv_len to be a"
            f" multiple of {CUDNN_ALIGNMENT_BYTES // 2}"
        )
    return reasons


def _unsupported_hiding(call: AttentionCall) -> list[Reason]:
    _, heads, q_len, kv_len = call.shape
    reasons: list[Reason] = []
    if torch.compiler.is_compiling() or max(q_len, kv_len) > MAX_HIDDEN_KEY_LENGTH:
        reasons.append(
            f"on CUDA hidden keys are supported up to {MAX_HIDDEN_KEY_LENGTH} tokens, and not in compiled graphs"
        )
    if heads != call.key.shape[1]:
        reasons.append("on CUDA hidden keys with grouped heads are not supported")
    return reasons


def _split(call: AttentionCall) -> tuple[bool, Mask | None]:
    """Return whether the mask contains Causal with query_start 0, and the remaining mask."""
    mask, start = call.mask, call.query_start
    if mask is None or isinstance(start, Tensor):
        return False, mask
    _, _, q_len, kv_len = call.shape
    if q_len == 1 and isinstance(mask, Causal) and start >= kv_len - 1:
        return False, None  # the last query attends to every key
    if start != 0:
        return False, mask
    if isinstance(mask, Causal):
        return True, None
    if isinstance(mask, And):
        if isinstance(mask.left, Causal):
            return True, mask.right
        if isinstance(mask.right, Causal):
            return True, mask.left
    return False, mask


def _hides_keys_only(mask: Mask) -> bool:
    if isinstance(mask, And | Or):
        return _hides_keys_only(mask.left) and _hides_keys_only(mask.right)
    return isinstance(mask, Padding | Prefix)


def _added(call: AttentionCall, rest: Mask | None) -> Float[Tensor, "#batch #heads #q_len #kv_len"] | None:
    """Return bias or mask as the kernel takes it: a float tensor in the query's dtype that broadcasts."""
    if rest is None:
        return call.tensor_bias
    if isinstance(rest, Dense):
        return _as_bias(rest.allowed, call.query.dtype)
    return _hidden_keys(rest, call.query, call.shape[3])


def _cudnn_bias(call: AttentionCall, dense: Dense | None) -> Float[Tensor, "#batch #heads q_len kv_len"] | None:
    """Return bias or dense mask as cuDNN takes it: a bias with contiguous and aligned rows."""
    if dense is not None:
        return _dense_bias(dense, call.query)
    bias = call.tensor_bias
    if bias is None:
        return None
    *steps, step = bias.stride()
    unit = CUDNN_ALIGNMENT_BYTES // bias.element_size()
    aligned = (
        step == 1 and steps[2] >= bias.shape[3] and not any(offset % unit for offset in (*steps, bias.storage_offset()))
    )
    return bias if aligned else bias.clone(memory_format=torch.contiguous_format)


def _dense_bias(mask: Dense, query: Tensor) -> Float[Tensor, "#batch #heads q_len kv_len"]:
    """Convert a dense mask to a bias. Cached, because all layers of a model use it."""
    allowed = mask.allowed
    if not is_cacheable(query) or allowed.is_inference():  # inference tensors do not count their changes
        return _as_bias(allowed.contiguous(), query.dtype)
    key = (query.dtype, query.device, current_stream(query.device))
    return cached(mask, "bias", key, lambda: _as_bias(allowed.contiguous(), query.dtype))


def _hidden_keys(mask: Mask, query: Tensor, kv_len: int) -> Float[Tensor, "#batch 1 1 kv_len"]:
    """Convert a mask that is the same for every query to a bias. Cached, because all layers of a model use it."""
    if not is_cacheable(query):
        return _hide(mask, query, kv_len)
    key = (kv_len, query.dtype, query.device, current_stream(query.device))
    return cached(mask, "hidden keys", key, lambda: _hide(mask, query, kv_len))


def _hide(mask: Mask, query: Tensor, kv_len: int) -> Float[Tensor, "#batch 1 1 kv_len"]:
    lowered = mask.lower(query_positions(1, kv_len, 0, query.device), kv_len)  # the same for every query
    bias = _as_bias(lowered.allowed(1, torch.arange(kv_len, device=query.device)), query.dtype)
    if query.device.type == "cuda":  # the kernel requires rows aligned to 16 bytes
        bias = pad(bias, (0, -kv_len % 8))[..., :kv_len]
    return bias


def _as_bias(allowed: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)


def _has_key(call: AttentionCall, added: Tensor, causal: bool) -> Bool[Tensor, "#batch #heads #q_len"]:
    """Return which rows may attend to at least one key, according to mask and bias."""
    allowed = added != -torch.inf
    if not causal:
        return allowed.any(dim=-1)
    _, _, q_len, kv_len = call.shape
    if allowed.shape[3] == 1:  # all keys or none; every causal query attends to the first
        return allowed.squeeze(-1)
    if allowed.shape[2] > 1:
        return allowed.expand(*allowed.shape[:3], kv_len).tril().any(dim=-1)
    # all queries share the allowed keys: a causal query has a key if it is at or after the first
    never = max(q_len, kv_len)
    first = torch.where(allowed, torch.arange(kv_len, device=added.device), never).amin(dim=-1)
    return torch.arange(q_len, device=added.device) >= first
