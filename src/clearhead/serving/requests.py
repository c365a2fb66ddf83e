"""State of one observed request while the engine runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clearhead.serving.answers import StopRules
from clearhead.serving.finished import FinishedRequest, RecordedLayer
from clearhead.serving.layers import ServedLayer
from clearhead.serving.row_parts import STEPS, RowParts, StepValue

Spans = Mapping[str, tuple[int, int]]


class LayerChunk(NamedTuple):
    """Rows of recorded requests in one layer and step, and the keys that are new in this step."""

    query: Float[Tensor, "rows heads key_dim"]
    key: Float[Tensor, "keys kv_heads key_dim"]
    value: Float[Tensor, "keys kv_heads value_dim"] | None
    lse: Float[Tensor, "rows heads"]


class RequestState:
    """Rows, column sums and chunks of one request, which grow with each step.

    Attributes:
        id: id of the request in the engine.
        client_id: id of the request that its client uses.
        prompt_ids: tokens of the prompt.
        first_row: position of the first observed query; None before the first step.
        next_row: position after the last observed query.
        spans: spans of tokens by name.
        is_recorded: whether queries, keys and values are kept.
        dropped: reason why a recording that was asked for is missing.
        nbytes: memory of the state, about.
        stop_rules: parameters of the request that end its answer.
    """

    def __init__(
        self,
        request_id: str,
        prompt_ids: list[int],
        spans: Spans,
        *,
        record: bool,
        client_id: str | None = None,
        stop_rules: StopRules | None = None,
    ) -> None:
        self.id, self.client_id = request_id, client_id or request_id
        self.prompt_ids, self.spans, self.is_recorded = prompt_ids, spans, record
        self.stop_rules = stop_rules or StopRules()
        self.first_row: int | None = None
        self.next_row = 0
        self.dropped: str | None = None
        self.nbytes = 0
        self._written = RowParts()  # ids of the tokens that the model wrote and then read
        self._rows: dict[str, RowParts] = {}  # [rows, layers, heads, ...]
        self._received: dict[int, Float[Tensor, "heads kv_len"]] = {}
        self._blocks: dict[int, Float[Tensor, "kv_heads group blocks block"]] = {}  # column sums in decoding
        self._chunks: list[dict[int, LayerChunk]] = []
        self._shared_chunks: list[tuple[dict[int, LayerChunk], int]] = []  # of steps, with a row of this request

    def unobserved(self, start: int, end: int) -> range | None:
        """Return the rows from `start` to `end` that were not observed before; None if rows between are missing.

        A preempted request reads its tokens again, so rows may repeat. Rows are missing if another request has written
        keys of the same prompt to the prefix cache in between.
        """
        if self.first_row is None:
            self.first_row = self.next_row = start
        return None if start > self.next_row else range(max(start, self.next_row), end)

    def advance(self, end: int) -> None:
        """Count the rows before `end` as observed."""
        self.next_row = max(self.next_row, end)

    def add_written(self, ids: Int[Tensor, " rows"] | StepValue) -> None:
        """Add the tokens of rows after the prompt."""
        self._written.add(ids)

    def add_rows(self, name: str, values: Float[Tensor, "rows layers heads ..."] | StepValue) -> None:
        """Add the statistics of some rows; those of a single row are a `StepValue` [layers, heads, ...]."""
        if name not in self._rows:
            self._rows[name] = RowParts()
        self._rows[name].add(values)
        self.nbytes += values.nbytes

    def add_received(self, layer: int, received: Float[Tensor, "heads kv_len"]) -> None:
        """Add the column sums of several rows."""
        before = self._received.get(layer)
        if before is not None:
            received = received + pad(before, (0, received.shape[1] - before.shape[1]))
            self.nbytes -= before.nbytes
        self._received[layer] = received
        self.nbytes += received.nbytes

    def add_block_sums(self, layer: int, received: Float[Tensor, "kv_heads group blocks block"]) -> None:
        """Add the column sums of decoding rows, in blocks of tokens."""
        sums, (kv_heads, group, count, block) = self._blocks.get(layer), received.shape
        if sums is None or sums.shape[2] < count:
            grown = received.new_zeros((kv_heads, group, max(4, 2 * count), block))
            if sums is not None:
                grown[:, :, : sums.shape[2]] = sums
            self.nbytes += grown.nbytes - (0 if sums is None else sums.nbytes)
            self._blocks[layer] = sums = grown
        sums[:, :, :count] += received

    def add_chunk(self, chunk: dict[int, LayerChunk], row: int | None = None) -> None:
        """Add the rows of one step of a recorded request, by layer.

        Args:
            chunk: rows and new keys.
            row: row of this request, if the chunk contains one row of several requests.
        """
        if row is None:
            self._join_chunks()
            self._chunks.append(chunk)
        else:
            self._shared_chunks.append((chunk, row))
            if len(self._shared_chunks) == STEPS:  # as in `RowParts`
                self._join_chunks()
        self.nbytes += _chunk_bytes(chunk, row)

    def _join_chunks(self) -> None:
        """Copy the rows of this request from chunks that it shares."""
        shared, self._shared_chunks = self._shared_chunks, []
        if shared:
            rows = {layer: [_row(chunk[layer], row) for chunk, row in shared] for layer in shared[0][0]}
            self._chunks.append({layer: _joined(parts) for layer, parts in rows.items()})

    def drop_recording(self, reason: str) -> None:
        """Stop recording; the statistics continue."""
        self.nbytes -= sum(_chunk_bytes(chunk, None) for chunk in self._chunks)
        self.nbytes -= sum(_chunk_bytes(chunk, row) for chunk, row in self._shared_chunks)
        self.is_recorded, self.dropped, self._chunks, self._shared_chunks = False, reason, [], []

    @property
    def is_empty(self) -> bool:
        """True if no row was observed."""
        return self.first_row is None or self.next_row == self.first_row

    def ends_with(self, token: int | None) -> bool:
        """Return whether a token that was sampled after the last row ends the answer. None is an unknown token."""
        rules, written = self.stop_rules, self.next_row - len(self.prompt_ids) + 1
        is_last = rules.max_tokens is not None and written >= rules.max_tokens
        return token is not None and (is_last or token in rules.tokens)

    def finish(self, layers: Mapping[int, ServedLayer], heads: tuple[int, ...] | None) -> FinishedRequest:
        """Return everything that was observed."""
        assert self.first_row is not None
        self._join_chunks()
        chosen = slice(None) if heads is None else list(heads)
        statistics = {name: parts.all().movedim(0, 2)[:, chosen] for name, parts in self._rows.items()}
        if self._received or self._blocks:
            columns = [self._column_sums(layer)[chosen] for layer in layers]
            statistics["received"] = torch.stack(columns)
        return FinishedRequest(
            self.id,
            self._token_ids(),
            len(self.prompt_ids),
            self.first_row,
            tuple(layers),
            heads,
            statistics,
            dict(self.spans),
            tuple(self._recorded(layer) for layer in layers.values()) if self._chunks else (),
            self.dropped,
            self.client_id,
            stop_rules=self.stop_rules,
        )

    def _token_ids(self) -> list[int]:
        ids = [*self.prompt_ids, *(self._written.all().tolist() if self._written else ())]
        return ids[: self.next_row]

    def _column_sums(self, layer: int) -> Float[Tensor, "heads kv_len"]:
        """Return the column sums of prefill and decoding rows of one layer."""
        length = self.next_row
        total = None
        if layer in self._received:
            before = self._received[layer]
            total = pad(before, (0, length - before.shape[1]))
        if layer in self._blocks:
            decoded = self._blocks[layer].flatten(2).flatten(0, 1)
            decoded = pad(decoded, (0, length - decoded.shape[1]))  # a negative width cuts the end of the last block
            total = decoded if total is None else total + decoded
        assert total is not None
        return total

    def _recorded(self, layer: ServedLayer) -> RecordedLayer:
        query, key, value, lse = _joined([chunk[layer.index] for chunk in self._chunks])
        values = None if value is None else value.transpose(0, 1)
        return RecordedLayer(layer, query.transpose(0, 1), key.transpose(0, 1), values, lse.transpose(0, 1))


def _row(chunk: LayerChunk, row: int) -> LayerChunk:
    """Return one row of a chunk."""
    part = slice(row, row + 1)
    value = None if chunk.value is None else chunk.value[part]
    return LayerChunk(chunk.query[part], chunk.key[part], value, chunk.lse[part])


def _joined(chunks: Sequence[LayerChunk]) -> LayerChunk:
    """Return the rows and keys of consecutive chunks."""
    values = [chunk.value for chunk in chunks if chunk.value is not None]
    return LayerChunk(
        torch.cat([chunk.query for chunk in chunks]),
        torch.cat([chunk.key for chunk in chunks]),
        torch.cat(values) if values else None,
        torch.cat([chunk.lse for chunk in chunks]),
    )


def _chunk_bytes(chunk: dict[int, LayerChunk], row: int | None) -> int:
    """Return the memory of a chunk, or of one of its rows."""
    total = sum(tensor.nbytes for layer in chunk.values() for tensor in layer if tensor is not None)
    return total if row is None else total // len(next(iter(chunk.values())).query)
