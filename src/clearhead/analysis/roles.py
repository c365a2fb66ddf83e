"""`head_roles`: labels for what each head does, from recordings. Never runs a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from clearhead._utils.checks import check_int
from clearhead._utils.text import json_text
from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.relations import RelationScore
from clearhead.analysis.statistics import (
    NEIGHBOR_OFFSETS,
    REPEAT_SCORES,
    HeadStatistics,
    measure_heads,
    statistics_from_sums,
)
from clearhead.recording.recording import Address, Recording

# A label is given where the evidence is clear: above these, and on texts where a query sees
# MIN_VISIBLE_KEYS keys on average.
MIN_VISIBLE_KEYS = (
    8  # with fewer, attending to all alike looks like a role: of 9 causal tokens the first then receives 0.31
)
SINK_THRESHOLD = 0.30  # of all attention, on one token whatever it is; more than twice what 8 keys alike give it
NEIGHBOR_THRESHOLD = 0.40  # self, previous, next: three times what 8 keys alike give
POSITIONAL_THRESHOLD = 0.90  # nine rows in ten, whatever the text: as Voita et al. (2019) define positional heads
DELIMITER_THRESHOLD = 0.50  # more than on all of the text together
INDUCTION_THRESHOLD = 0.30  # on random tokens chance is 1 / keys: nothing but the repetition brings a head here
DUPLICATE_THRESHOLD = 0.30  # likewise
RELATION_MARGIN = 0.05  # low end over baseline: the baseline, too, is only measured, and has its own error
BROAD_THRESHOLD = 0.90  # of the largest entropy there can be: of 100 keys, as if all attention were shared by 63
SHARP_THRESHOLD = 0.10  # of 100 keys, as if by fewer than 2

SCORE_NAMES = (
    "entropy",
    "spread",
    "distance",
    *NEIGHBOR_OFFSETS,
    "sink",
    "positional",
    "delimiter",
    "duplicate",
    "induction",
)
_LABELS = (  # statistic, its label, what it has to be above
    ("self", "self", NEIGHBOR_THRESHOLD),
    ("previous", "previous token", NEIGHBOR_THRESHOLD),
    ("next", "next token", NEIGHBOR_THRESHOLD),
    ("sink", "sink", SINK_THRESHOLD),
    ("delimiter", "delimiter", DELIMITER_THRESHOLD),
    ("induction", "induction", INDUCTION_THRESHOLD),
    ("duplicate", "duplicate token", DUPLICATE_THRESHOLD),
)


@dataclass(frozen=True)
class Roles:
    """Statistics of every head of a model, the relations they were scored on, and the labels that follow."""

    model: str
    heads: dict[Address, HeadStatistics]
    relations: tuple[RelationScore, ...] = ()

    def labels(self, address: Address) -> tuple[str, ...]:
        """Return what the head clearly does, strongest first: by how far its score is from the threshold towards 1.

        "broad" and "sharp" say how, not what, and stand last.
        """
        if address not in self.heads:
            raise KeyError(f"{self.model} has no head {address!r}; expected (stack, layer, head)")
        statistics = self.heads[address]
        relations = [score for score in self.relations if score.address == address]
        return (*_role_labels(statistics, relations), *_breadth_labels(statistics))

    def label(self, address: Address) -> str:
        """Return the strongest label, or "" if none is clear."""
        return next(iter(self.labels(address)), "")

    def top(self, name: str, count: int = 5) -> list[tuple[Address, float]]:
        """Return the heads with the highest `name`, such as "previous" or "induction", highest first, without None."""
        if name not in SCORE_NAMES:
            raise ValueError(f"name is {name!r}; expected one of {', '.join(SCORE_NAMES)}")
        scores = {address: getattr(statistics, name) for address, statistics in self.heads.items()}
        known = [(address, score) for address, score in scores.items() if score is not None]
        return sorted(known, key=lambda pair: -pair[1])[: check_int("count", count)]

    def part(self, includes: Callable[[Address], bool]) -> Roles:
        """Return the roles of some of the heads, with their relations."""
        heads = {address: statistics for address, statistics in self.heads.items() if includes(address)}
        return Roles(self.model, heads, tuple(score for score in self.relations if includes(score.address)))

    def to_dict(self) -> dict[str, Any]:
        """Return lists of rows, one per head and one per relation, for JSON or a table. Labels are written out too."""
        heads = [
            {**_address_columns(address), "labels": list(self.labels(address)), **asdict(statistics)}
            for address, statistics in self.heads.items()
        ]
        relations = []
        for score in self.relations:
            row = asdict(score)
            relations.append({**_address_columns(row.pop("address")), **row})
        return {"model": self.model, "heads": heads, "relations": relations}

    def to_json(self) -> str:
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Roles:
        """Read what `to_json` wrote. Labels are derived again from the statistics."""
        try:
            document = json.loads(text)
            heads = {}
            for row in document["heads"]:
                address = _pop_address(row)
                del row["labels"]
                heads[address] = HeadStatistics(**_checked_row(HeadStatistics, row))
            relations = tuple(
                RelationScore(address=_pop_address(row), **_checked_row(RelationScore, row))
                for row in document["relations"]
            )
            _check_value("model", document["model"], str)
            return cls(document["model"], heads, _checked(relations, heads))
        except RecursionError:
            raise ValueError("text was not written by Roles.to_json: nested too deeply") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"text was not written by Roles.to_json: {type(error).__name__}, {error}") from None


def head_roles(recordings: Iterable[Recording], *, relations: Iterable[RelationScore] | None = None) -> Roles:
    """Return statistics of every head over all recordings of a model, and the labels that clearly follow.

    Args:
        recordings: of one model. Read in one pass, and none is kept: give a generator that makes them one by one.
            Those whose tokens, special ones at either end apart, are a sequence of at least 8 and the same again
            give the duplicate and induction scores and nothing else; all others give everything else.
        relations: what `relation_scores` returned, for labels such as "amod: dependent → head".

    Induction is looked for at the L queries of the second copy, and only there: each of its tokens stands L positions
    earlier too, and the key right after that one is L − 1 positions back. The query before them, the first copy's
    last, has a key L − 1 positions back as well, but no earlier copy to continue from, and does not count.

    Nothing of size n × n is made, so texts may be long.
    """
    model, heads = measure_heads(recordings)
    return Roles(model, heads, _checked(relations, heads))


def roles_from_sums(total: HeadSums, *, relations: Iterable[RelationScore] | None = None) -> Roles:
    """Return the roles that follow from sums over recordings, as `sum_statistics` returns them."""
    heads = statistics_from_sums(total)
    return Roles(total.model, heads, _checked(relations, heads))


def _checked(
    relations: Iterable[RelationScore] | None, heads: Mapping[Address, HeadStatistics]
) -> tuple[RelationScore, ...]:
    scores = tuple(relations or ())
    for index, score in enumerate(scores):
        if not isinstance(score, RelationScore):
            raise TypeError(f"relations[{index}] is {score!r}; expected a RelationScore")
        if score.address not in heads:
            raise ValueError(f"relations[{index}] is of head {score.address}, which the recordings do not have")
    return scores


def _role_labels(statistics: HeadStatistics, relations: list[RelationScore]) -> list[str]:
    """Return labels for what the head attends to, strongest first."""
    strengths: dict[str, float] = {}
    for name, label, threshold in _LABELS:
        score = getattr(statistics, name)
        if score is not None and score > threshold and (name in REPEAT_SCORES or _sees_enough(statistics)):
            strengths[label] = _strength(score, threshold)
    offset, positional = statistics.offset, statistics.positional
    if (
        offset is not None
        and positional is not None
        and positional >= POSITIONAL_THRESHOLD
        and _sees_enough(statistics)
    ):
        label = f"positional {offset:+d}".replace("-", "−").replace("+0", "0")
        strengths[label] = _strength(positional, POSITIONAL_THRESHOLD)
    for score in relations:
        threshold = score.baseline + RELATION_MARGIN
        if score.low > threshold:
            strengths[f"{score.relation}: {score.direction}"] = _strength(score.low, threshold)
    return sorted(strengths, key=lambda label: -strengths[label])


def _breadth_labels(statistics: HeadStatistics) -> list[str]:
    spread = statistics.spread
    if spread is None or not _sees_enough(statistics):
        return []
    return ["broad"] if spread >= BROAD_THRESHOLD else ["sharp"] if spread <= SHARP_THRESHOLD else []


def _sees_enough(statistics: HeadStatistics) -> bool:
    return statistics.keys is not None and statistics.keys >= MIN_VISIBLE_KEYS


def _strength(score: float, threshold: float) -> float:
    """Return how far a score is from its threshold towards 1."""
    return (score - threshold) / (1 - threshold)


def _address_columns(address: Address) -> dict[str, str | int]:
    return dict(zip(("stack", "layer", "head"), address, strict=True))


def _pop_address(row: dict[str, Any]) -> Address:
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
