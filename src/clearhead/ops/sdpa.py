"""Backend `sdpa`: torch's own fused kernels with their log-sum-exp, for the masks they know.

CPU: flash attention with no mask, causal from the first key, hidden keys (the same for every query), a dense mask or
a tensor bias. CUDA: half precision, plain or causal, by cuDNN where it is the faster one, else flash attention; and
short texts with hidden keys, as in batches of sentences, by torch's memory-efficient kernel.
"""

from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from clearhead.ops._precision import without_autocast
from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import AttentionCall, is_cacheable
from clearhead.ops.masks import And, Causal, Dense, Mask, Or, Padding, Prefix, query_positions
from clearhead.ops.tiled import attention as streaming

HALF = (torch.float16, torch.bfloat16)
DECODING = 16  # this many queries or fewer
SHORT = 128  # queries; with fewer, planning costs more than it brings
HIDING = 512  # queries and keys; beyond, our own kernels are the faster ones (benchmarks/hidden_keys.py)
_CAPABILITIES: dict[torch.device, int] = {}
_HIDDEN: WeakKeyDictionary[Mask, tuple[tuple, Tensor]] = WeakKeyDictionary()


def unsupported_reasons(problem: AttentionCall) -> list[str]:
    batch, _, q_len, kv_len = problem.shape
    assert problem.value is not None
    reasons = []
    if 0 in (batch, q_len, kv_len):
        reasons.append(f"batch {batch}, q_len {q_len}, kv_len {kv_len}: an empty axis kills torch's kernel")
    value_dim, key_dim = problem.value.shape[3], problem.query.shape[3]
    if value_dim != key_dim:
        reasons.append(f"value_dim {value_dim} is not key_dim {key_dim}")
    if problem.softcap is not None:
        reasons.append("softcap is not known to it")
    if problem.sinks is not None:
        reasons.append("sinks are not known to it")
    if problem.dropout:
        reasons.append("dropout is not available in its CPU kernel, nor reproducible in the others")
    if isinstance(problem.bias, ALiBi):
        reasons.append("ALiBi would become an n × n bias")
    device = problem.query.device.type
    if device == "cpu":
        return reasons + _refuse_cpu(problem)
    if device == "cuda":
        return reasons + _refuse_cuda(problem)
    return [*reasons, f"device {device} is neither cpu nor cuda"]


@without_autocast
def attend(
    problem: AttentionCall, with_lse: bool
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], Float[Tensor, "batch heads q_len"] | None]:
    """Output and log-sum-exp by the fused kernel."""
    assert problem.value is not None
    query, key, value = _readable(problem.query), _readable(problem.key), _readable(problem.value)
    causal, rest = _split(problem)
    if query.device.type == "cuda":
        if rest is not None:
            return _attend_hiding(problem, query, key, value, rest, with_lse)
        return _attend_cuda(query, key, value, causal, problem.scale, with_lse)
    if not with_lse and rest is None and problem.bias is None:
        # torch's own front door gives no log-sum-exp, but costs half the time of the kernel's Python binding
        grouped = query.shape[1] != key.shape[1]
        output = scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=problem.scale, enable_gqa=grouped
        )
        return output, None
    added = _added(problem, rest)
    attn_mask = None if added is None else added.expand(-1, -1, query.shape[2], key.shape[2])
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, is_causal=causal, attn_mask=attn_mask, scale=problem.scale
    )
    if with_lse and query.dtype in HALF:
        with torch.no_grad():
            # the kernel's exp is good to 20 bits in half precision: enough for its output, not for sums of weights
            lse = streaming.log_sum_exp(problem)
    elif with_lse and added is not None:
        lse = torch.where(_has_key(problem, added, causal), lse, -torch.inf)  # the kernel leaves 0 for an empty row
    return output, lse


def _attend_cuda(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    if not _suits_cudnn(query):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, is_causal=causal, scale=scale)[:2]
    output, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, attn_bias=None, compute_log_sumexp=True, is_causal=causal, scale=scale
    )[:2]
    return output, lse.squeeze(-1) if with_lse else None


def _attend_hiding(
    problem: AttentionCall, query: Tensor, key: Tensor, value: Tensor, rest: Mask, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    added = _hidden_keys(rest, query, key.shape[2])
    bias = added.expand(*query.shape[:3], key.shape[2])
    # gradients are computed from log-sum-exp, so that it is always asked for; it comes in rows of 32 queries
    output, lse = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, True, 0.0, False, scale=problem.scale
    )[:2]
    if not with_lse:
        return output, None
    return output, torch.where(_has_key(problem, added, False), lse[..., : query.shape[2]], -torch.inf)


def _suits_cudnn(query: Tensor) -> bool:
    """Return whether cuDNN is the fastest (benchmarks/gpu.py, benchmarks/wide_heads.py).

    It plans for every new shape, which takes 50 ms, so a cache that grows token by token and batches of sentences are
    left to others. Heads wider than 128 are for Hopper only.
    """
    capability = 0 if torch.version.hip is not None else _capability(query.device)
    widest = {9: 256}.get(capability, 128)
    allowed = torch.compiler.is_compiling() or torch.backends.cuda.cudnn_sdp_enabled()  # which cannot be traced
    return capability >= 9 and query.shape[2] >= SHORT and query.shape[3] <= widest and allowed


def _capability(device: torch.device) -> int:
    """Its first number, asked for once: torch takes microseconds to say it."""
    if device not in _CAPABILITIES:
        _CAPABILITIES[device] = torch.cuda.get_device_capability(device)[0]
    return _CAPABILITIES[device]


def _readable(tensor: Tensor) -> Tensor:
    """These kernels read a last axis that is not contiguous as if it were."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _refuse_cpu(problem: AttentionCall) -> list[str]:
    if problem.mask is None and problem.bias is None:
        return []
    causal, rest = _split(problem)
    bias = problem.tensor_bias
    reasons = []
    if causal and problem.scale <= 0:
        reasons.append(f"scale {problem.scale:g} with a causal mask: its −inf are scaled too, and give nan")
    if not (rest is None or isinstance(rest, Dense) or _hides_keys_only(rest)):
        reasons.append(f"mask {rest} is not one of: none, causal from the first key, hidden keys, one Dense")
    if bias is not None:
        if bias.requires_grad and torch.is_grad_enabled():
            reasons.append("bias needs a gradient, which it does not compute")
        if bias.dtype != problem.query.dtype:
            reasons.append(f"bias has dtype {bias.dtype}, query {problem.query.dtype}")
        if rest is not None:
            reasons.append("bias together with a mask would become one n × n bias")
    return reasons


def _refuse_cuda(problem: AttentionCall) -> list[str]:
    causal, rest = _split(problem)
    _, _, q_len, kv_len = problem.shape
    reasons = []
    if causal and q_len != kv_len and not _suits_cudnn(problem.query):
        reasons.append(f"causal from the first key with q_len {q_len} and kv_len {kv_len}: flash counts from the last")
    if causal and problem.scale <= 0:
        reasons.append(f"scale {problem.scale:g} with a causal mask")
    if _capability(problem.query.device) < 8:
        reasons.append("flash attention needs compute capability 8.0")
    if problem.query.dtype not in HALF:
        reasons.append(f"dtype {problem.query.dtype} is not float16 or bfloat16")
    if problem.query.shape[3] > 256 or problem.query.shape[3] % 8:
        reasons.append(f"key_dim {problem.query.shape[3]} is over 256 or not a multiple of 8")
    if problem.bias is not None:
        reasons.append("on CUDA it takes no bias")
    if rest is not None:
        reasons += _refuse_hiding(problem, causal, rest)
    return reasons


def _refuse_hiding(problem: AttentionCall, causal: bool, rest: Mask) -> list[str]:
    _, heads, q_len, kv_len = problem.shape
    if causal or not _hides_keys_only(rest):
        return [f"on CUDA mask {problem.mask} is not one of: none, causal from the first key, hidden keys"]
    reasons = []
    if torch.compiler.is_compiling() or max(q_len, kv_len) > HIDING:
        reasons.append(f"on CUDA hidden keys are for texts of at most {HIDING} tokens, and not for compiled graphs")
    if heads != problem.key.shape[1]:
        reasons.append("on CUDA it does not know hidden keys with grouped heads")
    return reasons


def _split(problem: AttentionCall) -> tuple[bool, Mask | None]:
    """Causal from the first key, which the kernel does natively, and what is left of the mask."""
    mask, start = problem.mask, problem.query_start
    if mask is None or isinstance(start, Tensor):
        return False, mask
    _, _, q_len, kv_len = problem.shape
    if q_len == 1 and isinstance(mask, Causal) and start >= kv_len - 1:
        return False, None  # a last query sees every key
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


def _added(problem: AttentionCall, rest: Mask | None) -> Float[Tensor, "#batch #heads #q_len #kv_len"] | None:
    """Bias or mask as the kernel takes it: a float tensor in the query's dtype, broadcast with stride 0."""
    if rest is None:
        return problem.tensor_bias
    if isinstance(rest, Dense):
        return _as_bias(rest.allowed, problem.query.dtype)
    return _hidden_keys(rest, problem.query, problem.shape[3])


def _hidden_keys(mask: Mask, query: Tensor, kv_len: int) -> Float[Tensor, "#batch 1 1 kv_len"]:
    """A mask that is the same for every query. Kept for the next call with it, as all layers of a model make one."""
    if not is_cacheable(query):
        return _hide(mask, query, kv_len)
    place = (kv_len, query.dtype, query.device, mask.version)
    kept = _HIDDEN.get(mask)
    if kept is None or kept[0] != place:
        # what is kept must serve a call with gradients too
        with torch.inference_mode(False):
            kept = (place, _hide(mask, query, kv_len))
        _HIDDEN[mask] = kept
    return kept[1]


def _hide(mask: Mask, query: Tensor, kv_len: int) -> Float[Tensor, "#batch 1 1 kv_len"]:
    lowered = mask.lower(query_positions(1, kv_len, 0, query.device), kv_len)  # of one query
    bias = _as_bias(lowered.allowed(1, torch.arange(kv_len, device=query.device)), query.dtype)
    if query.device.type == "cuda":  # whose kernel reads rows that begin at multiples of 16 bytes
        bias = pad(bias, (0, -kv_len % 8))[..., :kv_len]
    return bias


def _as_bias(allowed: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)


def _has_key(problem: AttentionCall, added: Tensor, causal: bool) -> Bool[Tensor, "#batch #heads #q_len"]:
    """Which rows may attend to at least one key, decided from mask and bias."""
    allowed = added != -torch.inf
    if not causal:
        return allowed.any(dim=-1)
    _, _, q_len, kv_len = problem.shape
    if allowed.shape[3] == 1:  # the first key stands for all
        return allowed.squeeze(-1)
    if allowed.shape[2] > 1:
        return allowed.expand(*allowed.shape[:3], kv_len).tril().any(dim=-1)
    # the first allowed key decides: causal queries from there on have one
    never = max(q_len, kv_len)
    first = torch.where(allowed, torch.arange(kv_len, device=added.device), never).amin(dim=-1)
    return torch.arange(q_len, device=added.device) >= first
