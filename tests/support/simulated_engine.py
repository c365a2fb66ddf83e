"""Inference engine with paged caches, without a model: queries, keys and values of each request are random."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from clearhead.functional import lazy_weights
from clearhead.serving.layers import ServedLayer
from clearhead.serving.observer import Observer, Scheduled
from clearhead.serving.paged import PagedCache
from clearhead.serving.requests import RequestState

BLOCK, KEY_DIM = 4, 6


@dataclass
class Request:
    """One request with all tokens that it will ever have."""

    id: str
    length: int
    tensors: list[tuple[Tensor, Tensor, Tensor]]  # query, key and value [heads, length, key_dim] of each layer
    prompt_len: int
    blocks: list[list[int]] = field(default_factory=list)  # of each layer
    computed: int = 0

    @property
    def token_ids(self) -> list[int]:
        return [100 * int(self.id) + position for position in range(self.length)]


class SimulatedEngine:
    """Engine that writes the keys of each step to its caches and shows the step to an observer."""

    def __init__(self, observer: Observer, layers: list[ServedLayer], *, device: str = "cpu", seed: int = 0) -> None:
        self.observer, self.layers, self.device = observer, layers, device
        self._generator = torch.Generator().manual_seed(seed)
        self._count = 80
        shape = (self._count, layers[0].kv_heads, BLOCK, 2 * KEY_DIM)
        self.caches = [torch.full(shape, torch.nan, device=device) for _ in layers]
        self._free = [list(range(1, self._count)) for _ in layers]  # block 0 stands for freed blocks
        self.requests: dict[str, Request] = {}

    def add(
        self, request_id: str, length: int, prompt_len: int, *, cached: int = 0, record=False, spans=None
    ) -> Request:
        """Add a request whose first `cached` tokens are in the prefix cache."""

        def random(heads: int) -> Tensor:
            return torch.randn(heads, length, KEY_DIM, generator=self._generator).to(self.device)

        tensors = [(random(layer.heads), random(layer.kv_heads), random(layer.kv_heads)) for layer in self.layers]
        request = Request(request_id, length, tensors, prompt_len, [[] for _ in self.layers])
        self.requests[request_id] = request
        self._write(request, 0, cached)
        request.computed = cached
        prompt = request.token_ids[:prompt_len]
        self.observer.add(RequestState(request_id, prompt, spans or {}, record=record))
        return request

    def step(self, scheduled: dict[str, int]) -> list[str]:
        """Run some tokens of each request. Return the requests that the observer dropped."""
        batch, queries, ids = [], [[] for _ in self.layers], []
        for request_id, q_len in scheduled.items():
            request = self.requests[request_id]
            start, end = request.computed, request.computed + q_len
            self._write(request, start, end)
            request.computed = end
            batch.append(Scheduled(request_id, q_len, end))
            ids += request.token_ids[start:end]
            for layer, rows in enumerate(queries):
                rows.append(request.tensors[layer][0][:, start:end].transpose(0, 1))
        tokens = torch.tensor(ids, dtype=torch.int32, device=self.device)
        self.observer.begin(lambda: (batch, tokens))
        width = max(len(self.requests[name].blocks[0]) for name in scheduled) + 1
        for index, layer in enumerate(self.layers):
            table = torch.zeros(len(scheduled), width, dtype=torch.int32)
            for row, name in enumerate(scheduled):
                blocks = self.requests[name].blocks[index]
                table[row, : len(blocks)] = torch.tensor(blocks)
            cache = PagedCache.interleaved(self.caches[index])
            self.observer.attend(layer.index, torch.cat(queries[index]), cache, table.to(self.device))
        dropped = self.observer.end()
        tokens.fill_(-1)  # the engine reuses its buffer
        self._free_before_windows()
        return dropped

    def preempt(self, request_id: str) -> None:
        """Free the blocks of a request, which will be computed again."""
        request = self.requests[request_id]
        for layer, blocks in enumerate(request.blocks):
            for block in blocks:
                self._release(layer, block)
        request.blocks, request.computed = [[] for _ in self.layers], 0

    def _write(self, request: Request, start: int, end: int) -> None:
        for layer, blocks in enumerate(request.blocks):
            _, key, value = request.tensors[layer]
            while len(blocks) * BLOCK < end:
                blocks.append(self._free[layer].pop())
            for position in range(start, end):
                slot = self.caches[layer][blocks[position // BLOCK], :, position % BLOCK]
                slot[:, :KEY_DIM], slot[:, KEY_DIM:] = key[:, position], value[:, position]

    def _free_before_windows(self) -> None:
        for layer, served in enumerate(self.layers):
            for request in self.requests.values():
                first = 0 if served.window is None else max(0, request.computed + 1 - served.window)
                for index in range(min(first // BLOCK, len(request.blocks[layer]))):
                    self._release(layer, request.blocks[layer][index])
                    request.blocks[layer][index] = 0

    def _release(self, layer: int, block: int) -> None:
        if block:
            self.caches[layer][block] = torch.nan
            self._free[layer].insert(0, block)

    def expected(self, request: Request, layer: int, first_row: int, end: int):
        """Return the lazy matrix of some rows in float64."""
        query, key, value = (tensor[:, :end].double() for tensor in request.tensors[layer])
        call = self.layers[layer].call(query[None, :, first_row:], key[None], value[None])
        return lazy_weights(call, keep_qk=True)
