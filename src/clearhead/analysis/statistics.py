"""Every head of a model in numbers, from recordings: what it attends to on texts, and on random tokens repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.analysis.accumulate import HeadSums, nothing
from clearhead.recording.recording import Address, Recording, Stack, from_one_model, is_self_attention
from clearhead.weights.matrix import AttentionWeights

REACH = 128  # offsets either way in which a positional head is looked for, so that memory does not grow with the text
SHORTEST_REPEAT = 8  # tokens; shorter repetitions occur in ordinary text
CELLS = 2**22  # scores looked at together

NEIGHBOURS = {"self": 0, "previous": -1, "next": 1}
ON_REPEATS: tuple[str, ...] = ("duplicate", "induction")


@dataclass(frozen=True)
class HeadStatistics:
    """One head in numbers. Each is a mean over the queries of all recordings, every query counting the same.

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


def measure(recordings: Iterable[Recording], *, find_repeats: bool = True) -> tuple[str, dict[Address, HeadStatistics]]:
    """The model's name, and the statistics of its heads over all recordings, none of which is kept.

    Args:
        find_repeats: read a text that is a sequence and the same again as one that was made to find induction heads.
    """
    total = nothing()
    for recording in from_one_model(recordings):
        total += sum_statistics(recording, find_repeats=find_repeats)
    return total.model, from_sums(total)


def sum_statistics(recording: Recording, *, find_repeats: bool = True) -> HeadSums:
    """What one text gives: sums over queries for every head, and how many queries each is over."""
    own = {name: stack for name, stack in recording.stacks.items() if is_self_attention(name, stack)}
    repeats = {name: _repeat(stack) for name, stack in own.items()} if find_repeats else {}
    sums: dict[str, Tensor] = {}

    def add(name: str, counts: Mapping[str, int | Tensor], layers: list[dict[str, Tensor]]) -> None:
        for what, count in counts.items():
            sums[f"{name}.sums.{what}"] = torch.cat([found[what] for found in layers]).double()
            sums[f"{name}.counts.{what}"] = torch.as_tensor(count).double()

    for name, stack in recording.stacks.items():
        if not any(repeats.values()):
            add(name, _counts(name, stack), [_sums(name, stack, weights) for weights in stack.layers])
        elif repeat := repeats.get(name):
            counts = dict.fromkeys(ON_REPEATS, repeat.length)
            add(name, counts, [_repeat_sums(repeat, weights) for weights in stack.layers])
    heads = {name: [weights.shape[1] for weights in stack.layers] for name, stack in recording.stacks.items()}
    return HeadSums(recording.model, heads, sums)


def from_sums(total: HeadSums) -> dict[Address, HeadStatistics]:
    """The statistics that sums over texts amount to."""
    found: dict[Address, HeadStatistics] = {}
    for name, layers in total.heads.items():
        sums, counts = (
            {full.removeprefix(start): own for full, own in total.sums.items() if full.startswith(start)}
            for start in (f"{name}.sums.", f"{name}.counts.")
        )
        places = [(layer, head) for layer, heads in enumerate(layers) for head in range(heads)]
        for number, (layer, head) in enumerate(places):
            found[name, layer, head] = _statistics({what: own[number] for what, own in sums.items()}, counts)
    return found


def _statistics(sums: dict[str, Tensor], counts: dict[str, Tensor]) -> HeadStatistics:
    means = {name: float(own / counts[name]) for name, own in sums.items() if name != "hits" and counts[name]}
    largest = means.pop("largest_entropy", 0.0)
    if largest:
        means["spread"] = means["entropy"] / largest
    offset, positional = _best_offset(sums["hits"], counts["hits"]) if "hits" in sums else (None, None)
    return HeadStatistics(int(counts.get("entropy", 0)), offset=offset, positional=positional, **means)


@torch.no_grad()
def measure_rows(
    name: str,
    stack: Stack,
    weights: AttentionWeights,
    rows: Int[Tensor, " rows"],
    cells: Float[Tensor, "rows kv_len"],
    entropies: Float[Tensor, " rows"],
) -> HeadStatistics:
    """One head in numbers from some of its queries: of long texts, where all of them would take too long.

    Args:
        weights: the head's matrix, [1, 1, q_len, kv_len].
        rows: which of its queries.
        cells: what they give to every key.
        entropies: of each of them.
    """
    there = rows.to(cells.device)
    visible = _visible_keys(weights)[there].double()
    entropy = entropies.double().mean()
    largest = float(visible.clamp(min=1).log().mean())
    found: dict[str, float] = {"keys": float(visible.mean()), "entropy": float(entropy)}
    found |= {"spread": float(entropy) / largest} if largest else {}
    best = cells.argmax(dim=-1).cpu() - rows
    offset = int(best.mode().values)
    found["positional"] = float((best == offset).double().mean())
    if any(stack.keys.special):
        special = torch.tensor(stack.keys.special, device=cells.device)
        plain = ~torch.tensor(stack.queries.special)[rows].to(cells.device)
        found["delimiter"] = float(cells[plain][:, special].sum(dim=-1).mean()) if plain.any() else 0.0
    if is_self_attention(name, stack):
        for neighbour, away in NEIGHBOURS.items():
            found[neighbour] = float(weights.diagonal(away)[0, 0, there].mean())
        found["sink"] = float(cells[:, 0].mean())
    return HeadStatistics(len(rows), offset=offset, **found)


@dataclass(frozen=True)
class _Repeat:
    """Where the second copy of a repeated sequence starts, and how long each copy is."""

    start: int
    length: int


def _repeat(stack: Stack) -> _Repeat | None:
    """The repetition its tokens are, special ones at either end apart."""
    tokens = stack.queries
    plain = [place for place, special in enumerate(tokens.special) if not special]
    if not plain:
        return None
    first, last = plain[0], plain[-1] + 1
    length, odd = divmod(last - first, 2)
    if odd or length < SHORTEST_REPEAT or tokens.texts[first : first + length] != tokens.texts[first + length : last]:
        return None
    return _Repeat(first + length, length)


@torch.no_grad()
def _repeat_sums(repeat: _Repeat, weights: AttentionWeights) -> dict[str, Float[Tensor, " heads"]]:
    second = slice(repeat.start, repeat.start + repeat.length)
    offsets = {"duplicate": -repeat.length, "induction": 1 - repeat.length}
    return {name: _total(weights.diagonal(offset)[0, :, second]) for name, offset in offsets.items()}


def _counts(name: str, stack: Stack) -> dict[str, int | Int[Tensor, " offsets"]]:
    """How many queries each sum of `_sums` is over; of hits, how many have a key at each offset."""
    queries, keys = len(stack.queries), len(stack.keys)
    counts: dict[str, int | Tensor] = dict.fromkeys(("keys", "entropy", "largest_entropy", "distance"), queries)
    offsets = torch.arange(-REACH, REACH + 1)
    counts["hits"] = ((keys - offsets).clamp(max=queries) - (-offsets).clamp(min=0)).clamp(min=0)
    if any(stack.keys.special):
        counts["delimiter"] = stack.queries.special.count(False)
    if is_self_attention(name, stack):
        counts |= {neighbour: max(queries - abs(offset), 0) for neighbour, offset in NEIGHBOURS.items()}
        counts["sink"] = queries
    return counts


@torch.no_grad()
def _sums(name: str, stack: Stack, weights: AttentionWeights) -> dict[str, Tensor]:
    """Sums over the queries of one layer, in float64, so that a long corpus does not show in the last digits."""
    own = is_self_attention(name, stack)
    seen = weights.observe(entropy=True, distance=True, received=own, top=1)
    assert seen.entropy is not None
    assert seen.distance is not None
    assert seen.top is not None
    visible = _visible_keys(weights)
    heads = torch.ones(weights.shape[1], dtype=torch.float64)
    sums = {
        "keys": visible.sum().double().cpu() * heads,
        "entropy": _total(seen.entropy[0]),
        # an empty row, like one with a single key, has no choice: ln 1
        "largest_entropy": _total(visible.clamp(min=1).double().log()) * heads,
        "distance": _total(seen.distance[0]),
        "hits": _hits(seen.top.keys[0, :, :, 0]),
    }
    if any(stack.keys.special):
        sums["delimiter"] = _to_special(stack, weights)
    if own:
        assert seen.received is not None
        sums |= {neighbour: _total(weights.diagonal(offset)[0]) for neighbour, offset in NEIGHBOURS.items()}
        sums["sink"] = _total(seen.received[0, :, :1])
    return sums


def _total(values: Float[Tensor, "*heads queries"]) -> Float[Tensor, "*heads"]:
    return values.double().sum(dim=-1).cpu()


def _hits(keys: Int[Tensor, "heads queries"]) -> Int[Tensor, "heads offsets"]:
    """How often each offset, from −REACH to REACH, is that of the most attended key."""
    heads, queries = keys.shape
    offsets = keys - torch.arange(queries, device=keys.device)
    row = torch.arange(heads, device=keys.device)[:, None] * (2 * REACH + 1)
    near = (keys >= 0) & (offsets.abs() <= REACH)  # an empty row has key −1
    counts = torch.bincount((row + offsets + REACH)[near], minlength=heads * (2 * REACH + 1))
    return counts.view(heads, -1).cpu()


def _visible_keys(weights: AttentionWeights) -> Int[Tensor, " q_len"]:
    """How many keys each query may see, by the mask of the layer's first head: heads of a layer share it."""
    _, _, q_len, kv_len = weights.shape
    counts = torch.full((q_len,), kv_len, dtype=torch.long, device=weights.device)
    lowered = weights.lowered_mask
    if lowered.dense is None and weights.query is not None and not isinstance(weights.bias, Tensor):
        if lowered.ranges is not None:
            first, last = lowered.ranges[:, :, 0].unbind(dim=1)  # [ranges, q_len] each
            counts = (last - first).sum(dim=0)
        return counts
    rows = max(1, CELLS // max(1, kv_len))
    for row in range(0, q_len, rows):
        counts[row : row + rows] = (weights.scores[0, 0, row : row + rows] > -torch.inf).sum(dim=-1)
    return counts


def _to_special(stack: Stack, weights: AttentionWeights) -> Float[Tensor, " heads"]:
    """Weight on special tokens, summed over the queries that are none."""
    asking = ~torch.tensor(stack.queries.special, dtype=torch.bool, device=weights.device)
    total = torch.zeros(weights.shape[1], dtype=torch.float64)
    for key, special in enumerate(stack.keys.special):
        if special:
            total += _total(weights[0, :, :, key] * asking)
    return total


def _best_offset(
    hits: Float[Tensor, " offsets"], rows: Float[Tensor, " offsets"]
) -> tuple[int, float] | tuple[None, float | None]:
    """Where most hits are, and their share of the queries that have a key there.

    The most hits, not the highest share: far offsets exist for a few queries only, and one of one would win.
    """
    nearest_first = sorted(range(-REACH, REACH + 1), key=abs)
    best = max(nearest_first, key=lambda offset: int(hits[offset + REACH]))
    count = int(hits[best + REACH])
    if not count:
        return None, 0.0 if rows.any() else None
    return best, count / int(rows[best + REACH])
