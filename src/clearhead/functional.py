"""The attention operator, `attention()`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Unpack, overload

from jaxtyping import Float, Int
from torch import Tensor

from clearhead.ops import dispatch, reference
from clearhead.ops.alibi import ALiBi
from clearhead.ops.arguments import AttentionOptions, build_call, check_return_weights
from clearhead.ops.call import AttentionCall
from clearhead.ops.masks import Mask
from clearhead.weights.matrix import AttentionWeights


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = False,
    backend: str = "auto",
    **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[True, "keep_qk"],
    backend: str = "auto",
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, AttentionWeights]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: bool | Literal["keep_qk"],
    backend: str = "auto",
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, AttentionWeights]: ...
def attention(
    query: Float[Tensor, "batch heads q_len key_dim"],
    key: Float[Tensor, "batch kv_heads kv_len key_dim"],
    value: Float[Tensor, "batch kv_heads kv_len value_dim"],
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    dropout: float = 0.0,
    query_start: int | Int[Tensor, " batch"] | None = None,
    return_weights: bool | Literal["keep_qk"] = False,
    backend: str = "auto",
) -> Float[Tensor, "batch heads q_len value_dim"] | tuple[Tensor, AttentionWeights]:
    """Compute softmax(softcap(scale · Q Kᵀ) + bias, over the keys that the mask allows) · V for many heads at once.

    Args:
        query: queries of all heads. The number of heads may be any multiple of kv_heads.
        key: keys. Query head h reads key head h // group, with group = heads / kv_heads.
        value: values. value_dim may differ from key_dim.
        mask: keys that each query may attend to: a mask such as `Causal() & Documents(lengths)`, or a bool tensor
            (True = may attend) that broadcasts to `[batch, heads, q_len, kv_len]`.
        bias: added to the scores: a tensor that broadcasts to `[batch, heads, q_len, kv_len]`, or `ALiBi(slopes)`.
            A bias of −inf masks its key.
        scale: factor of the scores. Default: 1/√key_dim.
        softcap: scores become softcap · tanh(score / softcap), before bias and mask.
        sinks: one logit per head that is part of the softmax's denominator and has no value.
        dropout: fraction of weights set to 0; the others are scaled up. Returned weights are those before dropout.
        query_start: position of the first query among the keys: an int, or an int tensor `[batch]`. Default:
            kv_len − q_len, so that the last query has the position of the last key, as in decoding with a cache.
        return_weights: also return the attention matrix, as a lazy `AttentionWeights`. It holds the scores if they take
            less memory than query and key, as in decoding; "keep_qk" makes it hold query and key in any case.
        backend: "auto" for the fastest backend that supports the call, or the name of a backend ("sdpa", "triton",
            "streaming", "reference"). `clearhead doctor` lists them.

    Returns:
        The output, or `(output, weights)` with `return_weights`.

    Raises:
        ValueError: if shapes do not fit, or if the named backend does not support the call (the message lists
            the reasons).
        TypeError: if an argument has the wrong type or dtype.

    A query that may attend to no key has output 0, weights 0, log-sum-exp −inf (with a sink: the sink's logit) and
    finite gradients. kv_len and q_len may be 0.

    Examples:
        >>> import torch
        >>> from clearhead import Causal, attention
        >>> x = torch.randn(1, 8, 100, 64)
        >>> output, weights = attention(x, x, x, mask=Causal(), return_weights=True)
        >>> output.shape, weights[0, 5, 10:12].shape
        (torch.Size([1, 8, 100, 64]), torch.Size([2, 100]))
    """
    call = build_call(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        dropout=dropout,
        query_start=query_start,
    )
    if return_weights is not False and return_weights is not True:
        return_weights = check_return_weights(return_weights)
    if return_weights:
        return attend_with_weights(call, backend, keep_qk=return_weights == "keep_qk")
    return dispatch.choose(call, backend)[1].attend(call, False)[0]


def attend_with_weights(
    call: AttentionCall, backend: str = "auto", *, keep_qk: bool = False
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], AttentionWeights]:
    """Run a validated call, and return its output and the lazy matrix.

    Args:
        call: the validated call.
        backend: name of a backend, or "auto".
        keep_qk: hold query and key even if the scores take less memory.
    """
    output, lse = dispatch.choose(call, backend)[1].attend(call, True)
    assert lse is not None
    return output, lazy_weights(call, lse, keep_qk=keep_qk)


def lazy_weights(
    call: AttentionCall,
    lse: Float[Tensor, "batch heads q_len"] | None = None,
    *,
    keep_qk: bool = False,
    check_mutation: bool = True,
) -> AttentionWeights:
    """Return the lazy matrix of a call.

    Args:
        call: the validated call. It needs no values.
        lse: its log-sum-exp. Default: computed.
        keep_qk: hold query and key even if the scores take less memory.
        check_mutation: detect in-place changes of the inputs. False if the weights are read before any can happen.
    """
    if not keep_qk and call.takes_less_as_scores():
        scores = reference.scores(call, call.lower())
        lse = reference.log_sum_exp_of_scores(scores, call.sinks) if lse is None else lse
        return AttentionWeights(call.with_scores(scores), lse, check_mutation=check_mutation)
    if lse is None:
        with_keys_as_values = replace(call.without_dropout(), value=call.key)
        lse = dispatch.choose(with_keys_as_values)[1].attend(with_keys_as_values, True)[1]
        assert lse is not None
    return AttentionWeights(call, lse, check_mutation=check_mutation)
