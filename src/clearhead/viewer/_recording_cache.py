"""Cache of the results computed from one recording, shared by all pages that show it."""

from __future__ import annotations

from collections import OrderedDict

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import describe
from clearhead.analysis import HeadStatistics, Roles
from clearhead.ops.alibi import ALiBi
from clearhead.recording import Address, Recording, is_self_attention
from clearhead.viewer._distinctive import distinctive_cell, distinctive_head
from clearhead.viewer._heatmap import HeadOverview
from clearhead.viewer._thumbnails import Thumbnail, layer_thumbnails, redraw_thumbnails
from clearhead.weights.matrix import AttentionWeights

OVERVIEW_CACHE_BYTES = 2**28  # the least recently used overviews are evicted
MAX_MEASURED_CELLS = 2**14  # largest matrices of which all heads are measured before the first one is shown
MAX_SEARCHED_CELLS = 2**18  # largest matrix that is searched for its largest weight
_LABEL_ORDER = (  # most specific first
    "induction",
    "duplicate token",
    "relation",
    "previous token",
    "next token",
    "self",
    "positional",
    "delimiter",
    "first token",
    "broad",
    "sharp",
)


class RecordingCache:
    """Recording with the thumbnails, labels and overviews of its heads. Not thread-safe.

    Labels come from `roles` (default: computed from this text alone).
    """

    def __init__(self, recording: Recording, roles: Roles | None = None) -> None:
        if roles is not None:
            _check_roles(roles, recording)
        self.recording = recording
        self.roles = roles
        self._thumbnails: dict[tuple[str, int, bool, bool], list[Thumbnail]] = {}
        self._overviews: OrderedDict[tuple[Address, bool, bool], HeadOverview] = OrderedDict()
        self._clearest: Address | None = None

    def thumbnails(
        self, stack: str, layer: int, *, hide: bool = False, value_weighted: bool = False
    ) -> list[Thumbnail]:
        """Return the thumbnail of each head of a layer. The first call computes it.

        The options are those of `weights`. A stack without value norms is not weighted.
        """
        recorded, hidden = self.recording[stack], self.hidden_keys(stack) if hide else []
        shares = self.value_shares(stack, layer) if value_weighted else None
        cache_key = (stack, layer, bool(hidden), shares is not None)
        if cache_key not in self._thumbnails:
            if hidden or shares is not None:
                weights = _shown(recorded.layers[layer], hidden, shares)
                drawn = redraw_thumbnails(self.thumbnails(stack, layer), recorded, weights)
            else:
                drawn = layer_thumbnails(stack, recorded, layer)
            self._thumbnails[cache_key] = drawn
        return self._thumbnails[cache_key]

    @property
    def labeled_by_roles(self) -> bool:
        """True if labels come from roles instead of this text."""
        return self.roles is not None

    def labels(self, address: Address) -> tuple[str, ...]:
        """Return the labels of a head, most specific first."""
        roles = self.roles
        if roles is None:
            stack, layer, head = address
            roles = Roles(self.recording.model, {address: self.thumbnails(stack, layer)[head].statistics})
        return labels_of(roles, address)

    def hidden_keys(self, stack: str) -> list[int]:
        """Return the sink keys: special tokens and, in self-attention, the first token."""
        tokens = self.recording[stack].keys
        first = {0} if is_self_attention(stack, self.recording[stack]) else set()
        hidden = sorted(first | {index for index, special in enumerate(tokens.special) if special})
        return hidden if len(hidden) < len(tokens) else []

    def weights(self, address: Address, *, hide: bool = False, value_weighted: bool = False) -> AttentionWeights:
        """Return one head's matrix.

        Args:
            address: the head.
            hide: mask the sink keys.
            value_weighted: return A · ‖v W_O‖ / m, where m is the largest ‖v W_O‖ of the head. Weights are then at
                most 1, as the colors expect, and a weight of 1 is the most that a key can contribute.

        Raises:
            ValueError: if `value_weighted` is True and the recording has no value norms.
        """
        stack, layer, head = address
        hidden = self.hidden_keys(stack) if hide else []
        shares = self.value_shares(stack, layer) if value_weighted else None
        if value_weighted and shares is None:
            raise ValueError(
                f"value_weighted is True, but the recording has no value norms of {stack!r}; expected a recording"
                " with values=True of a model with a known output projection, without ALiBi"
            )
        return _shown(self.recording.weights(address), hidden, None if shares is None else shares[head])

    def can_weight_values(self, stack: str) -> bool:
        """Return whether the matrices of a stack can be weighted by the norms of their values."""
        recorded = self.recording[stack]
        has_alibi = any(isinstance(weights.bias, ALiBi) for weights in recorded.layers)
        return recorded.value_norms is not None and not has_alibi

    def value_shares(self, stack: str, layer: int) -> Float[Tensor, "heads kv_len"] | None:
        """Return ‖v W_O‖ of each key as a share of its head's largest; None if the stack cannot be weighted."""
        norms = self.recording[stack].value_norms
        if norms is None or not self.can_weight_values(stack):
            return None
        largest = norms[layer].amax(dim=1, keepdim=True)
        return norms[layer] / torch.where(largest > 0, largest, 1.0)

    def stack_shares(self, stack: str) -> list[Float[Tensor, "heads kv_len"]] | None:
        """Return `value_shares` of every layer of a stack; None if the stack cannot be weighted."""
        layers = range(len(self.recording[stack].layers))
        shares = [self.value_shares(stack, layer) for layer in layers] if self.can_weight_values(stack) else []
        return [each for each in shares if each is not None] or None

    def value_norms(self, address: Address) -> Float[Tensor, " kv_len"] | None:
        """Return ‖v W_O‖ of each key of a head; None if unknown."""
        stack, layer, head = address
        norms = self.recording[stack].value_norms
        return None if norms is None else norms[layer][head]

    def output_weight(self, address: Address) -> Float[Tensor, "value_dim output_dim"] | None:
        """Return the rows of a head in the output projection W_O; None without the model, or if W_O has changed."""
        stack, layer, head = address
        projections = self.recording[stack].output_projections
        if projections is None or not projections[layer].is_unchanged:
            return None
        return projections[layer].of_head(head)

    def overview(self, address: Address, *, hide: bool = False, value_weighted: bool = False) -> HeadOverview:
        """Return the overview of one head, which may still be incomplete. Only its heatmaps are value-weighted."""
        cache_key = (address, hide, value_weighted)
        if cache_key not in self._overviews:
            shown = self.weights(address, hide=hide, value_weighted=value_weighted)
            self._overviews[cache_key] = HeadOverview(self.recording.weights(address), shown)
        self._overviews.move_to_end(cache_key)
        while len(self._overviews) > 1 and self._overview_bytes > OVERVIEW_CACHE_BYTES:
            self._overviews.popitem(last=False)
        return self._overviews[cache_key]

    @property
    def _overview_bytes(self) -> int:
        return sum(overview.bytes for overview in self._overviews.values())

    def clearest_head(self) -> Address:
        """Return the clearest head of the last stack, to show first. Long texts use a sample of their queries."""
        if self._clearest is None:
            name, stack = list(self.recording.stacks.items())[-1]
            if len(stack.queries) * len(stack.keys) > MAX_MEASURED_CELLS:
                self._clearest = (name, *distinctive_head(name, stack, self.hidden_keys(name)))
            else:
                heads = (address for address in self.recording.heads() if address[0] == name)
                self._clearest = max(heads, key=self._clarity)
        return self._clearest

    def _clarity(self, address: Address) -> float:
        stack, layer, head = address
        return clarity(self.thumbnails(stack, layer)[head].statistics)

    def strongest_cell(self, address: Address) -> tuple[int, int]:
        """Return the cell with the largest weight, with special and sink tokens scaled down.

        Long texts use a sample of their queries, and leave out the tokens near each query.
        """
        stack = self.recording[address[0]]
        weights = self.recording.weights(address)
        hidden = self.hidden_keys(address[0])
        _, _, q_len, kv_len = weights.shape
        if q_len * kv_len > MAX_SEARCHED_CELLS:
            return distinctive_cell(address[0], stack, weights, hidden)
        cells = weights[0, 0].clone()
        cells[torch.tensor(stack.queries.special)] *= 0.01
        cells[:, hidden] *= 0.01
        return divmod(int(cells.argmax()), kv_len)


def _shown(
    weights: AttentionWeights, hidden: list[int], shares: Float[Tensor, "*heads kv_len"] | None
) -> AttentionWeights:
    """Return a matrix without hidden keys, with its columns scaled by the shares of the values."""
    visible = weights.hiding(hidden) if hidden else weights
    return visible if shares is None else visible.scaled(keys=shares)


def labels_of(roles: Roles, address: Address) -> tuple[str, ...]:
    """Return the displayed labels of a head, most specific first; empty if the head was not measured.

    Labels of the same kind, such as relations, are strongest first.
    """
    labels = roles.labels(address) if address in roles.heads else ()
    return tuple(sorted(("first token" if label == "sink" else label for label in labels), key=_generality))


def _generality(label: str) -> int:
    """Return the position of a label in the display order."""
    kind = "relation" if ": " in label else "positional" if label.startswith("positional ") else label
    return _LABEL_ORDER.index(kind)


def clarity(statistics: HeadStatistics) -> float:
    """Return how sharp a head is, from 0 to 1, scaled down by its attention to sinks, special and adjacent tokens."""
    sink = max(statistics.sink or 0.0, statistics.delimiter or 0.0)
    adjacent = sum(weight or 0.0 for weight in (statistics.self, statistics.previous, statistics.next))
    return (1 - (1.0 if statistics.spread is None else statistics.spread)) * max(0.0, 1 - sink - adjacent)


def _check_roles(roles: Roles, recording: Recording) -> None:
    if not isinstance(roles, Roles):
        raise TypeError(f"roles is {describe(roles)}; expected Roles, from clearhead.analysis.head_roles, or None")
    if roles.model != recording.model or not set(roles.heads) <= set(recording.heads()):
        raise ValueError(
            f"roles is of {roles.model!r} with {len(roles.heads)} heads, but recording is of {recording.model!r} with"
            f" {len(list(recording.heads()))}; expected roles of the same model"
        )
