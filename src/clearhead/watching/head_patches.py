"""`patch`: outputs or patterns of heads replaced by given ones, such as those of another prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead._utils.checks import check_choice, describe
from clearhead.watching.editing import Edit, EditedCall, Stage
from clearhead.watching.intervention import HeadIntervention, check_replacement
from clearhead.watching.positions import ChosenPositions, Positions
from clearhead.watching.selectors import Chosen
from clearhead.weights.matrix import AttentionWeights

Source = Tensor | AttentionWeights
What = Literal["output", "pattern"]
EXPECTED = "a dict such as {(layer, head): tensor}"


@contextmanager
def patch(
    model: Any,
    patches: Mapping[Any, Source],
    *,
    positions: Positions | None = None,
    what: What | None = None,
) -> Iterator[None]:
    """Replace the output or the pattern of heads within a `with` block.

        with watch(model, values=True) as seen:
            model(**clean)
        with patch(model, {(18, 6): seen[18].output}, positions=-1):     # its output for the last token
            model(**corrupted)
        with patch(model, {(18, 6): seen[18].weights}):                  # its pattern, with the values of this run
            model(**corrupted)

    A source that contains all heads of the layer stands for the head of the same index. `ablate`, `patch`, `cut` and
    `watch` can be nested in any order; `watch` then observes the patched pattern.

    Args:
        model: any model that `watch` observes.
        patches: sources by head. Heads are chosen as for `ablate`. A tensor `[..., head_dim]` replaces the output of
            the head before the output projection: `[head_dim]`, `[q_len, head_dim]`, `[batch, q_len, head_dim]` or
            `[batch, heads, q_len, head_dim]`. A matrix of `watch`, or a tensor `[q_len, kv_len]` with the same leading
            axes, replaces its pattern.
        positions: queries whose output or pattern is replaced: an index, a slice or indices; negative ones count from
            the end. Default: all. A source may have rows for these queries only, in the same order. With a KV cache of
            transformers they are positions in the whole sequence, else rows of each call.
        what: "output" or "pattern", if a tensor could be either because kv_len is head_dim.

    Raises:
        ValueError: if the model has no such head, or a source does not fit the call.
    """
    with _Patch(model, patches, positions, what).active():
        yield


class _Patch(HeadIntervention[Source]):
    """Outputs or patterns of heads replaced by sources."""

    verb = "patch"

    def __init__(
        self, model: Any, patches: Mapping[Any, Source], positions: Positions | None, what: What | None
    ) -> None:
        super().__init__(model)
        if not isinstance(patches, Mapping):
            raise TypeError(f"patches is {describe(patches)}; expected {EXPECTED}")
        selectors = self.selectors("patches")
        for selector, source in patches.items():
            if not isinstance(source, Tensor | AttentionWeights):
                raise TypeError(
                    f"patches[{selector!r}] is {describe(source)}; expected a tensor or the weights of `watch`"
                )
            if isinstance(source, Tensor):
                check_replacement(f"patches[{selector!r}]", source, "[..., head_dim] or [q_len, kv_len]")
            self.chosen.append((selectors.head(selector), source))
        self._positions = ChosenPositions("positions", positions)
        self._what = None if what is None else check_choice("what", what, ("output", "pattern"))

    def edits_of(self, chosen: Chosen, given: Source, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        head = chosen.head
        assert head is not None
        _, heads, q_len, width = edited.output.shape
        at = self.positions(module, q_len, edited.kv_len)
        rows = self._positions.within(at.first_query, at.query_end)
        if not rows:
            return []
        source = f"patches[{chosen.given!r}]"
        if isinstance(given, AttentionWeights):
            if self._what == "output":
                raise ValueError(f"{source} is a matrix of weights, but what is 'output'; expected a tensor")
            _check_matrix(source, given, heads, edited)
            weights = given.part(heads=head if given.shape[1] > 1 else 0).detach()
            return [Edit(Stage.PATTERN, lambda call: _write_matrix(call, head, rows, weights))]
        if self._is_pattern(source, given, width, edited.kv_len):
            pattern = _of_head(source, given, head, heads, q_len, rows, f"kv_len = {edited.kv_len}", edited)
            return [Edit(Stage.PATTERN, lambda call: _write_pattern(call, head, rows, pattern))]
        output = _of_head(source, given, head, heads, q_len, rows, f"head_dim = {width}", edited)
        return [Edit(Stage.OUTPUT, lambda call: call.write(head, rows, output))]

    def missing(self, given: Source) -> str | None:
        index = self._positions.missing()
        return None if index is None else f"positions contains {index}"

    def _is_pattern(self, source: str, tensor: Tensor, width: int, kv_len: int) -> bool:
        last = tensor.shape[-1] if tensor.ndim else 0
        fits = {"output": last == width, "pattern": last == kv_len and tensor.ndim > 1}
        if self._what is not None and fits[self._what]:
            return self._what == "pattern"
        if self._what is None and all(fits.values()):
            raise ValueError(
                f"{source} has shape {tuple(tensor.shape)}, and both head_dim and kv_len are {width}; pass"
                " what='output' or what='pattern'"
            )
        if self._what is not None or not any(fits.values()):
            expected = {"output": f"[..., head_dim = {width}]", "pattern": f"[q_len, kv_len = {kv_len}]"}
            forms = expected.values() if self._what is None else [expected[self._what]]
            raise ValueError(f"{source} has shape {tuple(tensor.shape)}; expected {' or '.join(forms)}")
        return fits["pattern"]


def _check_matrix(source: str, weights: AttentionWeights, heads: int, edited: EditedCall) -> None:
    (batch, _, q_len, _), kv_len = edited.output.shape, edited.kv_len
    if weights.shape[0] not in (1, batch) or weights.shape[1] not in (1, heads) or weights.shape[2:] != (q_len, kv_len):
        raise ValueError(
            f"{source} has shape {list(weights.shape)}; expected that of the call, [{batch}, {heads} or 1, {q_len},"
            f" {kv_len}]"
        )


def _of_head(
    source: str, tensor: Tensor, head: int, heads: int, q_len: int, rows: list[int], last: str, edited: EditedCall
) -> Float[Tensor, "#batch #rows last"]:
    """Return the rows of a source that replace rows of a head."""
    batch = edited.output.shape[0]
    part = tensor
    if part.ndim == 4 and part.shape[1] in (1, heads):
        part = part[:, head if part.shape[1] > 1 else 0]
    part = part[(None,) * (3 - part.ndim)] if part.ndim <= 3 else part
    if part.ndim != 3 or part.shape[0] not in (1, batch) or part.shape[1] not in (1, q_len, len(rows)):
        raise ValueError(
            f"{source} has shape {tuple(tensor.shape)}; expected [{last}], [q_len = {q_len}, {last}] or [positions ="
            f" {len(rows)}, {last}], or these with leading axes [batch = {batch}] or [batch = {batch}, heads = {heads}]"
        )
    if part.shape[1] == q_len:
        part = part[:, rows]
    return part.to(edited.output.device)


def _write_matrix(edited: EditedCall, head: int, rows: list[int], weights: AttentionWeights) -> None:
    value = edited.value_of_head(head)
    if len(rows) < weights.shape[2]:  # rows of a matrix take less time than a product with all of it
        _write_pattern(edited, head, rows, weights[:, 0, rows])
    else:
        output = (weights @ value[:, None])[:, 0, rows]
        edited.write_pattern(head, rows, lambda: weights[:, 0, rows], output)


def _write_pattern(edited: EditedCall, head: int, rows: list[int], pattern: Tensor) -> None:
    value = edited.value_of_head(head)
    output = torch.matmul(pattern.to(value.dtype), value)
    edited.write_pattern(head, rows, lambda: pattern, output)
