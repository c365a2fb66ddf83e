"""Statistics of every head of a model, from recordings of ordinary texts and of repeated random sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.layer_reader import DenseLayer, LayerReader, LazyLayer
from clearhead.analysis.repeated_tokens import ReadWeights, RepeatedTokens
from clearhead.recording.recording import Address, Recording, Stack, check_one_model, is_self_attention
from clearhead.weights.matrix import AttentionWeights

MAX_OFFSET = 128  # of a positional head, in both directions; bounds the memory for long texts
MIN_REPEAT_LENGTH = 8  # tokens; shorter repetitions occur in ordinary text
MAX_SCORE_CELLS = 2**22  # scores in memory at a time

NEIGHBOR_OFFSETS = {"self": 0, "previous": -1, "next": 1}
REPEAT_SCORES: tuple[str, ...] = ("duplicate", "induction")


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of one head: means over the queries of all recordings.

    A statistic is None if no recording provides it, or if it is undefined for cross-attention. `duplicate` and
    `induction` come from repeated random sequences only, all others from ordinary texts only.

    Attributes:
        queries: number of queries in ordinary texts.
        keys: number of visible keys per query.
        entropy: −Σ A ln A, in nats.
        spread: mean entropy divided by the mean ln(visible keys): 0 for a single key, 1 for uniform attention.
        distance: Σ A · |query position − key position|, in tokens, as in `AttentionWeights.distance()`.
        self: weight on the query's own position.
        previous: weight on the previous position, over queries that have one.
        next: weight on the next position, over queries that have one.
        sink: weight on the first key, over all queries. (With a causal mask, the first query attends only to it.)
        offset: most frequent offset of the key with the largest weight: key index − query index.
        positional: share of queries whose largest weight is at that offset, over queries that have a key there.
        delimiter: total weight on special tokens, over queries that are not special tokens.
        duplicate: weight on the earlier occurrence of the query's token, over the second copy.
        induction: weight on the key after that occurrence, over the second copy.
        text_repeats: number of queries whose token has occurred before, in ordinary texts. Special tokens do not count.
        text_duplicate: total weight on all earlier occurrences of the query's token, over queries that have one.
        text_induction: total weight on the keys after these occurrences, without the query's own position.
        text_chance: share of the visible keys that follow an earlier occurrence: uniform attention's `text_induction`.
    """

    queries: int
    keys: float | None = None
    entropy: float | None = None
    spread: float | None = None
    distance: float | None = None
    self: float | None = None
    previous: float | None = None
    next: float | None = None
    sink: float | None = None
    offset: int | None = None
    positional: float | None = None
    delimiter: float | None = None
    duplicate: float | None = None
    induction: float | None = None
    text_repeats: int | None = None
    text_duplicate: float | None = None
    text_induction: float | None = None
    text_chance: float | None = None


def measure_heads(recordings: Iterable[Recording]) -> tuple[str, dict[Address, HeadStatistics]]:
    """Return the model's name and the statistics of its heads over all recordings. No recording is kept.

    Recordings of a repeated sequence are detected and give the duplicate and induction scores only.
    """
    total, warned = HeadSums.empty(), False
    for index, recording in enumerate(check_one_model(recordings)):
        sums = sum_statistics(recording)
        warned = warned or sums.warn_of_nan(f"recording {index}")
        total += sums
    return total.model, statistics_from_sums(total)


def sum_statistics(recording: Recording) -> HeadSums:
    """Return sums over the queries of one recording for every head, with the number of queries of each sum."""
    self_attention = {name: stack for name, stack in recording.stacks.items() if is_self_attention(name, stack)}
    repeats = {name: _repeat(stack) for name, stack in self_attention.items()}
    sums: dict[str, Tensor] = {}

    def add(name: str, counts: Mapping[str, int | Tensor], layers: list[dict[str, Tensor]]) -> None:
        for statistic, count in counts.items():
            sums[f"{name}.sums.{statistic}"] = torch.cat([layer[statistic] for layer in layers]).double()
            sums[f"{name}.counts.{statistic}"] = torch.as_tensor(count).double()

    for name, stack in recording.stacks.items():
        if not any(repeats.values()):
            add(name, _counts(name, stack), [_sums(name, stack, weights) for weights in stack.layers])
        elif repeat := repeats.get(name):
            counts = dict.fromkeys(REPEAT_SCORES, repeat.length)
            add(name, counts, [_repeat_sums(repeat, weights) for weights in stack.layers])
    heads = {name: [weights.shape[1] for weights in stack.layers] for name, stack in recording.stacks.items()}
    return HeadSums(recording.model, heads, sums)


def statistics_from_sums(total: HeadSums) -> dict[Address, HeadStatistics]:
    """Return the statistics of every head from sums over texts."""
    statistics: dict[Address, HeadStatistics] = {}
    for name, layers in total.heads.items():
        sums, counts = (
            {full.removeprefix(start): values for full, values in total.sums.items() if full.startswith(start)}
            for start in (f"{name}.sums.", f"{name}.counts.")
        )
        heads = [(layer, head) for layer, count in enumerate(layers) for head in range(count)]
        for index, (layer, head) in enumerate(heads):
            head_sums = {statistic: values[index] for statistic, values in sums.items()}
            statistics[name, layer, head] = _head_statistics(head_sums, counts)
    return statistics


def _head_statistics(sums: dict[str, Tensor], counts: dict[str, Tensor]) -> HeadStatistics:
    means = {name: float(total / counts[name]) for name, total in sums.items() if name != "hits" and counts[name]}
    largest = means.pop("largest_entropy", 0.0)
    if largest:
        means["spread"] = means["entropy"] / largest
    offset, positional = _best_offset(sums["hits"], counts["hits"]) if "hits" in sums else (None, None)
    repeats = int(counts["text_duplicate"]) if "text_duplicate" in counts else None
    return HeadStatistics(
        int(counts.get("entropy", 0)), offset=offset, positional=positional, text_repeats=repeats, **means
    )


def measure_layer(
    name: str, stack: Stack, layer: int, cells: Float[Tensor, "heads q_len kv_len"] | None = None
) -> list[HeadStatistics]:
    """Return the statistics of every head of one layer on one text, which is treated as an ordinary text.

    Args:
        name: name of the stack, such as "decoder".
        stack: the stack.
        layer: index of the layer.
        cells: attention weights of the layer, if they are in memory; saves a pass over the matrix.
    """
    weights = stack.layers[layer]
    if cells is not None and cells.shape != weights.shape[1:]:
        raise ValueError(f"cells has shape {tuple(cells.shape)}; expected {tuple(weights.shape[1:])}")
    counts = {statistic: torch.as_tensor(count).double() for statistic, count in _counts(name, stack).items()}
    sums = {statistic: total.double() for statistic, total in _sums(name, stack, weights, cells).items()}
    return [
        _head_statistics({statistic: total[head] for statistic, total in sums.items()}, counts)
        for head in range(weights.shape[1])
    ]


@torch.no_grad()
def measure_queries(
    name: str,
    stack: Stack,
    weights: AttentionWeights,
    queries: Int[Tensor, " rows"],
    rows: Float[Tensor, "rows kv_len"],
    entropies: Float[Tensor, " rows"],
) -> HeadStatistics:
    """Return the statistics of one head from a sample of its queries, for long texts.

    Args:
        name: name of the stack, such as "decoder".
        stack: the stack.
        weights: attention weights of the head, [1, 1, q_len, kv_len].
        queries: indices of the sampled queries, on the CPU.
        rows: attention weights of these queries.
        entropies: entropy of each of these rows.
    """
    indices = queries.to(rows.device)
    visible = _visible_keys(weights)[indices].double()
    entropy = entropies.double().mean()
    largest = float(visible.clamp(min=1).log().mean())
    means: dict[str, Any] = {"keys": float(visible.mean()), "entropy": float(entropy)}
    means |= {"spread": float(entropy) / largest} if largest else {}
    offsets = rows.argmax(dim=-1).cpu() - queries
    offset = int(offsets.mode().values)
    means["positional"] = float((offsets == offset).double().mean())
    if any(stack.keys.special):
        special = torch.tensor(stack.keys.special, device=rows.device)
        ordinary = ~torch.tensor(stack.queries.special)[queries].to(rows.device)
        means["delimiter"] = float(rows[ordinary][:, special].sum(dim=-1).mean()) if ordinary.any() else 0.0
    if is_self_attention(name, stack):
        for neighbor, neighbor_offset in NEIGHBOR_OFFSETS.items():
            means[neighbor] = float(weights.diagonal(neighbor_offset)[0, 0, indices].mean())
        means["sink"] = float(rows[:, 0].mean())
        repeated = RepeatedTokens.from_tokens(stack.keys, queries.tolist())

        def read(cell_queries: Tensor, keys: Tensor) -> Tensor:
            return rows[None, torch.searchsorted(queries, cell_queries).to(rows.device), keys.to(rows.device)]

        sums = repeated.sums(read, _uniform_attention(weights, _visible_keys(weights)))
        means["text_repeats"] = repeated.query_count
        means |= {score: float(sums[score]) / count for score, count in repeated.counts.items() if count}
    return HeadStatistics(len(queries), offset=offset, **means)


@dataclass(frozen=True)
class _Repeat:
    """Start of the second copy of a repeated sequence, and length of each copy."""

    start: int
    length: int


def _repeat(stack: Stack) -> _Repeat | None:
    """Return the repetition if the tokens, without special tokens at either end, are a repeated sequence; else None."""
    tokens = stack.queries
    ordinary = [index for index, special in enumerate(tokens.special) if not special]
    if not ordinary:
        return None
    first, last = ordinary[0], ordinary[-1] + 1
    length, odd = divmod(last - first, 2)
    if odd or length < MIN_REPEAT_LENGTH or tokens.texts[first : first + length] != tokens.texts[first + length : last]:
        return None
    return _Repeat(first + length, length)


@torch.no_grad()
def _repeat_sums(repeat: _Repeat, weights: AttentionWeights) -> dict[str, Float[Tensor, " heads"]]:
    second = slice(repeat.start, repeat.start + repeat.length)
    offsets = {"duplicate": -repeat.length, "induction": 1 - repeat.length}
    return {name: _total(weights.diagonal(offset)[0, :, second]) for name, offset in offsets.items()}


def _counts(name: str, stack: Stack) -> dict[str, int | Int[Tensor, " offsets"]]:
    """Return the number of queries of each sum of `_sums`; for hits, the number that have a key at each offset."""
    queries, keys = len(stack.queries), len(stack.keys)
    counts: dict[str, int | Tensor] = dict.fromkeys(("keys", "entropy", "largest_entropy", "distance"), queries)
    offsets = torch.arange(-MAX_OFFSET, MAX_OFFSET + 1)
    counts["hits"] = ((keys - offsets).clamp(max=queries) - (-offsets).clamp(min=0)).clamp(min=0)
    if any(stack.keys.special):
        counts["delimiter"] = stack.queries.special.count(False)
    if is_self_attention(name, stack):
        counts |= {neighbor: max(queries - abs(offset), 0) for neighbor, offset in NEIGHBOR_OFFSETS.items()}
        counts["sink"] = queries
        counts |= RepeatedTokens.from_tokens(stack.keys).counts
    return counts


@torch.no_grad()
def _sums(
    name: str, stack: Stack, weights: AttentionWeights, cells: Float[Tensor, "heads q_len kv_len"] | None = None
) -> dict[str, Tensor]:
    """Return sums over the queries of one layer, in float64 to limit rounding errors over a corpus."""
    self_attention = is_self_attention(name, stack)
    # the entropy of a scaled matrix is that of the unscaled one, and positions may start elsewhere
    is_plain = weights.unscaled is weights and isinstance(weights.query_start, int) and weights.query_start == 0
    reader: LayerReader = (
        LazyLayer(weights, received=self_attention) if cells is None or not is_plain else DenseLayer(cells)
    )
    visible = _visible_keys(weights)
    heads = torch.ones(weights.shape[1], dtype=torch.float64)
    sums = {
        "keys": visible.sum().double().cpu() * heads,
        "entropy": _total(reader.entropy()),
        # rows without visible keys have maximum entropy 0, like rows with a single key
        "largest_entropy": _total(visible.clamp(min=1).double().log()) * heads,
        "distance": _total(reader.distance()),
        "hits": _hits(reader.top_keys()),
    }
    if any(stack.keys.special):
        sums["delimiter"] = _to_special(stack, reader, weights)
    if self_attention:
        sums |= {neighbor: _total(reader.diagonal(offset)) for neighbor, offset in NEIGHBOR_OFFSETS.items()}
        sums["sink"] = _total(reader.received(0)[:, None])
        repeated = RepeatedTokens.from_tokens(stack.keys)
        sums |= repeated.sums(reader.cells, _uniform_attention(weights, visible))
    return sums


def _total(values: Float[Tensor, "*heads queries"]) -> Float[Tensor, "*heads"]:
    return values.double().sum(dim=-1).cpu()


def _hits(keys: Int[Tensor, "heads queries"]) -> Int[Tensor, "heads offsets"]:
    """Return how often each offset from −MAX_OFFSET to MAX_OFFSET is that of the key with the largest weight."""
    heads, queries = keys.shape
    offsets = keys - torch.arange(queries, device=keys.device)
    row = torch.arange(heads, device=keys.device)[:, None] * (2 * MAX_OFFSET + 1)
    near = (keys >= 0) & (offsets.abs() <= MAX_OFFSET)  # a row without visible keys has key −1
    counts = torch.bincount((row + offsets + MAX_OFFSET)[near], minlength=heads * (2 * MAX_OFFSET + 1))
    return counts.view(heads, -1).cpu()


def _visible_keys(weights: AttentionWeights) -> Int[Tensor, " q_len"]:
    """Return the number of visible keys per query, from the mask of the first head, which all heads share."""
    _, _, q_len, kv_len = weights.shape
    counts = torch.full((q_len,), kv_len, dtype=torch.long, device=weights.device)
    if is_masked_by_ranges(weights):
        ranges = weights.lowered_mask.ranges
        if ranges is not None:
            first, last = ranges[:, :, 0].unbind(dim=1)  # [ranges, q_len] each
            counts = (last - first).sum(dim=0)
        return counts
    rows = max(1, MAX_SCORE_CELLS // max(1, kv_len))
    for row in range(0, q_len, rows):
        counts[row : row + rows] = (weights.scores[0, 0, row : row + rows] > -torch.inf).sum(dim=-1)
    return counts


def _uniform_attention(weights: AttentionWeights, visible: Int[Tensor, " q_len"]) -> ReadWeights:
    """Return a function that reads cells of uniform attention to the visible keys, whose numbers are `visible`."""
    ranges = weights.lowered_mask.ranges

    def read(queries: Int[Tensor, " pairs"], keys: Int[Tensor, " pairs"]) -> Float[Tensor, "1 pairs"]:
        queries, keys = queries.to(weights.device), keys.to(weights.device)
        uniform = 1 / visible[queries].double()
        if not is_masked_by_ranges(weights):
            uniform = torch.where(weights.scores[0, 0, queries, keys] > -torch.inf, uniform, 0.0)
        elif ranges is not None:
            first, last = ranges[:, :, 0, queries].unbind(dim=1)  # [ranges, pairs] each
            uniform = torch.where(((first <= keys) & (keys < last)).any(dim=0), uniform, 0.0)
        return uniform[None]

    return read


def is_masked_by_ranges(weights: AttentionWeights) -> bool:
    """Return whether ranges alone decide which keys are visible. A bias may be −inf, too."""
    return weights.lowered_mask.dense is None and weights.query is not None and not isinstance(weights.bias, Tensor)


def _to_special(stack: Stack, reader: LayerReader, weights: AttentionWeights) -> Float[Tensor, " heads"]:
    """Return the weight on special tokens, summed over queries that are not special tokens."""
    ordinary = ~torch.tensor(stack.queries.special, dtype=torch.bool, device=weights.device)
    total = torch.zeros(weights.shape[1], dtype=torch.float64)
    for key, special in enumerate(stack.keys.special):
        if special:
            total += _total(reader.column(key) * ordinary)
    return total


def _best_offset(
    hits: Float[Tensor, " offsets"], rows: Float[Tensor, " offsets"]
) -> tuple[int, float] | tuple[None, float | None]:
    """Return the offset with the most hits, and the share of hits among queries that have a key there.

    The criterion is not the highest share, because few queries have a key at a far offset, and one hit could win.
    """
    nearest_first = sorted(range(-MAX_OFFSET, MAX_OFFSET + 1), key=abs)
    counts = hits.tolist()  # as a list, because reading a tensor takes 2 µs per element
    best = max(nearest_first, key=lambda offset: counts[offset + MAX_OFFSET])
    count = int(counts[best + MAX_OFFSET])
    if not count:
        return None, 0.0 if rows.any() else None
    return best, count / int(rows[best + MAX_OFFSET])
