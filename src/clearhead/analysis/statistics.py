"""Statistics of every head of a model, from recordings: of ordinary texts, and of random tokens repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.analysis.accumulate import HeadSums
from clearhead.recording.recording import Address, Recording, Stack, check_one_model, is_self_attention
from clearhead.weights.matrix import AttentionWeights

MAX_OFFSET = 128  # either way, of a positional head, so that memory does not grow with the text
MIN_REPEAT_LENGTH = 8  # tokens; shorter repetitions occur in ordinary text
MAX_SCORE_CELLS = 2**22  # scores in memory at a time

NEIGHBOR_OFFSETS = {"self": 0, "previous": -1, "next": 1}
REPEAT_SCORES: tuple[str, ...] = ("duplicate", "induction")


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of one head. Each is a mean over the queries of all recordings, every query counting the same.

    None where there is nothing to say: no recording it could come from, or, in cross-attention, no sense in it.
    All but the last two come from ordinary texts only, and the last two only from random tokens repeated once.
    """

    queries: int  # of ordinary texts
    keys: float | None = None  # how many keys a query may see
    entropy: float | None = None  # −Σ A ln A, in nats
    spread: float | None = None  # mean entropy over mean ln(keys the query may see): 0 one key, 1 all alike
    distance: float | None = None  # Σ A · |position of query − key|, in tokens, as AttentionWeights.distance() counts
    self: float | None = None  # weight on the query's own position
    previous: float | None = None  # weight on the position before, over the queries that have one
    next: float | None = None  # weight on the position after, likewise
    sink: float | None = None  # weight on the first key, over all queries: under a causal mask the first sees no other
    offset: int | None = None  # where the most attended key lies most often: key − query, both counted from 0
    positional: float | None = None  # how often it lies there, over the queries that have a key there
    delimiter: float | None = None  # weight on all special tokens together, over queries that are none
    duplicate: float | None = None  # weight on the earlier copy of the query's token, over the second copy
    induction: float | None = None  # weight on the key right after that, over the second copy


def measure_heads(recordings: Iterable[Recording]) -> tuple[str, dict[Address, HeadStatistics]]:
    """Return the model's name, and the statistics of its heads over all recordings, none of which is kept.

    A text that is a sequence and the same again counts as one that was made to find induction heads.
    """
    total = HeadSums.empty()
    for recording in check_one_model(recordings):
        total += sum_statistics(recording)
    return total.model, statistics_from_sums(total)


def sum_statistics(recording: Recording) -> HeadSums:
    """Return the sums of one text: over queries for every head, and how many queries each is over."""
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
    """Return the statistics that follow from sums over texts."""
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
    return HeadStatistics(int(counts.get("entropy", 0)), offset=offset, positional=positional, **means)


def measure_layer(name: str, stack: Stack, layer: int) -> list[HeadStatistics]:
    """Return the statistics of every head of one layer on one text, which counts as an ordinary one.

    Args:
        name: of the stack, such as "decoder".
    """
    weights = stack.layers[layer]
    counts = {statistic: torch.as_tensor(count).double() for statistic, count in _counts(name, stack).items()}
    sums = {statistic: total.double() for statistic, total in _sums(name, stack, weights).items()}
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
    """Return the statistics of one head from some of its queries: of long texts, where all would take too long.

    Args:
        weights: the head's matrix, [1, 1, q_len, kv_len].
        queries: the indices of the queries, on the CPU.
        rows: the weights of these queries.
        entropies: the entropy of each of these rows.
    """
    indices = queries.to(rows.device)
    visible = _visible_keys(weights)[indices].double()
    entropy = entropies.double().mean()
    largest = float(visible.clamp(min=1).log().mean())
    means: dict[str, float] = {"keys": float(visible.mean()), "entropy": float(entropy)}
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
    return HeadStatistics(len(queries), offset=offset, **means)


@dataclass(frozen=True)
class _Repeat:
    """Where the second copy of a repeated sequence starts, and how long each copy is."""

    start: int
    length: int


def _repeat(stack: Stack) -> _Repeat | None:
    """Return the repetition that the tokens are, without special ones at either end; None if they are not one."""
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
    """Return how many queries each sum of `_sums` is over; for hits, how many have a key at each offset."""
    queries, keys = len(stack.queries), len(stack.keys)
    counts: dict[str, int | Tensor] = dict.fromkeys(("keys", "entropy", "largest_entropy", "distance"), queries)
    offsets = torch.arange(-MAX_OFFSET, MAX_OFFSET + 1)
    counts["hits"] = ((keys - offsets).clamp(max=queries) - (-offsets).clamp(min=0)).clamp(min=0)
    if any(stack.keys.special):
        counts["delimiter"] = stack.queries.special.count(False)
    if is_self_attention(name, stack):
        counts |= {neighbor: max(queries - abs(offset), 0) for neighbor, offset in NEIGHBOR_OFFSETS.items()}
        counts["sink"] = queries
    return counts


@torch.no_grad()
def _sums(name: str, stack: Stack, weights: AttentionWeights) -> dict[str, Tensor]:
    """Return sums over the queries of one layer, in float64, so that rounding does not grow with the corpus."""
    self_attention = is_self_attention(name, stack)
    observed = weights.observe(entropy=True, distance=True, received=self_attention, top=1)
    visible = _visible_keys(weights)
    heads = torch.ones(weights.shape[1], dtype=torch.float64)
    sums = {
        "keys": visible.sum().double().cpu() * heads,
        "entropy": _total(observed.entropy[0]),
        # an empty row, like one with a single key, has no choice: ln 1
        "largest_entropy": _total(visible.clamp(min=1).double().log()) * heads,
        "distance": _total(observed.distance[0]),
        "hits": _hits(observed.top.keys[0, :, :, 0]),
    }
    if any(stack.keys.special):
        sums["delimiter"] = _to_special(stack, weights)
    if self_attention:
        sums |= {neighbor: _total(weights.diagonal(offset)[0]) for neighbor, offset in NEIGHBOR_OFFSETS.items()}
        sums["sink"] = _total(observed.received[0, :, :1])
    return sums


def _total(values: Float[Tensor, "*heads queries"]) -> Float[Tensor, "*heads"]:
    return values.double().sum(dim=-1).cpu()


def _hits(keys: Int[Tensor, "heads queries"]) -> Int[Tensor, "heads offsets"]:
    """Return how often each offset, from −REACH to REACH, is that of the most attended key."""
    heads, queries = keys.shape
    offsets = keys - torch.arange(queries, device=keys.device)
    row = torch.arange(heads, device=keys.device)[:, None] * (2 * MAX_OFFSET + 1)
    near = (keys >= 0) & (offsets.abs() <= MAX_OFFSET)  # an empty row has key −1
    counts = torch.bincount((row + offsets + MAX_OFFSET)[near], minlength=heads * (2 * MAX_OFFSET + 1))
    return counts.view(heads, -1).cpu()


def _visible_keys(weights: AttentionWeights) -> Int[Tensor, " q_len"]:
    """Return how many keys each query may attend to, by the mask of the first head: heads of a layer share it."""
    _, _, q_len, kv_len = weights.shape
    counts = torch.full((q_len,), kv_len, dtype=torch.long, device=weights.device)
    lowered = weights.lowered_mask
    if lowered.dense is None and weights.query is not None and not isinstance(weights.bias, Tensor):
        if lowered.ranges is not None:
            first, last = lowered.ranges[:, :, 0].unbind(dim=1)  # [ranges, q_len] each
            counts = (last - first).sum(dim=0)
        return counts
    rows = max(1, MAX_SCORE_CELLS // max(1, kv_len))
    for row in range(0, q_len, rows):
        counts[row : row + rows] = (weights.scores[0, 0, row : row + rows] > -torch.inf).sum(dim=-1)
    return counts


def _to_special(stack: Stack, weights: AttentionWeights) -> Float[Tensor, " heads"]:
    """Return the weight on special tokens, summed over the queries that are not special."""
    ordinary = ~torch.tensor(stack.queries.special, dtype=torch.bool, device=weights.device)
    total = torch.zeros(weights.shape[1], dtype=torch.float64)
    for key, special in enumerate(stack.keys.special):
        if special:
            total += _total(weights[0, :, :, key] * ordinary)
    return total


def _best_offset(
    hits: Float[Tensor, " offsets"], rows: Float[Tensor, " offsets"]
) -> tuple[int, float] | tuple[None, float | None]:
    """Return the offset of most hits, and their share of the queries that have a key there.

    The most hits, not the highest share: far offsets exist for a few queries only, and one of one would win.
    """
    nearest_first = sorted(range(-MAX_OFFSET, MAX_OFFSET + 1), key=abs)
    best = max(nearest_first, key=lambda offset: int(hits[offset + MAX_OFFSET]))
    count = int(hits[best + MAX_OFFSET])
    if not count:
        return None, 0.0 if rows.any() else None
    return best, count / int(rows[best + MAX_OFFSET])
