"""Spans of keys, whose share of the attention is a statistic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_int, describe
from clearhead._utils.tensor_checks import check_int_tensor

EXPECTED = "(start, end) pairs, a dict of such pairs by name, or a tensor of segment ids [kv_len] or [batch, kv_len]"
SpansLike = Mapping[str, tuple[int, int]] | list[tuple[int, int]] | tuple[tuple[int, int], ...] | Tensor


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of keys as pairs, which may overlap, or as the segment of each key."""

    pairs: tuple[tuple[int, int], ...] = ()
    segments: Int[Tensor, "batch kv_len"] | None = None  # −1: in no span
    names: tuple[str, ...] | None = None

    @classmethod
    def checked(cls, spans: object) -> Spans:
        """Validate a user's argument."""
        if isinstance(spans, Spans):
            return spans
        if isinstance(spans, Tensor):
            return cls._from_segments(spans)
        names = tuple(spans) if isinstance(spans, Mapping) else None
        try:
            pairs = list(spans.values() if isinstance(spans, Mapping) else spans)  # pyright: ignore
        except TypeError:
            raise TypeError(f"spans is {describe(spans)}; expected {EXPECTED}") from None
        if not pairs:
            raise ValueError(f"spans is empty; expected {EXPECTED}")
        labels = [f"spans[{name!r}]" for name in names or range(len(pairs))]
        return cls(tuple(_pair(label, pair) for label, pair in zip(labels, pairs, strict=True)), names=names)

    @classmethod
    def _from_segments(cls, segments: Tensor) -> Spans:
        segments = check_int_tensor("spans", segments)
        if segments.ndim not in (1, 2) or not segments.numel():
            raise ValueError(
                f"spans has shape {tuple(segments.shape)}; expected segment ids [kv_len] or [batch, kv_len]"
            )
        segments = segments.view(-1, segments.shape[-1])
        low, high = int(segments.min()), int(segments.max())
        if low < -1 or high < 0:
            raise ValueError(f"spans has ids from {low} to {high}; expected ids from 0 on, and −1 for keys in no span")
        return cls(segments=segments)

    def __len__(self) -> int:
        return len(self.pairs) if self.segments is None else int(self.segments.max()) + 1

    def members(self, batch: int, kv_len: int, like: Float[Tensor, "*any"]) -> Float[Tensor, "#batch kv_len spans"]:
        """Return 1 for each key of each span, else 0, in the dtype and on the device of a tensor."""
        if self.segments is not None:
            if self.segments.shape[1] != kv_len or self.segments.shape[0] not in (1, batch):
                shape = tuple(self.segments.shape)
                raise ValueError(f"spans has shape {shape}; expected [kv_len = {kv_len}] or [{batch}, {kv_len}]")
            segments = self.segments.to(like.device)
            return (segments[..., None] == torch.arange(len(self), device=like.device)).to(like.dtype)
        for index, (start, end) in enumerate(self.pairs):
            if end > kv_len:
                name = repr(self.names[index]) if self.names else index
                raise ValueError(f"spans[{name}] is ({start}, {end}); expected an end of at most kv_len = {kv_len}")
        keys = torch.arange(kv_len, device=like.device)[:, None]
        starts, ends = torch.tensor(self.pairs, device=like.device).unbind(dim=1)
        return ((keys >= starts) & (keys < ends)).to(like.dtype)[None]


def _pair(label: str, pair: object) -> tuple[int, int]:
    try:
        start, end = pair  # pyright: ignore[reportGeneralTypeIssues]
    except (TypeError, ValueError):
        raise TypeError(f"{label} is {describe(pair)}; expected (start, end)") from None
    start, end = check_int(f"the start of {label}", start, 0), check_int(f"the end of {label}", end, 0)
    if start >= end:
        raise ValueError(f"{label} is ({start}, {end}); expected start < end, because an empty span has no attention")
    return start, end
