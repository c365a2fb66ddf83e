"""`head_roles`: what kind of head is this. Reads recordings, and never runs a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.checks import whole_number
from clearhead.recording import Address, Recording, Stack
from clearhead.syntax import RelationScore, attends_to_itself, of_one_model
from clearhead.weights import AttentionWeights

# A label is given where the evidence is clear: above these, and on texts where a query sees KEYS keys on average.
KEYS = 8  # with fewer, attending to all alike looks like a role: of 9 causal tokens the first then receives 0.31
SINK = 0.30  # of all attention, on one token whatever it is; more than twice what 8 keys alike give it
NEIGHBOUR = 0.40  # self, previous, next: three times what 8 keys alike give
POSITIONAL = 0.90  # nine rows in ten, whatever the text: as Voita et al. (2019) define positional heads
DELIMITER = 0.50  # more than on all of the text together
INDUCTION = 0.30  # on random tokens chance is 1 / keys: nothing but the repetition brings a head here
DUPLICATE = 0.30  # likewise
RELATION = 0.05  # low end over baseline: the baseline, too, is only measured, and has its own error
BROAD = 0.90  # of the largest entropy there can be: of 100 keys, as if all attention were shared by 63
SHARP = 0.10  # of 100 keys, as if by fewer than 2
REACH = 128  # offsets either way in which a positional head is looked for, so that memory does not grow with the text
SHORTEST_REPEAT = 8  # tokens; shorter repetitions occur in ordinary text
CELLS = 2**22  # scores looked at together

NEIGHBOURS = {"self": 0, "previous": -1, "next": 1}
SCORES = (
    "entropy",
    "spread",
    "distance",
    *NEIGHBOURS,
    "sink",
    "positional",
    "delimiter",
    "duplicate",
    "induction",
)
_LABELS = (  # statistic, its label, what it has to be above
    ("self", "self", NEIGHBOUR),
    ("previous", "previous token", NEIGHBOUR),
    ("next", "next token", NEIGHBOUR),
    ("sink", "sink", SINK),
    ("delimiter", "delimiter", DELIMITER),
    ("induction", "induction", INDUCTION),
    ("duplicate", "duplicate token", DUPLICATE),
)
_ON_REPEATS: tuple[str, ...] = ("duplicate", "induction")


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


@dataclass(frozen=True)
class Roles:
    """Statistics of every head of a model, the relations they were scored on, and the labels that follow."""

    model: str
    heads: dict[Address, HeadStatistics]
    relations: tuple[RelationScore, ...] = ()

    def labels(self, address: Address) -> tuple[str, ...]:
        """What the head clearly does, strongest first: by how far its score has come from the threshold towards 1.

        "broad" and "sharp" say how, not what, and stand last.
        """
        if address not in self.heads:
            raise KeyError(f"{self.model} has no head {address!r}; expected (stack, layer, head)")
        own = self.heads[address]
        relations = [score for score in self.relations if score.address == address]
        return (*_what(own, relations), *_how(own))

    def label(self, address: Address) -> str:
        """The strongest label, or "" where none is clear."""
        return next(iter(self.labels(address)), "")

    def top(self, name: str, count: int = 5) -> list[tuple[Address, float]]:
        """The heads with the highest `name`, such as "previous" or "induction", highest first; never with None."""
        if name not in SCORES:
            raise ValueError(f"name is {name!r}; expected one of {', '.join(SCORES)}")
        scored = {address: getattr(own, name) for address, own in self.heads.items()}
        known = [(address, score) for address, score in scored.items() if score is not None]
        return sorted(known, key=lambda pair: -pair[1])[: whole_number("count", count)]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists of rows, a row a head and a row a relation, for JSON or a table. Labels are written out too."""
        heads = [
            {**_place(address), "labels": list(self.labels(address)), **asdict(own)}
            for address, own in self.heads.items()
        ]
        relations = []
        for score in self.relations:
            row = asdict(score)
            relations.append({**_place(row.pop("address")), **row})
        return {"model": self.model, "heads": heads, "relations": relations}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Roles:
        """What `to_json` wrote. Labels follow anew from the numbers."""
        try:
            facts = json.loads(text)
            heads = {}
            for row in facts["heads"]:
                address = _taken_address(row)
                del row["labels"]
                heads[address] = HeadStatistics(**row)
            relations = tuple(RelationScore(address=_taken_address(row), **row) for row in facts["relations"])
            return cls(facts["model"], heads, relations)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"text was not written by Roles.to_json: {type(error).__name__}, {error}") from None


def head_roles(recordings: Iterable[Recording], *, relations: Iterable[RelationScore] | None = None) -> Roles:
    """What every head does: statistics over all recordings of a model, and the labels that clearly follow.

    Args:
        recordings: of one model. Read in one pass, and none is kept: give a generator that makes them one by one.
            Those whose tokens, special ones at either end apart, are a sequence of at least 8 and the same again
            give the duplicate and induction scores and nothing else; all others give everything else.
        relations: what `syntax.relation_scores` found, for labels such as "amod: dependent → head".

    Induction is looked for at the L queries of the second copy, and only there: each of its tokens stands L positions
    earlier too, and the key right after that one is L − 1 positions back. The query before them, the first copy's
    last, has a key L − 1 positions back as well, but no earlier copy to continue from, and does not count.

    Nothing of size n × n is made, so texts may be long.
    """
    totals: dict[str, _Totals] = {}
    model = ""
    for recording in of_one_model(recordings):
        model = recording.model
        repeats = {name: _repeat(stack) for name, stack in recording.stacks.items() if attends_to_itself(name, stack)}
        for name, stack in recording.stacks.items():
            if name not in totals:
                totals[name] = _Totals(stack)
            if not any(repeats.values()):
                totals[name].add(_counts(name, stack), [_sums(name, stack, weights) for weights in stack.layers])
            elif repeat := repeats.get(name):
                counts = dict.fromkeys(_ON_REPEATS, repeat.length)
                totals[name].add(counts, [_repeat_sums(repeat, weights) for weights in stack.layers])
    heads = {}
    for name, own in totals.items():
        heads |= {(name, layer, head): found for (layer, head), found in own.statistics().items()}
    return Roles(model, heads, _checked(relations, heads))


# -- what one text gives ---------------------------------------------------------------------------------------------


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
    if attends_to_itself(name, stack):
        counts |= {neighbour: max(queries - abs(offset), 0) for neighbour, offset in NEIGHBOURS.items()}
        counts["sink"] = queries
    return counts


@torch.no_grad()
def _sums(name: str, stack: Stack, weights: AttentionWeights) -> dict[str, Tensor]:
    """Sums over the queries of one layer, in float64, so that a long corpus does not show in the last digits."""
    own = attends_to_itself(name, stack)
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
    held, _ = weights.pack()
    if "dense" not in held and "bias" not in held:  # then key ranges, if anything, say it all
        if "ranges" in held:
            first, last = held["ranges"][:, :, 0].unbind(dim=1)  # [ranges, q_len] each
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


# -- what all texts give ---------------------------------------------------------------------------------------------


class _Totals:
    """Sums over all texts for the heads of one stack, layer by layer. Their size does not depend on the texts."""

    def __init__(self, stack: Stack) -> None:
        self.places = [(layer, head) for layer, own in enumerate(stack.layers) for head in range(own.shape[1])]
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Any] = {}

    def add(self, counts: Mapping[str, int | Tensor], layers: list[dict[str, Tensor]]) -> None:
        """What one text gives: the number of queries each sum is over, and the sums of each layer's heads."""
        for name, count in counts.items():
            summed = torch.cat([sums[name] for sums in layers])
            self.sums[name] = self.sums[name] + summed if name in self.sums else summed
            self.counts[name] = self.counts.get(name, 0) + count

    def statistics(self) -> dict[tuple[int, int], HeadStatistics]:
        return {place: self._of(number) for number, place in enumerate(self.places)}

    def _of(self, number: int) -> HeadStatistics:
        sums = {name: own[number] for name, own in self.sums.items()}
        means = {name: float(sums[name]) / self.counts[name] for name in sums if name != "hits" and self.counts[name]}
        largest = means.pop("largest_entropy", 0.0)
        if largest:
            means["spread"] = means["entropy"] / largest
        offset, positional = _best_offset(sums["hits"], self.counts["hits"]) if "hits" in sums else (None, None)
        return HeadStatistics(self.counts.get("entropy", 0), offset=offset, positional=positional, **means)


def _best_offset(
    hits: Int[Tensor, " offsets"], rows: Int[Tensor, " offsets"]
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


def _checked(
    relations: Iterable[RelationScore] | None, heads: Mapping[Address, HeadStatistics]
) -> tuple[RelationScore, ...]:
    scores = tuple(relations or ())
    for number, score in enumerate(scores):
        if not isinstance(score, RelationScore):
            raise TypeError(f"relations[{number}] is {score!r}; expected a RelationScore")
        if score.address not in heads:
            raise ValueError(f"relations[{number}] is of head {score.address}, which the recordings do not have")
    return scores


# -- what follows from it --------------------------------------------------------------------------------------------


def _what(own: HeadStatistics, relations: list[RelationScore]) -> list[str]:
    """Labels for what the head attends to, strongest first."""
    strengths: dict[str, float] = {}
    for name, label, threshold in _LABELS:
        score = getattr(own, name)
        if score is not None and score > threshold and (name in _ON_REPEATS or _sees_enough(own)):
            strengths[label] = _way(score, threshold)
    if own.offset is not None and own.positional is not None and own.positional >= POSITIONAL and _sees_enough(own):
        strengths[f"positional {own.offset:+d}".replace("-", "−").replace("+0", "0")] = _way(own.positional, POSITIONAL)
    for score in relations:
        threshold = score.baseline + RELATION
        if score.low > threshold:
            strengths[f"{score.relation}: {score.direction}"] = _way(score.low, threshold)
    return sorted(strengths, key=lambda label: -strengths[label])


def _how(own: HeadStatistics) -> list[str]:
    if own.spread is None or not _sees_enough(own):
        return []
    return ["broad"] if own.spread >= BROAD else ["sharp"] if own.spread <= SHARP else []


def _sees_enough(own: HeadStatistics) -> bool:
    return own.keys is not None and own.keys >= KEYS


def _way(score: float, threshold: float) -> float:
    """How far a score has come from its threshold towards 1."""
    return (score - threshold) / (1 - threshold)


def _place(address: Address) -> dict[str, str | int]:
    return dict(zip(("stack", "layer", "head"), address, strict=True))


def _taken_address(row: dict[str, Any]) -> Address:
    return row.pop("stack"), row.pop("layer"), row.pop("head")
