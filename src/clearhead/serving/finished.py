"""`FinishedRequest`: what was observed of one request, when the engine has finished it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from clearhead.serving.answers import FinishReason, StopRules
from clearhead.serving.layers import ServedLayer

Phases = dict[str, slice]

# statistics with one value per head and query row
ROW_STATISTICS = ("entropy", "distance", "peak", "sink")


@dataclass(frozen=True, eq=False)
class RecordedLayer:
    """Query, key, value and log-sum-exp of one layer, from which every weight follows.

    Attributes:
        layer: options of the layer.
        query: queries of the observed rows.
        key: keys of all tokens. The keys before the window of a sliding layer may be 0.
        value: values of all tokens; None if they were not recorded.
        lse: log-sum-exp of each observed row.
    """

    layer: ServedLayer
    query: Float[Tensor, "heads rows key_dim"]
    key: Float[Tensor, "kv_heads kv_len key_dim"]
    value: Float[Tensor, "kv_heads kv_len value_dim"] | None
    lse: Float[Tensor, "heads rows"]


@dataclass(frozen=True, eq=False)
class FinishedRequest:
    """Statistics and recording of one request. Tensors may be on a GPU.

    The rows are the queries from `first_row` to the last token that the model read. The last token that it wrote was
    never read, so it is not a row.

    Attributes:
        id: id of the request in the engine, which is unique.
        token_ids: tokens that the model read: the prompt, then what it wrote.
        prompt_len: number of tokens of the prompt.
        first_row: position of the first observed query. Tokens before it came from the prefix cache.
        layers: indices of the observed layers.
        heads: indices of the observed heads; None for all.
        statistics: by name. `entropy`, `distance`, `peak` and `sink` [layers, heads, rows], `received` [layers, heads,
            kv_len], `mass` [layers, heads, rows, spans], `top_weights` and `top_keys` [layers, heads, rows, k].
        spans: spans of tokens by name, in the order of `mass`.
        recording: layers of the recording; empty without one.
        dropped: reason why a recording that was asked for is missing; None otherwise.
        client_id: id of the request that its client uses, which may repeat. Default: `id`.
        unread: last token that the model wrote, which it never read; None if it is unknown.
        stop_rules: parameters of the request that end its answer.
        answer_tokens: number of tokens of the answer; None if it is not computed yet. The model may have written more.
        finish_reason: reason why the answer ended; None if it is unknown.
    """

    id: str
    token_ids: list[int]
    prompt_len: int
    first_row: int
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    statistics: dict[str, Tensor]
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recording: tuple[RecordedLayer, ...] = ()
    dropped: str | None = None
    client_id: str | None = None
    unread: int | None = None
    stop_rules: StopRules = field(default_factory=StopRules)
    answer_tokens: int | None = None
    finish_reason: FinishReason | None = None

    @property
    def request(self) -> str:
        """Id of the request that its client uses."""
        return str(self.id if self.client_id is None else self.client_id)

    @property
    def rows(self) -> int:
        """Number of observed query rows."""
        return len(self.token_ids) - self.first_row

    @property
    def first_answer_row(self) -> int:
        """Index of the first row that predicts a token of the answer: the row of the last token of the prompt."""
        return max(0, min(self.prompt_len - 1 - self.first_row, self.rows))

    @property
    def phases(self) -> Phases:
        """Rows of the prompt and of the answer, by name."""
        return phases_of(self.rows, self.first_answer_row, self.answer_tokens)

    @property
    def written(self) -> list[int]:
        """Tokens that the model wrote, without the last one if it is unknown."""
        return self.token_ids[self.prompt_len :] + ([] if self.unread is None else [self.unread])


def phases_of(rows: int, first_answer_row: int, answer_tokens: int | None = None) -> Phases:
    """Return the rows of the prompt and of the answer, by name. Either may have no rows.

    Args:
        rows: number of rows.
        first_answer_row: index of the first row of the answer.
        answer_tokens: number of tokens of the answer, each predicted by a row. Default: all rows are part of it.
    """
    end = rows if answer_tokens is None else min(rows, first_answer_row + answer_tokens)
    return {"prompt": slice(0, first_answer_row), "answer": slice(first_answer_row, end)}
