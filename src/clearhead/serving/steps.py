"""Rows of one step of an engine: prefill rows request by request, and decoding rows of all requests at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clearhead.serving.column_sums import ColumnSums
from clearhead.serving.decode import DecodeRows, decode_rows
from clearhead.serving.layers import ServedLayer
from clearhead.serving.native import NativeKernel
from clearhead.serving.native_decode import NativeDecode
from clearhead.serving.native_prefill import NativePrefill
from clearhead.serving.paged import PagedCache
from clearhead.serving.prefill import PrefillRows, Rows, prefill_rows
from clearhead.serving.requests import LayerChunk, RequestState
from clearhead.serving.row_parts import StepValue
from clearhead.serving.statistics import StatisticsWanted

MIN_BUCKET = 256  # keys; shorter requests are computed together


class StepRow(NamedTuple):
    """Rows of one request in a step.

    Attributes:
        state: the request.
        request: index of the request in the batch.
        start: index of the first row among the queries of the batch.
        q_len: number of rows.
        kv_len: number of keys. The rows are the last of them.
    """

    state: RequestState
    request: int
    start: int
    q_len: int
    kv_len: int


class PrefillBatch:
    """Requests with several rows in a step: prefill, chunked prefill, and prompts whose beginning is cached."""

    def __init__(self, rows: Sequence[StepRow], wanted: StatisticsWanted) -> None:
        self._rows, self._wanted = rows, wanted
        self._arguments = [Rows(row.request, row.start, row.q_len, row.kv_len, row.state.spans) for row in rows]
        self._native: NativePrefill | None = None
        self._statistics: list[defaultdict[str, list[Tensor]]] = [defaultdict(list) for _ in rows]
        self._chunks: list[dict[int, LayerChunk]] = [{} for _ in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def add_tokens(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Keep the tokens after the prompt, which a preempted request reads again with its prompt."""
        for row in self._rows:
            written = row.kv_len - max(len(row.state.prompt_ids), row.kv_len - row.q_len)
            if written > 0:
                end = row.start + row.q_len
                row.state.add_written(token_ids[end - written : end].clone())

    def attend(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "tokens heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
        kernel: NativeKernel | None,
        *,
        values: bool,
    ) -> None:
        """Observe one layer. `kernel` is used if it supports the layer."""
        results = self._results(layer, query, cache, block_table, kernel)
        for row, result, statistics, chunks in zip(self._rows, results, self._statistics, self._chunks, strict=True):
            for name, tensor in result.statistics.items():
                if name == "received":
                    row.state.add_received(layer.index, tensor)
                else:
                    statistics[name].append(tensor)
            if row.state.is_recorded:
                queries = query[row.start : row.start + row.q_len]
                chunks[layer.index] = _chunk(row, layer, queries, result.lse.T, cache, block_table, values)

    def _results(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "tokens heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
        kernel: NativeKernel | None,
    ) -> list[PrefillRows]:
        rows, wanted = self._arguments, self._wanted
        if kernel is None or not kernel.supports(query, cache) or not NativePrefill.fits(rows, wanted, layer.heads):
            return prefill_rows(layer, query, cache, rows, block_table, wanted)
        if self._native is None:
            self._native = NativePrefill(kernel, rows, wanted, layer.heads)
        return self._native.run(layer, query, cache, block_table)

    def finish(self, layers: int) -> None:
        """Add the rows to the requests."""
        for row, statistics, chunks in zip(self._rows, self._statistics, self._chunks, strict=True):
            for name, parts in statistics.items():
                _check_layers(len(parts), layers)
                row.state.add_rows(name, torch.stack(parts).movedim(2, 0))
            if chunks:
                row.state.add_chunk(chunks)


class DecodeBatch:
    """Requests with one row in a step. Requests of similar length are computed at once."""

    def __init__(self, rows: Sequence[StepRow], wanted: StatisticsWanted, sums: ColumnSums) -> None:
        by_length: dict[int, list[StepRow]] = {}
        for row in rows:
            by_length.setdefault(max(row.kv_len - 1, MIN_BUCKET - 1).bit_length(), []).append(row)
        self._buckets = [_Bucket(each, wanted, sums) for each in by_length.values()]

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def groups(self) -> tuple[tuple[RequestState, ...], ...]:
        """Requests that are computed at once."""
        return tuple(bucket.states for bucket in self._buckets)

    def add_tokens(self, token_ids: Int[Tensor, " tokens"]) -> None:
        """Keep the tokens after the prompt."""
        for bucket in self._buckets:
            bucket.add_tokens(token_ids)

    def attend(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "tokens heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
        kernel: NativeKernel | None,
        *,
        values: bool,
    ) -> None:
        """Observe one layer."""
        for bucket in self._buckets:
            bucket.attend(layer, query, cache, block_table, kernel, values=values)

    def finish(self, layers: int) -> None:
        """Add the rows to the requests."""
        for bucket in self._buckets:
            bucket.finish(layers)


class _Bucket:
    """Requests of similar length, with one row each."""

    def __init__(self, rows: Sequence[StepRow], wanted: StatisticsWanted, sums: ColumnSums) -> None:
        self._rows, self._wanted, self._sums = rows, wanted, sums
        self.states = tuple(row.state for row in rows)
        self._lengths = [row.kv_len for row in rows]
        self._recorded = [index for index, row in enumerate(rows) if row.state.is_recorded]
        self._with_spans = [index for index, row in enumerate(rows) if row.state.spans]
        self._tensors: _BucketTensors | None = None
        self._native: NativeDecode | None = None
        self._statistics: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._mass: dict[int, list[Tensor]] = {index: [] for index in self._with_spans}
        self._chunks: dict[int, LayerChunk] = {}

    def add_tokens(self, token_ids: Int[Tensor, " tokens"]) -> None:
        self._tensors = _BucketTensors(self._rows, token_ids.device)
        ids = token_ids[self._tensors.queries].clone()  # the engine overwrites its buffer in the next step
        for index, row in enumerate(self._rows):
            if row.kv_len > len(row.state.prompt_ids):
                row.state.add_written(StepValue(ids, index))

    def attend(
        self,
        layer: ServedLayer,
        query: Float[Tensor, "tokens heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
        kernel: NativeKernel | None,
        *,
        values: bool,
    ) -> None:
        tensors = self._tensors
        assert tensors is not None
        queries = query[tensors.queries]
        table = tensors.table(block_table, -(-max(self._lengths) // cache.block_size))
        if kernel is not None and kernel.supports(queries, cache):
            lse = self._run_native(kernel, layer, queries, cache, table)
        else:
            rows = decode_rows(layer, queries, cache, table, tensors.kv_lens)
            self._reduce(layer, rows)
            lse = rows.lse
        if self._recorded:
            chosen = tensors.recorded(self._recorded)
            positions = tensors.kv_lens[chosen] - 1
            blocks = table[chosen].gather(1, (positions // cache.block_size)[:, None])[:, 0]
            key, value = cache.tokens(blocks, positions % cache.block_size, values=values)
            self._chunks[layer.index] = LayerChunk(queries[chosen], key, value, lse[chosen])

    def _run_native(
        self,
        kernel: NativeKernel,
        layer: ServedLayer,
        queries: Float[Tensor, "rows heads key_dim"],
        cache: PagedCache,
        table: Int[Tensor, "rows blocks"],
    ) -> Float[Tensor, "rows heads"]:
        """Compute and keep the statistics of one layer by compiled functions. Return the log-sum-exp of each row."""
        if self._native is None:
            spans = [row.state.spans for row in self._rows]
            self._native = NativeDecode(kernel, self._lengths, spans, self._wanted)
        received = None
        if self._wanted.received:
            shape = (len(queries), layer.kv_heads, layer.group, table.shape[1], cache.block_size)
            received = self._sums.buffer(self.states, layer.index, shape)
        result = self._native.run(layer, queries, cache, table, received)
        statistics = result.rows if result.weights is None else result.rows | self._top(layer, result.weights)
        for name, tensor in statistics.items():
            self._statistics[name].append(tensor)
        for index in self._with_spans:
            assert result.mass is not None
            self._mass[index].append(result.mass[: len(self._rows[index].state.spans), index].T)
        return result.lse

    def _reduce(self, layer: ServedLayer, rows: DecodeRows) -> None:
        """Keep the statistics of one layer."""
        wanted, weights, statistics = self._wanted, rows.weights, self._statistics
        if wanted.entropy:
            statistics["entropy"].append(rows.entropy)
        if wanted.peak:
            statistics["peak"].append(rows.peak)
        if wanted.sink:
            statistics["sink"].append(weights[:, :, :, 0, 0].flatten(1))
        if wanted.received:
            self._sums.add(self.states, layer.index, weights)
        if not (wanted.distance or wanted.top or self._with_spans):
            return
        cells = weights.flatten(3).flatten(1, 2)  # [rows, heads, keys]
        if wanted.distance:
            assert self._tensors is not None
            keys = torch.arange(cells.shape[2], device=cells.device)
            offsets = (self._tensors.kv_lens[:, None] - 1 - keys).clamp(min=0).to(cells.dtype)
            statistics["distance"].append((cells @ offsets[..., None])[..., 0])
        if wanted.top:
            for name, tensor in self._top(layer, cells).items():
                statistics[name].append(tensor)
        for index in self._with_spans:
            spans = self._rows[index].state.spans.values()
            self._mass[index].append(torch.stack([cells[index, :, a:b].sum(dim=-1) for a, b in spans], dim=-1))

    def _top(self, layer: ServedLayer, cells: Float[Tensor, "rows heads keys"]) -> dict[str, Tensor]:
        """Return the largest weights of each row and their keys, largest first; key −1 if a row has fewer."""
        assert self._tensors is not None
        kv_lens, keys = self._tensors.kv_lens[:, None], torch.arange(cells.shape[2], device=cells.device)
        allowed = (keys >= layer.first_keys(kv_lens - 1)) & (keys < kv_lens)
        # a weight may underflow to 0, so keys outside of the row get a lower one
        weights, best = cells.masked_fill(~allowed[:, None], -1).topk(min(self._wanted.top, cells.shape[2]))
        missing = (0, self._wanted.top - best.shape[2])
        best = pad(best.masked_fill(weights < 0, -1), missing, value=-1)
        return {"top_weights": pad(weights.clamp(min=0), missing), "top_keys": best}

    def finish(self, layers: int) -> None:
        for name, parts in self._statistics.items():
            _check_layers(len(parts), layers)
            values = torch.stack(parts, dim=1)
            for index, state in enumerate(self.states):
                state.add_rows(name, StepValue(values, index))
        for index, parts in self._mass.items():
            self.states[index].add_rows("mass", torch.stack(parts)[None])
        for position, index in enumerate(self._recorded):
            self.states[index].add_chunk(self._chunks, position)


class _BucketTensors:
    """Indices of the rows of a bucket on the device, which all layers share."""

    def __init__(self, rows: Sequence[StepRow], device: torch.device) -> None:
        starts = [row.start for row in rows]
        first = starts[0]
        consecutive = starts == list(range(first, first + len(starts)))
        indices = _on_device([starts, [row.kv_len for row in rows], [row.request for row in rows]], device)
        self.queries = slice(first, first + len(starts)) if consecutive else indices[0]
        self.kv_lens, self._requests = indices[1], indices[2]
        self._tables: dict[tuple[int, int], Tensor] = {}
        self._recorded: Tensor | None = None

    def table(self, block_table: Int[Tensor, "requests blocks"], blocks: int) -> Int[Tensor, "rows blocks"]:
        """Return the rows of a block table, which the layers of one group share."""
        key = (block_table.data_ptr(), blocks)
        if key not in self._tables:
            self._tables[key] = block_table[self._requests, :blocks].long()
        return self._tables[key]

    def recorded(self, indices: list[int]) -> Int[Tensor, " recorded"]:
        """Return the indices of recorded rows as a tensor."""
        if self._recorded is None:
            self._recorded = _on_device(indices, self.kv_lens.device)
        return self._recorded


def _on_device(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return integers on a device. A copy from memory that is not pinned would wait for the GPU."""
    tensor = torch.tensor(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def _chunk(
    row: StepRow,
    layer: ServedLayer,
    query: Float[Tensor, "rows heads key_dim"],
    lse: Float[Tensor, "rows heads"],
    cache: PagedCache,
    block_table: Int[Tensor, "requests blocks"],
    values: bool,
) -> LayerChunk:
    """Copy the queries of a recorded request and its new keys.

    The first chunk contains the keys from the prefix cache too. A sliding layer may have freed keys before the window
    of the first row, so they are 0.
    """
    first = row.kv_len - row.q_len
    start = 0 if row.state.next_row == row.state.first_row else first
    window = start if layer.window is None else max(start, first + 1 - layer.window)
    key, value = cache.gather(block_table[row.request], window, row.kv_len, values=values)
    key, value = (None if each is None else pad(each, (0, 0, window - start, 0)) for each in (key, value))
    assert key is not None
    return LayerChunk(query.clone(), key.transpose(0, 1), None if value is None else value.transpose(0, 1), lse.clone())


def _check_layers(count: int, expected: int) -> None:
    if count != expected:
        raise ValueError(f"{count} layers ran in a step; expected {expected}")
