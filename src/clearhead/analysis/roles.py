"""`head_roles`: labels for the roles of heads, from recordings. Never runs a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from clearhead._utils.checks import check_int
from clearhead._utils.text import json_text
from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.relations import RelationScore
from clearhead.analysis.repeated_tokens import TEXT_SCORES
from clearhead.analysis.statistics import (
    NEIGHBOR_OFFSETS,
    REPEAT_SCORES,
    HeadStatistics,
    measure_heads,
    statistics_from_sums,
)
from clearhead.recording.names import model_name
from clearhead.recording.recording import Address, Recording

# A head gets a label if its score is above the threshold, on texts with at least MIN_VISIBLE_KEYS visible keys per
# query on average. With fewer keys uniform attention would get labels: with 9 causal tokens the first receives 0.31.
MIN_VISIBLE_KEYS = 8
SINK_THRESHOLD = 0.30  # weight on the first token; more than twice that of uniform attention over 8 keys
NEIGHBOR_THRESHOLD = 0.40  # self, previous, next; three times that of uniform attention over 8 keys
POSITIONAL_THRESHOLD = 0.90  # share of queries; positional heads as in Voita et al. (2019)
DELIMITER_THRESHOLD = 0.50  # more weight than on the rest of the text
INDUCTION_THRESHOLD = 0.30  # chance on random tokens is 1 / keys
DUPLICATE_THRESHOLD = 0.30  # likewise
TEXT_MARGIN = 0.10  # of scores on ordinary text above uniform attention, whose score depends on the text
MIN_TEXT_REPEATS = 16  # queries of ordinary text; the mean over fewer is noise
RELATION_MARGIN = 0.05  # of the interval's lower end above the baseline, which has a sampling error too
BROAD_THRESHOLD = 0.90  # of the maximum entropy; with 100 keys, that of uniform attention to 63
SHARP_THRESHOLD = 0.10  # likewise; with 100 keys, that of uniform attention to fewer than 2

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
    *TEXT_SCORES,
)
_LABELS = (  # statistic, label, threshold
    ("self", "self", NEIGHBOR_THRESHOLD),
    ("previous", "previous token", NEIGHBOR_THRESHOLD),
    ("next", "next token", NEIGHBOR_THRESHOLD),
    ("sink", "sink", SINK_THRESHOLD),
    ("delimiter", "delimiter", DELIMITER_THRESHOLD),
    ("induction", "induction", INDUCTION_THRESHOLD),
    ("duplicate", "duplicate token", DUPLICATE_THRESHOLD),
)
_TEXT_LABELS = {  # score on ordinary text: label, and the score on repeated sequences, which has priority
    "text_induction": ("induction", "induction"),
    "text_duplicate": ("duplicate token", "duplicate"),
}


@dataclass(frozen=True)
class Loss:
    """Loss of a language model in nats per predicted token, or a change of it.

    Attributes:
        text: mean over the texts. Each text has the same weight.
        repeated: mean over the second copy of repeated random tokens, which can be predicted from the first copy.
    """

    text: float
    repeated: float


@dataclass(frozen=True)
class Roles:
    """Statistics of every head of a model, with labels derived from them.

    Attributes:
        model: name of the model.
        heads: statistics of each head, by (stack, layer, head).
        relations: scores of heads on syntactic relations.
        loss: loss of the whole model; None if effects were not measured.
        effects: increase of the loss without each head that has a label.
    """

    model: str
    heads: dict[Address, HeadStatistics]
    relations: tuple[RelationScore, ...] = ()
    loss: Loss | None = None
    effects: dict[Address, Loss] = field(default_factory=dict)

    def labels(self, address: Address) -> tuple[str, ...]:
        """Return the labels of a head, strongest first: by the position of the score between its threshold and 1.

        The labels "broad" and "sharp", which describe the spread of attention, are last.
        """
        if address not in self.heads:
            raise KeyError(f"{self.model} has no head {address!r}; expected (stack, layer, head)")
        statistics = self.heads[address]
        relations = [score for score in self.relations if score.address == address]
        return (*_role_labels(statistics, relations), *_breadth_labels(statistics))

    def label(self, address: Address) -> str:
        """Return the strongest label of a head, or "" if it has no label."""
        return next(iter(self.labels(address)), "")

    @property
    def labeled(self) -> list[Address]:
        """Heads with at least one label, in the order of `heads`."""
        return [address for address in self.heads if self.labels(address)]

    def top(self, name: str, count: int = 5) -> list[tuple[Address, float]]:
        """Return the heads with the highest score `name`, such as "previous" or "induction", highest first.

        Heads without that score are left out.
        """
        if name not in SCORE_NAMES:
            raise ValueError(f"name is {name!r}; expected one of {', '.join(SCORE_NAMES)}")
        scores = {address: getattr(statistics, name) for address, statistics in self.heads.items()}
        known = [(address, score) for address, score in scores.items() if score is not None]
        return sorted(known, key=lambda pair: -pair[1])[: check_int("count", count)]

    def part(self, includes: Callable[[Address], bool]) -> Roles:
        """Return the roles of the heads for which `includes(address)` is true, with their relations."""
        heads = {address: statistics for address, statistics in self.heads.items() if includes(address)}
        relations = tuple(score for score in self.relations if includes(score.address))
        effects = {address: effect for address, effect in self.effects.items() if includes(address)}
        return replace(self, heads=heads, relations=relations, effects=effects)

    def to_dict(self) -> dict[str, Any]:
        """Return lists of rows, one per head and one per relation, including labels, for JSON or a table.

        With effects, the dictionary contains "loss", and each row "effect", which is None for heads without a label.
        """
        heads = [
            {**_address_columns(address), "labels": list(self.labels(address)), **asdict(statistics)}
            for address, statistics in self.heads.items()
        ]
        relations = []
        for score in self.relations:
            row = asdict(score)
            relations.append({**_address_columns(row.pop("address")), **row})
        document = {"model": self.model, "heads": heads, "relations": relations}
        if self.loss is None:
            return document
        for row, address in zip(heads, self.heads, strict=True):
            row["effect"] = asdict(self.effects[address]) if address in self.effects else None
        return {**document, "loss": asdict(self.loss)}

    def to_json(self) -> str:
        """Return the dictionary of `to_dict` as JSON."""
        return json_text(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Roles:
        """Parse the output of `to_json`. Labels are derived from the statistics again."""
        try:
            document = json.loads(text)
            heads, effects = {}, {}
            loss = _parse_loss(document.get("loss"))
            for row in document["heads"]:
                address = _pop_address(row)
                del row["labels"]
                effect = _parse_loss(row.pop("effect", None))
                if effect is not None:
                    effects[address] = effect
                heads[address] = HeadStatistics(**_checked_row(HeadStatistics, row))
            relations = tuple(
                RelationScore(address=_pop_address(row), **_checked_row(RelationScore, row))
                for row in document["relations"]
            )
            _check_value("model", document["model"], str)
            return cls(model_name(document["model"]), heads, _checked(relations, heads), loss, effects)
        except RecursionError:
            raise ValueError("text is not from Roles.to_json: nested too deeply") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"text is not from Roles.to_json: {type(error).__name__}, {error}") from None


def head_roles(recordings: Iterable[Recording], *, relations: Iterable[RelationScore] | None = None) -> Roles:
    """Return statistics and labels of every head, over all recordings of a model.

    No n × n matrix is created, so texts may be long.

    A recording of a repeated sequence gives the duplicate and induction scores only; other recordings give all other
    scores. A repeated sequence is one of at least 8 tokens, followed by a copy, with or without special tokens at
    either end.

    Without such a recording, the labels "induction" and "duplicate token" come from ordinary texts. The score must be
    more than 0.10 above that of uniform attention, over at least 16 queries whose token has occurred before.

    The induction score covers the L queries of the second copy. The same token occurs L positions earlier, and the key
    after it is L − 1 positions earlier. The last query of the first copy also has a key L − 1 positions earlier. It is
    not counted, because its token has not occurred before.

    Args:
        recordings: recordings of one model. They are read in one pass and not kept, so a generator saves memory.
        relations: scores from `relation_scores`, for labels such as "amod: dependent → head".
    """
    model, heads = measure_heads(recordings)
    return Roles(model, heads, _checked(relations, heads))


def roles_from_sums(total: HeadSums, *, relations: Iterable[RelationScore] | None = None) -> Roles:
    """Return the roles from sums over recordings, which `sum_statistics` returns."""
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
            raise ValueError(f"relations[{index}] is of head {score.address}; expected a head of the recordings")
    return scores


def _role_labels(statistics: HeadStatistics, relations: list[RelationScore]) -> list[str]:
    """Return labels for the keys that a head attends to, strongest first."""
    strengths: dict[str, float] = {}
    for name, label, threshold in _LABELS:
        score = getattr(statistics, name)
        if score is not None and score > threshold and (name in REPEAT_SCORES or _sees_enough(statistics)):
            strengths[label] = _strength(score, threshold)
    for name, (label, repeated) in _TEXT_LABELS.items():
        score, threshold = getattr(statistics, name), (statistics.text_chance or 0.0) + TEXT_MARGIN
        enough = statistics.text_repeats is not None and statistics.text_repeats >= MIN_TEXT_REPEATS
        if enough and getattr(statistics, repeated) is None and score is not None and score > threshold:
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
    """Return the position of a score between its threshold (0) and 1."""
    return (score - threshold) / (1 - threshold)


def _address_columns(address: Address) -> dict[str, str | int]:
    return dict(zip(("stack", "layer", "head"), address, strict=True))


def _pop_address(row: dict[str, Any]) -> Address:
    for name, kind in (("stack", str), ("layer", int), ("head", int)):
        _check_value(name, row[name], kind)
    return row.pop("stack"), row.pop("layer"), row.pop("head")


def _parse_loss(row: dict[str, Any] | None) -> Loss | None:
    return None if row is None else Loss(**_checked_row(Loss, row))


def _checked_row(kind: type, row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass after checking their types."""
    hints = get_type_hints(kind)
    for name, value in row.items():
        if name in hints:  # __init__ raises for others
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
