"""Statistics of the attention matrix: requests and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

from jaxtyping import Float, Int
from torch import Tensor

from clearhead._utils.checks import check_bool, check_choice, check_int, describe
from clearhead.ops.spans import Spans, SpansLike

Reduce = Literal["mean", "max"]
MAX_POOL_SIDE = 2**16


class TopK(NamedTuple):
    """Largest weights of each query and their keys. Rows with fewer keys are filled with key −1 and weight 0."""

    weights: Float[Tensor, "batch heads q_len top"]
    keys: Int[Tensor, "batch heads q_len top"]


class PoolSpec(NamedTuple):
    """Size of a pooled matrix, and the reduction of the weights in a bin."""

    rows: int
    cols: int
    reduce: Reduce

    @classmethod
    def checked(cls, rows: object, cols: object, reduce: object) -> PoolSpec:
        """Validate a user's arguments and build a spec."""
        rows, cols = check_int("rows", rows, most=MAX_POOL_SIDE), check_int("cols", cols, most=MAX_POOL_SIDE)
        return cls(rows, cols, check_choice("reduce", reduce, ("mean", "max")))  # pyright: ignore[reportArgumentType]


class StatisticsOptions(TypedDict, total=False):
    """Keyword arguments of every function that computes statistics."""

    entropy: bool
    received: bool
    distance: bool
    peak: bool
    spans: SpansLike | None
    top: int | None
    pool: tuple[int, int] | None
    reduce: Reduce


@dataclass(frozen=True)
class StatisticsRequest:
    """Statistics to compute in one pass over the matrix."""

    entropy: bool = False
    received: bool = False
    distance: bool = False
    top: int = 0  # number of largest weights to return per row
    pool: PoolSpec | None = None
    peak: bool = False
    spans: Spans | None = None

    def requests(self, name: str) -> bool:
        """Return whether a result of `AttentionStatistics` is requested."""
        requested = {"mass": self.spans is not None, "top": self.top > 0, "pooled": self.pool is not None}
        return requested[name] if name in requested else getattr(self, name)

    @classmethod
    def checked(
        cls,
        *,
        entropy: bool = False,
        received: bool = False,
        distance: bool = False,
        peak: bool = False,
        spans: SpansLike | None = None,
        top: int | None = None,
        pool: tuple[int, int] | None = None,
        reduce: Reduce = "mean",
    ) -> StatisticsRequest:
        """Validate a user's arguments, typed by `StatisticsOptions`, and build a request."""
        check_choice("reduce", reduce, ("mean", "max"))
        return cls(
            check_bool("entropy", entropy),
            check_bool("received", received),
            check_bool("distance", distance),
            0 if top is None else check_int("top", top, most=None),
            None if pool is None else PoolSpec.checked(*_pair(pool), reduce),
            check_bool("peak", peak),
            None if spans is None else Spans.checked(spans),
        )


class AttentionStatistics:
    """Statistics from one pass over the matrix. Reading one that was not requested raises an AttributeError."""

    def __init__(
        self,
        *,
        entropy: Tensor | None = None,
        received: Tensor | None = None,
        distance: Tensor | None = None,
        peak: Tensor | None = None,
        mass: Tensor | None = None,
        top: TopK | None = None,
        pooled: Tensor | None = None,
    ) -> None:
        results = {
            "entropy": entropy, "received": received, "distance": distance, "peak": peak, "mass": mass, "top": top,
            "pooled": pooled,
        }  # fmt: skip
        self._results = {name: result for name, result in results.items() if result is not None}

    @property
    def entropy(self) -> Float[Tensor, "batch heads q_len"]:
        """Entropy of each row in nats, −Σ A ln A."""
        return self._get("entropy", "entropy=True")

    @property
    def received(self) -> Float[Tensor, "batch heads kv_len"]:
        """Column sums: the attention that each key receives."""
        return self._get("received", "received=True")

    @property
    def distance(self) -> Float[Tensor, "batch heads q_len"]:
        """Attention distance of each row, Σ A · |position of query − key|."""
        return self._get("distance", "distance=True")

    @property
    def peak(self) -> Float[Tensor, "batch heads q_len"]:
        """Largest score of each row; −inf without a key."""
        return self._get("peak", "peak=True")

    @property
    def mass(self) -> Float[Tensor, "batch heads q_len spans"]:
        """Attention of each row that falls on each span of keys."""
        return self._get("mass", "spans=[(start, end), …]")

    @property
    def top(self) -> TopK:
        """Largest weights of each row, with their keys."""
        return self._get("top", "top=8")

    @property
    def pooled(self) -> Float[Tensor, "batch heads rows cols"]:
        """Matrix pooled into bins."""
        return self._get("pooled", "pool=(rows, cols)")

    def __contains__(self, name: str) -> bool:
        """Return whether a result was requested."""
        return name in self._results

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the results that were requested."""
        return iter(self._results)

    def __or__(self, other: AttentionStatistics) -> AttentionStatistics:
        """Return the results of both. If both contain a statistic, that of `other` is taken."""
        return AttentionStatistics(**(self._results | other._results))

    def results(self) -> dict[str, Any]:
        """Return the results by name."""
        return dict(self._results)

    def without(self, name: str) -> AttentionStatistics:
        """Return all results but one."""
        return AttentionStatistics(**{key: result for key, result in self._results.items() if key != name})

    def __repr__(self) -> str:
        return f"AttentionStatistics({', '.join(self)})"

    def _get(self, name: str, request: str) -> Any:
        if name not in self._results:
            raise AttributeError(f"{name} was not requested; call observe({request})")
        return self._results[name]


def _pair(sizes: object) -> tuple[object, object]:
    try:
        rows, cols = sizes  # pyright: ignore[reportGeneralTypeIssues]
    except (TypeError, ValueError):
        raise TypeError(f"pool is {describe(sizes)}; expected (rows, cols)") from None
    return rows, cols
