"""`AttentionWeights`: the attention matrix, computed exactly and on demand from queries, keys and log-sum-exp.

The weight of query i and key j is `A[i, j] = exp(s[i, j] − lse[i])`. `s` is the scaled, capped, biased and masked
score, and `lse[i]` is its log-sum-exp over row i. So O(n · d) numbers determine the n × n matrix.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead._utils.checks import MAX_INT, check_path, describe
from clearhead._utils.tensor_checks import check_dense_tensor, check_device, check_float_tensor
from clearhead._utils.text import format_bytes
from clearhead.ops.alibi import ALiBi
from clearhead.ops.call import AttentionCall
from clearhead.ops.key_ranges import single_range
from clearhead.ops.masks import Dense, LoweredMask, Mask, PrecomputedMask
from clearhead.weights import notebook, serialization
from clearhead.weights.cells import diagonal_weights, weights_at
from clearhead.weights.gather import largest_weights
from clearhead.weights.indexing import Selection, contiguous_slice, index_list
from clearhead.weights.mutation import Fingerprints, inputs_of
from clearhead.weights.observable import ObservableMatrix
from clearhead.weights.products import product, product_with_fixed_weights, transposed_product
from clearhead.weights.scores import Scores

if TYPE_CHECKING:
    from clearhead.weights.mean_heads import MeanHeads

Choice = int | slice | Sequence[int]


class AttentionWeights(ObservableMatrix):
    """Lazy attention matrix `[batch, heads, q_len, kv_len]`, as returned by `attention(..., return_weights=True)`.

    Indexing returns exact weights as plain tensors. It takes what torch's indexing takes: integers, slices, lists,
    tensors, bool masks, None and `...`. `entropy`, `received`, `distance`, `topk` and `pool` take O(n) memory. numpy
    and torch functions convert the matrix to a plain tensor, up to a size limit.

    Examples:
        >>> from clearhead import Causal, attention
        >>> x = torch.randn(1, 8, 100, 64)
        >>> _, weights = attention(x, x, x, mask=Causal(), return_weights=True)
        >>> weights[0, 5, 10, :3].shape, weights.entropy().shape
        (torch.Size([3]), torch.Size([1, 8, 100]))
        >>> weights[0, [5, 2], 10:12].shape
        torch.Size([2, 2, 100])
    """

    def __init__(
        self,
        call: AttentionCall,
        lse: Float[Tensor, "batch heads q_len"],
        normalized: bool = True,
        *,
        check_mutation: bool = True,
    ) -> None:
        """Hold a call and its log-sum-exp.

        Args:
            call: the validated call.
            lse: log-sum-exp of each row's scores.
            normalized: whether `lse` is that of the call. Otherwise the rows do not sum to 1, as after `hiding`.
            check_mutation: raise an error if weights are read after an input was changed in place. In inference mode
                this compares hashes, which synchronizes a GPU.
        """
        if not isinstance(call, AttentionCall):
            raise TypeError(f"call is {describe(call)}; expected an AttentionCall; use attention(return_weights=True)")
        if isinstance(call.query_start, Tensor):  # the caller may increment it in place
            call = replace(call, query_start=call.query_start.clone())
        lse = check_float_tensor("lse", lse, "[batch, heads, q_len]")
        if lse.shape != call.shape[:3]:
            raise ValueError(f"lse has shape {tuple(lse.shape)}; expected {tuple(call.shape[:3])}")
        self._call = call
        self._lse = lse.detach()
        self._normalized = normalized
        self._fingerprints = Fingerprints(inputs_of(call)) if check_mutation else None

    # -- shape and inputs ----------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """Size `[batch, heads, q_len, kv_len]`."""
        return torch.Size(self._call.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and statistics: float32, or float64 for float64 inputs."""
        return self._call.compute_dtype

    @property
    def device(self) -> torch.device:
        return self._call.query.device

    @property
    def requires_grad(self) -> bool:
        """True if weights computed now carry gradients."""
        return self._call.scores_require_grad()

    @property
    def lse(self) -> Float[Tensor, "batch heads q_len"]:
        """Log-sum-exp of each row's scores, sink included; −inf if a query may attend to no key."""
        return self._lse

    @property
    def query(self) -> Float[Tensor, "batch heads q_len key_dim"] | None:
        """Queries; None if the matrix holds scores instead, which take less memory in decoding."""
        return None if self._holds_scores() else self._call.query

    @property
    def key(self) -> Float[Tensor, "batch kv_heads kv_len key_dim"] | None:
        """Keys; None if the matrix holds scores instead."""
        return None if self._holds_scores() else self._call.key

    @property
    def scale(self) -> float:
        """Factor of Q Kᵀ; 1 if the matrix holds scores instead."""
        return self._call.scale

    @property
    def softcap(self) -> float | None:
        """Bound of the scaled scores; None if the matrix holds scores, which are capped already."""
        return self._call.softcap

    @property
    def sinks(self) -> Float[Tensor, " heads"] | None:
        """Additional score of each head in the denominator of the softmax."""
        return self._call.sinks

    @property
    def mask(self) -> Mask | None:
        return self._call.mask

    @property
    def bias(self) -> Tensor | ALiBi | None:
        """Bias added to the scores; None if the matrix holds scores, which include it."""
        return self._call.bias if self._biased() else None

    @property
    def lowered_mask(self) -> LoweredMask:
        """Mask as key ranges and a dense part; both None without a mask, or if it is folded into the held scores."""
        return self._call.lower()

    @property
    def query_start(self) -> int | Int[Tensor, " starts"]:
        """Position of the first query among the keys: one for all sequences, or one per sequence."""
        return self._call.query_start

    @property
    def value(self) -> Float[Tensor, "batch kv_heads kv_len value_dim"] | None:
        """Values that the weights were applied to; None if they were not kept."""
        return self._call.value

    @property
    def key_heads(self) -> int:
        """Number of key heads. Each is shared by a group of consecutive query heads."""
        return self._call.key.shape[1]

    @property
    def held_bytes(self) -> int:
        """Memory of the tensors that determine the weights."""
        return sum(tensor.nbytes for _, tensor in inputs_of(self._call))

    def __repr__(self) -> str:
        batch, heads, q_len, kv_len = self.shape
        held, dense = format_bytes(self.held_bytes), format_bytes(math.prod(self.shape) * self.dtype.itemsize)
        call = self._call
        options = [f"mask={call.mask}"] if call.mask is not None else []
        options += [f"bias={call.bias}" if call.slopes is not None else "bias"] if self._biased() else []
        options += [f"softcap={call.softcap:g}"] if call.softcap is not None else []
        options += ["sinks"] if call.sinks is not None else []
        form = "scores" if self._holds_scores() else "query and key"
        return (
            f"AttentionWeights({batch} × {heads} heads × {q_len} queries × {kv_len} keys, {self.dtype}, {self.device}"
            f"{', ' if options else ''}{', '.join(options)}; holds {form}, {held}; dense {dense})"
        )

    def _repr_html_(self) -> str | None:
        return notebook.weights_html(self)

    # -- exact weights -------------------------------------------------------------------------------------------

    @property
    def scores(self) -> Scores:
        """Scores before the softmax, indexed like the weights: `weights.scores[0, 5, 7, :9]`; −inf where masked."""
        return Scores(self)

    def diagonal(self, offset: int = 0) -> Float[Tensor, "batch heads q_len"]:
        """Return the weight of the key `offset` positions from each query, 0 if it does not exist; differentiable."""
        call = self._checked()
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer):
            raise TypeError(f"offset is {describe(offset)}; expected an int, such as -1 for the previous token")
        offset = max(-MAX_INT, min(int(offset), MAX_INT))  # avoids overflow; there are no keys beyond these offsets
        return diagonal_weights(call, self._lse, offset)

    # -- derived matrices and comparisons ------------------------------------------------------------------------

    def mean_heads(self, groups: int = 1) -> MeanHeads:
        """Return the lazy mean over heads `[batch, groups, q_len, kv_len]`: over all, or over groups of equal size."""
        from clearhead.weights.mean_heads import MeanHeads

        return MeanHeads(self, groups)

    def scaled(self, keys: Tensor) -> AttentionWeights:
        """Return the lazy matrix A · diag(keys), such as value-weighted attention.

        Its rows do not sum to 1, so entropy and `kl` are not defined.

        Args:
            keys: a factor of at least 0 for each key: `[kv_len]`, or broadcastable to `[batch, heads, kv_len]`.
        """
        from clearhead.weights.scaled import scaled

        return scaled(self, keys)

    def value_norms(self, output_weight: Tensor | None = None) -> AttentionWeights:
        """Return the lazy matrix of ‖A[i, j] · v[j] · W_O‖: how much each key contributes to the output of each query.

        Args:
            output_weight: weight of the output projection, `[model_dim, heads · value_dim]`. Default: without W_O.
        """
        from clearhead.weights.scaled import value_norms

        return value_norms(self, output_weight)

    def kl(self, student: AttentionWeights, *, ignore: bool = False) -> Float[Tensor, "batch heads q_len"]:
        """Return KL(self ‖ student) = Σ A · (ln A − ln B) of each row, in nats; differentiable in both.

        Args:
            student: matrix B of the same size, except that either may have one head, which is compared with each of
                the other's.
            ignore: leave out keys that the student may not attend to. Otherwise an error is raised if the matrix has
                weight there, because KL is infinite.
        """
        from clearhead.weights.divergences import kl

        return kl(self, student, ignore)

    # -- parts, devices, files -----------------------------------------------------------------------------------

    def part(
        self, *, batch: Choice | None = None, heads: Choice | None = None, queries: slice | None = None
    ) -> AttentionWeights:
        """Return a lazy matrix of some sequences, heads or queries, without computing weights.

        Each of `batch` and `heads` is an index, a slice or a sequence of indices, `queries` is a slice of step 1. An
        index keeps its axis, with size 1.
        """
        sequences, chosen = index_list(batch, self.shape[0], 0), index_list(heads, self.shape[1], 1)
        call = self._checked().select(sequences, chosen)
        device = self._lse.device
        lse = self._lse[torch.tensor(sequences, device=device)][:, torch.tensor(chosen, device=device)]
        if queries is not None:
            rows = contiguous_slice(queries, self.shape[2], 2)
            call, lse = call.slice_queries(rows), lse[:, :, rows]
        return self._derived(call, lse)

    def hiding(self, keys: Choice) -> AttentionWeights:
        """Return the matrix with the columns of some keys set to 0, such as an attention sink's, without gradients.

        All other weights are unchanged, so the rows no longer sum to 1.
        """
        hidden = index_list(keys, self.shape[3], 3)
        visible = torch.ones(1, 1, 1, self.shape[3], dtype=torch.bool, device=self.device)
        visible[..., torch.tensor(hidden, device=self.device)] = False
        call = self._checked().map_tensors(Tensor.detach)
        mask = Dense(visible) if call.mask is None else call.mask & Dense(visible)
        return self._derived(replace(call, mask=mask), self._lse, normalized=False)

    def hiding_queries(self, hidden: Bool[Tensor, "batch q_len"]) -> AttentionWeights:
        """Return the matrix with the rows of some queries set to 0, such as padding queries, without gradients.

        A hidden query counts as a query that may attend to no key.
        """
        batch, _, q_len, kv_len = self.shape
        expected = f"a bool tensor ({batch}, {q_len}), True for hidden queries"
        hidden = check_dense_tensor("hidden", hidden, expected)
        if hidden.shape != (batch, q_len) or hidden.dtype != torch.bool:
            raise ValueError(f"hidden has shape {tuple(hidden.shape)} and dtype {hidden.dtype}; expected {expected}")
        if hidden.is_meta and self.device.type != "meta":
            raise ValueError(f"hidden is on the meta device; expected {expected} with values")
        hidden = hidden.to(self.device)
        call = self._checked().map_tensors(Tensor.detach)
        last = torch.where(hidden, 0, kv_len)
        visible = PrecomputedMask(LoweredMask(single_range(torch.zeros_like(last), last, kv_len)), "visible queries")
        mask = visible if call.mask is None else call.mask & visible
        return self._derived(replace(call, mask=mask), self._lse.masked_fill(hidden[:, None], -torch.inf))

    def attending(self) -> Bool[Tensor, "batch q_len"]:
        """Return True for each query that may attend to a key in any head, also if its scores are NaN."""
        batch, _, q_len, kv_len = self.shape
        bias = self._call.tensor_bias
        lowered = self._call.lower()
        if self._call.sinks is None:
            attends = (self._lse != -torch.inf).any(dim=1)
        # a sink makes lse finite in rows without a key, so the mask determines these rows
        elif lowered.dense is not None:
            attends = lowered.allowed(q_len, torch.arange(kv_len, device=self.device)).any(dim=-1).any(dim=1)
        elif lowered.ranges is not None:
            attends = (lowered.ranges[:, 1] > lowered.ranges[:, 0]).any(dim=0)
        else:
            attends = torch.ones(1, 1, dtype=torch.bool, device=self.device)
        if bias is not None:  # models also mask keys with finfo.min, which leaves lse finite
            attends = attends & ~(bias <= torch.finfo(bias.dtype).min / 2).all(dim=-1).all(dim=1)
        return attends.expand(batch, q_len)

    def detach(self) -> AttentionWeights:
        """Return the matrix without gradients."""
        return self._derived(self._checked().map_tensors(Tensor.detach), self._lse)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the matrix to one safetensors file of O(n · d) numbers, which `load` reads."""
        serialization.save(check_path("path", path), self._checked(), self._lse, self._normalized)

    def pack(self) -> tuple[dict[str, Tensor], serialization.Facts]:
        """Return the tensors and metadata that `serialization.unpack` takes."""
        return serialization.pack(self._checked(), self._lse, self._normalized)

    def without_values(self) -> AttentionWeights:
        """Return the matrix without the values that the weights were applied to."""
        return self._derived(replace(self._checked(), value=None), self._lse)

    def __reduce__(self) -> tuple:
        # version counters of copied tensors start at 0, so the fingerprints are computed again
        return AttentionWeights, (self._checked(), self._lse, self._normalized)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> AttentionWeights:
        """Read a file written by `save`."""
        return cls(*serialization.load(check_path("path", path), check_device("device", device) or "cpu"))

    # -- internals -----------------------------------------------------------------------------------------------

    def _checked(self) -> AttentionCall:
        """Return the call, after checking that none of its tensors was changed in place."""
        if self._fingerprints is not None and not torch.compiler.is_compiling():
            self._fingerprints.check(inputs_of(self._call))
        return self._call

    def _block(self, selection: Selection) -> Float[Tensor, "batch heads rows keys"]:
        return weights_at(self._checked(), self._lse, selection)

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> AttentionWeights:
        return self._derived(self._checked().map_tensors(function), function(self._lse))

    def _matmul(self, other: Tensor) -> Tensor:
        call = self._checked()
        if other.requires_grad and torch.is_grad_enabled() and not self.requires_grad:
            return product_with_fixed_weights(call, self._lse, other, self._normalized)
        return product(call, other, None if self._normalized else self._lse)

    def _transposed_matmul(self, other: Tensor) -> Tensor:
        return transposed_product(self._checked(), self._lse, other, self._normalized)

    def _column_maxima(self) -> tuple[Tensor, Tensor]:
        _, _, q_len, kv_len = self.shape
        call = self._checked()
        values, rows, _ = largest_weights(call, self._lse, slice(0, q_len), slice(0, kv_len), (1, kv_len))
        return values, rows

    def _holds_scores(self) -> bool:
        return self._call.query.shape[3] == 0

    def _biased(self) -> bool:
        return self._call.bias is not None and not self._holds_scores()

    def _derived(
        self, call: AttentionCall, lse: Float[Tensor, "batch heads q_len"], *, normalized: bool = True
    ) -> AttentionWeights:
        normalized = normalized and self._normalized
        return AttentionWeights(call, lse, normalized, check_mutation=self._fingerprints is not None)
