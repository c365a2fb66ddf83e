"""`cut`: attention knockout of chosen queries and keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead._utils.checks import check_bool, describe, list_items
from clearhead.ops.masks import LoweredMask
from clearhead.watching.editing import Cut, Edit, EditedCall, Stage
from clearhead.watching.intervention import HeadIntervention
from clearhead.watching.positions import ChosenPositions, Positions, remaining_edges
from clearhead.watching.selectors import Chosen

Pairs = Sequence[tuple[Positions | None, Positions | None]]
Edges = Pairs | Tensor  # pairs of queries and keys, or a bool tensor [q_len, kv_len] that is True where edges are cut
EXPECTED = "a list of pairs (queries, keys), a bool tensor [q_len, kv_len], or a dict of these by layer or head"


@contextmanager
def cut(model: Any, edges: Edges | Mapping[Any, Edges], *, renormalize: bool = True) -> Iterator[None]:
    """Remove edges from queries to keys within a `with` block: attention knockout.

        with cut(model, [(-1, 3)]):                        # the last token from token 3, in all layers and heads
            model(**inputs)
        with cut(model, {(18, 6): [(slice(5, 9), None)]}): # four tokens from all tokens, in head 6 of layer 18
            model(**inputs)
        with cut(model, {layer: [(-1, [1, 2])] for layer in range(15, 23)}):
            model(**inputs)

    A pair removes every edge from its queries to its keys. Edges become key ranges, so a cut takes O(n) memory and runs
    on fused kernels. `ablate`, `patch`, `cut` and `watch` can be nested in any order; `watch` then observes the
    remaining weights.

    Args:
        model: any model that `watch` observes.
        edges: edges to remove from all heads of all layers: pairs `(queries, keys)`, each an index, a slice, indices or
            None for all; negative indices count from the end. Or a bool tensor `[q_len, kv_len]`, True where edges are
            removed. Or a dict of these by layer, module name, `(stack, layer)` or head, which are chosen as for
            `ablate`. With a KV cache of transformers they are positions in the whole sequence, else rows and columns
            of each call.
        renormalize: compute the softmax over the remaining keys; a query without any gives output 0. If False, the
            other weights stay as they are, and rows no longer sum to 1.

    Raises:
        ValueError: if the model has no such head, or, at the end of the block, if no call had a query or key.
    """
    with _Cut(model, edges, renormalize).active():
        yield


class _Cut(HeadIntervention[Any]):
    """Edges removed from heads or layers."""

    verb = "cut"

    def __init__(self, model: Any, edges: Any, renormalize: bool) -> None:
        super().__init__(model)
        self._renormalize = check_bool("renormalize", renormalize)
        self._last: tuple[tuple, LoweredMask] | None = None
        if isinstance(edges, Mapping):
            if not edges:
                raise ValueError("edges is empty; expected at least one layer or head")
            selectors = self.selectors("edges")
            self.chosen = [
                (selectors.layer_or_head(selector), _checked(f"edges[{selector!r}]", given))
                for selector, given in edges.items()
            ]
        else:
            self.chosen = [(EVERYWHERE, _checked("edges", edges))]

    def edits_of(self, chosen: Chosen, given: Any, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        remaining = self._remaining(given, module, edited)
        if remaining is None:
            return []
        removed = Cut(None if chosen.head is None else [chosen.head], remaining, self._renormalize)
        return [Edit(Stage.MASK, lambda call: call.add_cut(removed))]

    def missing(self, given: Any) -> str | None:
        if isinstance(given, Tensor):
            return None
        every = (positions for pair in given for positions in pair)
        return next((f"{each.name} contains {each.missing()}" for each in every if each.missing() is not None), None)

    def _remaining(self, given: Any, module: nn.Module, edited: EditedCall) -> LoweredMask | None:
        """Return the edges that remain in a call; None if all do."""
        q_len, kv_len, device = edited.output.shape[2], edited.kv_len, edited.output.device
        if isinstance(given, Tensor):
            if given.shape != (q_len, kv_len):
                raise ValueError(f"edges has shape {tuple(given.shape)}; expected [q_len = {q_len}, kv_len = {kv_len}]")
            return LoweredMask(dense=~given.to(device)[None, None])
        at = self.positions(module, q_len, kv_len)
        pairs = [
            (queries.within(at.first_query, at.query_end), keys.within(at.first_key, at.key_end))
            for queries, keys in given
        ]
        pairs = [(rows, keys) for rows, keys in pairs if rows and keys]
        if not pairs:
            return None
        # layers and heads with the same edges share one mask, which takes as long to build as attention
        key = (at, q_len, kv_len, device, *((queries.key, keys.key) for queries, keys in given))
        if self._last is None or self._last[0] != key:
            self._last = key, remaining_edges(pairs, q_len, kv_len, device)
        return self._last[1]


class _Everywhere(Chosen):
    """Choice of every call."""

    def matches(self, name: str, order: int, repeat: int | None) -> bool:
        return True


EVERYWHERE = _Everywhere("edges", None, None, None)


def _checked(name: str, edges: Any) -> Any:
    """Return edges as a bool tensor, or as pairs of positions."""
    if isinstance(edges, Tensor):
        if edges.dtype != torch.bool or edges.ndim != 2:
            raise ValueError(
                f"{name} has shape {tuple(edges.shape)} and dtype {edges.dtype}; expected a bool tensor [q_len, kv_len]"
            )
        return edges
    if not isinstance(edges, Sequence) or isinstance(edges, str):
        raise TypeError(f"{name} is {describe(edges)}; expected {EXPECTED}")
    pairs = list_items(name, edges)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{name} contains {describe(pair)}; expected pairs (queries, keys)")
    if not pairs:
        raise ValueError(f"{name} is empty; expected at least one pair (queries, keys)")
    return [
        (ChosenPositions(f"queries of {name}", queries), ChosenPositions(f"keys of {name}", keys))
        for queries, keys in pairs
    ]
