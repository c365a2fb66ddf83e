"""`head_roles`: what kind of head is this. Reads recordings, and never runs a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from clearhead._utils.checks import check_int
from clearhead._utils.text import json_text
from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.relations import RelationScore
from clearhead.analysis.statistics import NEIGHBOURS, ON_REPEATS, HeadStatistics, from_sums, measure
from clearhead.recording.recording import Address, Recording

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
        return sorted(known, key=lambda pair: -pair[1])[: check_int("count", count)]

    def part(self, wanted: Callable[[Address], bool]) -> Roles:
        """The same for some of the heads, and their relations."""
        heads = {address: own for address, own in self.heads.items() if wanted(address)}
        return Roles(self.model, heads, tuple(score for score in self.relations if wanted(score.address)))

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
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Roles:
        """What `to_json` wrote. Labels follow anew from the numbers."""
        try:
            facts = json.loads(text)
            heads = {}
            for row in facts["heads"]:
                address = _taken_address(row)
                del row["labels"]
                heads[address] = HeadStatistics(**_checked_row(HeadStatistics, row))
            relations = tuple(
                RelationScore(address=_taken_address(row), **_checked_row(RelationScore, row))
                for row in facts["relations"]
            )
            _check_value("model", facts["model"], str)
            return cls(facts["model"], heads, _checked(relations, heads))
        except RecursionError:
            raise ValueError("text was not written by Roles.to_json: nested too deeply") from None
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
    model, heads = measure(recordings)
    return Roles(model, heads, _checked(relations, heads))


def roles_of(total: HeadSums, *, relations: Iterable[RelationScore] | None = None) -> Roles:
    """The same from what recordings came to, as `head_statistics.tally` counts it."""
    heads = from_sums(total)
    return Roles(total.model, heads, _checked(relations, heads))


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


def _what(own: HeadStatistics, relations: list[RelationScore]) -> list[str]:
    """Labels for what the head attends to, strongest first."""
    strengths: dict[str, float] = {}
    for name, label, threshold in _LABELS:
        score = getattr(own, name)
        if score is not None and score > threshold and (name in ON_REPEATS or _sees_enough(own)):
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
    for name, kind in (("stack", str), ("layer", int), ("head", int)):
        _check_value(name, row[name], kind)
    return row.pop("stack"), row.pop("layer"), row.pop("head")


def _checked_row(kind: type, row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass as they were read, after checking their types."""
    hints = get_type_hints(kind)
    for name, value in row.items():
        if name in hints:  # the dataclass refuses others
            _check_value(name, value, hints[name])
    return row


def _check_value(name: str, value: object, hint: Any) -> None:
    """Check a value from JSON against a type hint such as `float | None` or a Literal."""
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is Literal:
        fits = value in kinds
    else:
        fits = type(value) in kinds or (type(value) is int and float in kinds)
    if isinstance(value, int | float):
        fits = fits and abs(value) < 2**63  # not NaN, not infinite, not too large for a float
    if not fits:
        raise ValueError(f"{name} is {str(value)[:40]!r}; expected {getattr(hint, '__name__', hint)}")
