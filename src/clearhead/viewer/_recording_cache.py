"""What has been computed of one recording, kept for all pages that show it."""

from __future__ import annotations

from collections import OrderedDict

import torch

from clearhead.analysis.roles import Roles
from clearhead.analysis.statistics import HeadStatistics
from clearhead.recording.recording import Address, Recording, is_self_attention
from clearhead.viewer._heatmap import Overview
from clearhead.viewer._thumbnails import Thumbnail, thumbnails
from clearhead.weights.matrix import AttentionWeights

KEPT = 2**28  # bytes of overviews; those used last stay
FEW = 2**18  # cells that are looked through for the largest


class Gallery:
    """A recording with its heads' small maps, labels and overviews. One thread at a time uses it.

    Labels are those of `roles` where they are given, else those that follow from this text alone.
    """

    def __init__(self, recording: Recording, roles: Roles | None = None) -> None:
        if roles is not None:
            _check_roles(roles, recording)
        self.recording = recording
        self._roles = roles
        self._thumbnails: dict[tuple[str, int], list[Thumbnail]] = {}
        self._overviews: OrderedDict[tuple[Address, bool], Overview] = OrderedDict()

    def thumbnails(self, stack: str, layer: int) -> list[Thumbnail]:
        """Of each head of a layer; computed when they are first asked for."""
        place = (stack, layer)
        if place not in self._thumbnails:
            self._thumbnails[place] = thumbnails(stack, self.recording[stack], layer)
        return self._thumbnails[place]

    @property
    def labelled_by_roles(self) -> bool:
        """Whether labels come from a file, not from this text."""
        return self._roles is not None

    def labels(self, address: Address) -> tuple[str, ...]:
        """What the head clearly does, strongest first."""
        roles = self._roles
        if roles is None:
            stack, layer, head = address
            roles = Roles(self.recording.model, {address: self.thumbnails(stack, layer)[head].statistics})
        return labels_of(roles, address)

    def hidden_keys(self, stack: str) -> list[int]:
        """Where attention goes that has nowhere to go: tokens that are no part of the text, and the first one."""
        own = self.recording[stack]
        first = {0} if is_self_attention(stack, own) else set()
        hidden = sorted(first | {place for place, special in enumerate(own.keys.special) if special})
        return hidden if len(hidden) < len(own.keys) else []

    def weights(self, address: Address, *, hide: bool = False) -> AttentionWeights:
        """One head's matrix; without the keys that are hidden."""
        weights = self.recording.weights(address)
        hidden = self.hidden_keys(address[0]) if hide else []
        return weights.hiding(hidden) if hidden else weights

    def overview(self, address: Address, *, hide: bool = False) -> Overview:
        """Of one head: begun when it is first asked for, and kept as far as it has come."""
        place = (address, hide)
        if place not in self._overviews:
            hidden = self.hidden_keys(address[0]) if hide else []
            self._overviews[place] = Overview(self.recording.weights(address), hidden)
        self._overviews.move_to_end(place)
        while len(self._overviews) > 1 and sum(own.bytes for own in self._overviews.values()) > KEPT:
            self._overviews.popitem(last=False)
        return self._overviews[place]

    def clearest(self) -> Address:
        """A head worth looking at first: of the last kind of attention, sharp, and not on tokens that say nothing.

        Of a long text, whose small maps take their time, it is one of the middle layer.
        """
        name, stack = list(self.recording.stacks.items())[-1]
        layers = range(len(stack.layers))
        if len(stack.queries) * len(stack.keys) > FEW:
            layers = layers[len(layers) // 2 :][:1]

        heads = (address for address in self.recording.heads() if address[0] == name and address[1] in layers)
        return max(heads, key=lambda place: clarity(self.thumbnails(place[0], place[1])[place[2]].statistics))

    def strongest(self, address: Address) -> tuple[int, int]:
        """The cell with the largest weight, but for tokens that say nothing; of a long text, of its middle row."""
        stack = self.recording[address[0]]
        weights = self.recording.weights(address)
        _, _, q_len, kv_len = weights.shape
        if q_len * kv_len > FEW:
            return q_len // 2, int(weights[0, 0, q_len // 2].argmax())
        cells = weights.dense()[0, 0].clone()
        cells[torch.tensor(stack.queries.special)] *= 0.01
        cells[:, self.hidden_keys(address[0])] *= 0.01
        query, key = divmod(int(cells.argmax()), kv_len)
        return query, key


def labels_of(roles: Roles, address: Address) -> tuple[str, ...]:
    """What a head clearly does, as readers are told; nothing where it was not measured."""
    labels = roles.labels(address) if address in roles.heads else ()
    return tuple("first token" if label == "sink" else label for label in labels)


def clarity(own: HeadStatistics) -> float:
    """How much there is to see of a head: it is sharp, and not on tokens that say nothing."""
    nowhere = max(own.sink or 0.0, own.delimiter or 0.0)
    return (1 - (1.0 if own.spread is None else own.spread)) * (1 - nowhere)


def _check_roles(roles: Roles, recording: Recording) -> None:
    if roles.model != recording.model or not set(roles.heads) <= set(recording.heads()):
        raise ValueError(
            f"roles is of {roles.model!r} with {len(roles.heads)} heads, but what is shown is {recording.model!r} with"
            f" {len(list(recording.heads()))}; expected roles of the same model"
        )
