"""`Observer`: attention of all requests that an inference engine runs, reduced or recorded step by step.

The engine is described by plain data, so that the observer can be tested without one: what each step runs, and for each
layer its queries, its paged cache and its block table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.serving.column_sums import ColumnSums
from clearhead.serving.finished import FinishedRequest
from clearhead.serving.layers import ServedLayer
from clearhead.serving.native import NativeKernel
from clearhead.serving.paged import PagedCache
from clearhead.serving.requests import RequestState
from clearhead.serving.statistics import StatisticsWanted
from clearhead.serving.steps import DecodeBatch, PrefillBatch, StepRow

LastWritten = Callable[[str, int], int | None]
MEMORY_REASON = "the memory budget is used up"


class Scheduled(NamedTuple):
    """Part of one request in a step: its last `q_len` of `kv_len` tokens are the queries."""

    id: str
    q_len: int
    kv_len: int


class Observer:
    """Statistics and recordings of the requests of one engine. All methods are called by the engine's thread.

    Engines run the layers in inference mode, and begin and end steps outside of it. Tensors of that mode cannot be
    changed outside of it, so all methods that create or change tensors run in it.
    """

    def __init__(
        self,
        layers: Mapping[int, ServedLayer],
        wanted: StatisticsWanted,
        emit: Callable[[FinishedRequest], None],
        *,
        heads: tuple[int, ...] | None = None,
        values: bool = True,
        memory: int = 2**30,
        kernel: NativeKernel | None = None,
    ) -> None:
        """Prepare to observe some layers.

        Args:
            layers: observed layers by index.
            wanted: statistics to compute.
            emit: called with each finished request.
            heads: heads to keep. Default: all.
            values: record the values too.
            memory: bytes that the states of all requests may take.
            kernel: compiled functions for CPUs. Default: none, which takes longer.
        """
        self._layers, self._wanted, self._emit = layers, wanted, emit
        self._heads, self._values, self._memory = heads, values, memory
        self._kernel = kernel
        self._states: dict[str, RequestState] = {}
        self._sums = ColumnSums()
        self._prefill, self._decode = self._batches((), ())
        self._pending: Callable[[], tuple[Sequence[Scheduled], Int[Tensor, " tokens"]]] | None = None
        self._scheduled: Sequence[Scheduled] = ()
        self._lost: list[str] = []  # requests of the step that cannot be observed further

    @property
    def requests(self) -> list[str]:
        """Ids of the requests under way."""
        return list(self._states)

    @property
    def nbytes(self) -> int:
        """Memory of the states of all requests, about."""
        return self._sums.nbytes + sum(state.nbytes for state in self._states.values())

    def add(self, state: RequestState) -> None:
        """Observe a new request."""
        self._states[state.id] = state

    def begin(self, batch: Callable[[], tuple[Sequence[Scheduled], Int[Tensor, " tokens"]]]) -> None:
        """Begin a step.

        Args:
            batch: returns the requests in the order of the batch and the token of each query. It is called by the
                first layer, because engines order the batch after they have begun the step.
        """
        self.skip()
        self._pending = batch

    def skip(self) -> None:
        """Begin a step without requests to observe."""
        self._pending, self._scheduled = None, ()
        self._prefill, self._decode = self._batches((), ())

    @torch.inference_mode()
    def attend(
        self,
        layer: int,
        query: Float[Tensor, "tokens heads key_dim"],
        cache: PagedCache,
        block_table: Int[Tensor, "requests blocks"],
    ) -> None:
        """Observe one layer of the step, after its keys were written to the cache."""
        if layer not in self._layers:
            return
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._prepare(*pending())
        served = self._layers[layer]
        if self._prefill:
            self._prefill.attend(served, query, cache, block_table, self._kernel, values=self._values)
        if self._decode:
            self._decode.attend(served, query, cache, block_table, self._kernel, values=self._values)

    @torch.inference_mode()
    def end(self) -> list[str]:
        """End a step: add what was observed to the requests.

        Returns:
            Requests that were dropped, because rows of them are missing or the memory budget is used up. Recordings
            are dropped before.
        """
        if self._pending is not None or not self._scheduled:  # nothing ran
            self.skip()
            return self._take_lost()
        for batch in (self._prefill, self._decode):
            batch.finish(len(self._layers))
        self._sums.flush(keep=self._decode.groups)
        for request in self._scheduled:
            if request.id in self._states:
                self._states[request.id].advance(request.kv_len)
        self.skip()  # engines also run the layers between steps, on batches without requests
        return self._take_lost() + self._drop_beyond_budget()

    def abandon(self) -> list[str]:
        """Drop all requests of the step, which could not be observed. Return their ids."""
        dropped = [request.id for request in self._scheduled if self._states.pop(request.id, None) is not None]
        self.skip()
        return dropped

    def ended(self, last_written: LastWritten) -> list[str]:
        """Return the requests that the engine will finish, because of the token that they wrote last.

        Args:
            last_written: returns the token that a request wrote at a position; None if it is unknown.
        """
        tokens = {request_id: last_written(request_id, state.next_row) for request_id, state in self._states.items()}
        return [request_id for request_id, token in tokens.items() if self._states[request_id].ends_with(token)]

    @torch.inference_mode()
    def finish(self, request_ids: Collection[str], last_written: LastWritten | None = None) -> None:
        """Emit requests that the engine has finished or that the client has aborted.

        Args:
            request_ids: requests to emit.
            last_written: returns the token that a request wrote at a position; None if it is unknown.
        """
        if any(request_id in self._states for request_id in request_ids):
            self._sums.flush()
        for request_id in request_ids:
            state = self._states.pop(request_id, None)
            if state is not None and not state.is_empty:
                unread = None if last_written is None else last_written(request_id, state.next_row)
                self._emit(replace(state.finish(self._layers, self._heads), unread=unread))

    def _prepare(self, scheduled: Sequence[Scheduled], token_ids: Int[Tensor, " tokens"]) -> None:
        prefill, decode, offset = [], [], 0
        self._scheduled = scheduled
        for index, request in enumerate(scheduled):
            state = self._states.get(request.id)
            if state is not None:
                start = request.kv_len - request.q_len
                rows = state.unobserved(start, request.kv_len)
                if rows is None:
                    self._lost.append(request.id)
                    del self._states[request.id]
                elif rows:
                    row = StepRow(state, index, offset + rows.start - start, len(rows), request.kv_len)
                    # a recording begins with the keys of the prefix cache, which decoding rows do not copy
                    begins = state.is_recorded and rows.start == state.first_row and rows.start > 0
                    (decode if len(rows) == 1 and not begins else prefill).append(row)
            offset += request.q_len
        self._prefill, self._decode = self._batches(prefill, decode)
        for batch in (self._prefill, self._decode):
            batch.add_tokens(token_ids)

    def _batches(self, prefill: Sequence[StepRow], decode: Sequence[StepRow]) -> tuple[PrefillBatch, DecodeBatch]:
        return PrefillBatch(prefill, self._wanted), DecodeBatch(decode, self._wanted, self._sums)

    def _take_lost(self) -> list[str]:
        lost, self._lost = self._lost, []
        return lost

    def _drop_beyond_budget(self) -> list[str]:
        dropped: list[str] = []
        excess = self.nbytes - self._memory
        if excess <= 0:
            return dropped
        by_size = sorted(self._states.values(), key=lambda state: state.nbytes, reverse=True)
        for state in by_size:
            if excess > 0 and state.is_recorded:
                before = state.nbytes
                state.drop_recording(MEMORY_REASON)
                excess -= before - state.nbytes
        for state in by_size:
            if excess > 0:
                del self._states[state.id]
                excess -= state.nbytes
                dropped.append(state.id)
        return dropped
