"""`attention()`: the one operator."""

from __future__ import annotations

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
    """softmax(softcap(scale · Q Kᵀ) + bias, over the keys the mask allows) · V, for many heads at once.

    Args:
        query, key, value: heads may be any multiple of kv_heads (query head h reads key head h // group), and
            value_dim may differ from key_dim.
        mask: which keys each query may attend to: a mask such as `Causal() & Documents(lengths)`, or a bool tensor
            (True = may attend) that broadcasts to `[batch, heads, q_len, kv_len]`.
        bias: added to the scores: a tensor that broadcasts to `[batch, heads, q_len, kv_len]`, or `ALiBi(slopes)`.
            A −inf in it forbids its key just as the mask does.
        scale: of the scores; 1/√key_dim by default.
        softcap: scores become softcap · tanh(score / softcap), before bias and mask.
        sinks: a logit per head that takes part in the softmax and is then dropped.
        dropout: the share of weights set to 0, the others scaled up; the weights returned are those before it.
        query_start: where the first query stands among the keys: an int, or an int tensor `[batch]`. By default
            kv_len − q_len: the last query meets the last key, as in decoding with a cache.
        return_weights: also return the attention matrix, as a lazy `AttentionWeights`. If the scores are fewer numbers
            than query and key, as in decoding, it holds the scores; "keep_qk" makes it hold query and key even then.
        backend: "auto" for the fastest that can, or one by name ("sdpa", "triton", "streaming", "reference"), which
            raises with its reasons if it cannot. `clearhead doctor` lists them.

    A query that may attend to nothing gives output 0, weights 0, log-sum-exp −inf (with a sink: the sink's logit) and
    finite gradients. So do kv_len 0 and q_len 0.

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
    call: AttentionCall, backend: str = "auto", *, keep_qk: bool = False, check_mutation: bool = True
) -> tuple[Float[Tensor, "batch heads q_len value_dim"], AttentionWeights]:
    """Run a call that is checked already, and return its output and the lazy matrix.

    Args:
        keep_qk: hold query and key also where the scores are fewer numbers.
        check_mutation: notice in-place changes of the inputs; False if the weights are read before any can happen.
    """
    output, lse = dispatch.choose(call, backend)[1].attend(call, True)
    assert lse is not None
    held = call if keep_qk else _lightest(call)
    return output, AttentionWeights(held, lse, check_mutation=check_mutation)


def _lightest(call: AttentionCall) -> AttentionCall:
    """Return the matrix as its scores where they are fewer numbers (as in decoding), else as queries and keys."""
    _, heads, q_len, _ = call.shape
    _, kv_heads, _, key_dim = call.key.shape
    if heads * q_len > kv_heads * key_dim:
        return call
    return call.with_scores(reference.scores(call, call.lower()))
