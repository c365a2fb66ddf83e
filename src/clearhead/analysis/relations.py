"""`relation_scores`: accuracy of heads on the edges of dependency trees, compared with a fixed offset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.analysis.conllu import Sentence
from clearhead.recording.recording import Address, Recording, Stack, Tokens, check_one_model, is_self_attention
from clearhead.weights.matrix import AttentionWeights

RelationDirection = Literal["dependent → head", "head → dependent"]
RelationKind = tuple[str, RelationDirection]  # the direction is from the attending word to the attended word
LISTED_FIRST = ("aux", "amod", "advmod")  # first rows of the table, in this order
EXCLUDED_RELATIONS = ("root", "punct")  # the root has no head; the head of punctuation is an annotation convention
BASELINE_OFFSETS = tuple(sign * step for step in range(1, 6) for sign in (-1, 1))  # in words, nearest first
Z_95 = 1.959964  # 97.5 % quantile of the standard normal distribution
_END: Any = object()


@dataclass(frozen=True)
class RelationScore:
    """Accuracy of the best head for one relation, on held-out sentences.

    Attributes:
        relation: relation, such as "nsubj".
        direction: which of the two words attends to the other.
        address: stack, layer and index of the head.
        accuracy: share of questions (see `relation_scores`) for which the head attends most to a right word.
        low: lower end of the 95 % Wilson interval of the accuracy.
        high: upper end of that interval.
        count: number of questions.
        baseline: accuracy of the best fixed offset on the same questions.
        offset: that offset, in words.
    """

    relation: str
    direction: RelationDirection
    address: Address
    accuracy: float
    low: float
    high: float
    count: int
    baseline: float
    offset: int


def relation_scores(
    recordings: Iterable[Recording], sentences: Iterable[Sentence], *, minimum: int = 20
) -> list[RelationScore]:
    """Return the best head of each self-attention stack for every relation, in both directions.

    For each dependent the question is: is the word with the most attention its head? For each word with dependents of
    a relation it is: is the word with the most attention one of them?

    Attention between two words is summed over the tokens of the attended word and averaged over those of the attending
    word. The argmax excludes the word itself and special tokens. A head without weight on other words counts as wrong.

    Questions without a visible right word are skipped, such as those about later words in a causal decoder. Visible
    keys are those that the mask allows (scores above −inf), because small weights may underflow to 0. The questions
    therefore differ between encoder and decoder, so each self-attention stack has separate scores.

    The best head and the best offset are selected on sentences 0, 2, 4 … and scored on sentences 1, 3, 5 …. Selecting
    and scoring on the same sentences would bias the scores upwards. An offset is right if it reaches a visible right
    word.

    In an encoder–decoder the sentence is the encoder's text. The decoder is scored too if its text is the same.

    Args:
        recordings: one recording per sentence, in the same order, made from the sentence's words. They are read in one
            pass and not kept, so a generator saves memory.
        sentences: sentences with dependency trees.
        minimum: minimum number of scored questions. Relations with fewer are omitted.

    Returns:
        Scores of `aux`, `amod` and `advmod` first, then the others in descending order of `count`.
    """
    minimum = check_int("minimum", minimum)
    counts: dict[str, _Counts] = {}
    for index, (recording, sentence) in enumerate(_pairs(recordings, sentences)):
        questions = _questions(sentence)
        for name, stack in _self_attention_stacks(index, recording).items():
            pieces = _pieces(f"recordings[{index}]", stack.queries, sentence)
            if name not in counts:
                counts[name] = _Counts(name, stack)
            if questions.kinds:
                counts[name].add(index % 2, stack, pieces, questions)
    scores = [score for stack_counts in counts.values() for score in stack_counts.scores(minimum)]
    return sorted(scores, key=_sort_key)


@dataclass(frozen=True, eq=False)
class _Questions:
    """Questions about one sentence, the same for every head."""

    kinds: list[RelationKind]
    words: Int[Tensor, " questions"]  # the attending word
    answers: Bool[Tensor, "questions words"]  # True for right words

    def to(self, device: torch.device) -> _Questions:
        return _Questions(self.kinds, self.words.to(device), self.answers.to(device))


def _questions(sentence: Sentence) -> _Questions:
    right: dict[tuple[str, RelationDirection, int], list[int]] = {}
    for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        if head >= 0 and relation not in EXCLUDED_RELATIONS:
            right.setdefault((relation, "dependent → head", word), []).append(head)
            right.setdefault((relation, "head → dependent", head), []).append(word)
    answers = torch.zeros(len(right), len(sentence.words), dtype=torch.bool)
    for index, words in enumerate(right.values()):
        answers[index, words] = True
    words = torch.tensor([word for _, _, word in right], dtype=torch.long)
    return _Questions([(relation, direction) for relation, direction, _ in right], words, answers)


class _Counts:
    """Counts of right answers of every head and offset of a stack, by half of the corpus and kind of question.

    The table is `[half, kind, column]`. Each layer has one column per head, one per offset, and one for the number of
    questions. Its size depends on the model and the number of relations, not on the size of the corpus.
    """

    def __init__(self, name: str, stack: Stack) -> None:
        self.name = name
        self.heads = [weights.shape[1] for weights in stack.layers]
        self.kinds: dict[RelationKind, int] = {}
        self.table = torch.zeros(2, 0, sum(self._widths()), dtype=torch.long)

    def _widths(self) -> list[int]:
        return [heads + len(BASELINE_OFFSETS) + 1 for heads in self.heads]

    @torch.no_grad()
    def add(self, half: int, stack: Stack, pieces: Float[Tensor, "words tokens"], questions: _Questions) -> None:
        rows = torch.tensor([self.kinds.setdefault(kind, len(self.kinds)) for kind in questions.kinds])
        missing = len(self.kinds) - self.table.shape[1]
        if missing:
            self.table = torch.nn.functional.pad(self.table, (0, 0, 0, missing))
        columns = torch.cat([_answered(weights, pieces, questions).cpu() for weights in stack.layers])
        self.table[half].index_add_(0, rows, columns.T.long())

    def scores(self, minimum: int) -> Iterator[RelationScore]:
        for (relation, direction), row in self.kinds.items():
            choosing, scoring = (
                [_LayerCounts.read(part.tolist()) for part in half[row].split(self._widths())] for half in self.table
            )
            enough = [
                layer
                for layer in range(len(self.heads))
                if choosing[layer].questions and scoring[layer].questions >= minimum
            ]
            shares = {
                (layer, head): choosing[layer].right[head] / choosing[layer].questions
                for layer in enough
                for head in range(self.heads[layer])
            }
            if not shares:
                continue
            layer, head = max(shares, key=lambda address: shares[address])
            offset = max(range(len(BASELINE_OFFSETS)), key=lambda index: choosing[layer].by_offset[index])
            counts = scoring[layer]
            yield RelationScore(
                relation,
                direction,
                (self.name, layer, head),
                counts.right[head] / counts.questions,
                *wilson(counts.right[head], counts.questions),
                counts.questions,
                counts.by_offset[offset] / counts.questions,
                BASELINE_OFFSETS[offset],
            )


@dataclass(frozen=True)
class _LayerCounts:
    """Columns of one layer in the table."""

    right: list[int]  # per head
    by_offset: list[int]
    questions: int

    @classmethod
    def read(cls, columns: list[int]) -> _LayerCounts:
        heads = len(columns) - len(BASELINE_OFFSETS) - 1
        return cls(columns[:heads], columns[heads:-1], columns[-1])


def _answered(
    weights: AttentionWeights, pieces: Float[Tensor, "words tokens"], questions: _Questions
) -> Bool[Tensor, "columns questions"]:
    """Return which heads and which offsets answer each question right, and which questions have a visible answer."""
    pieces, questions = pieces.to(weights.device, weights.dtype), questions.to(weights.device)
    attention, visible = _between_words(weights, pieces)
    attention.diagonal(dim1=1, dim2=2).zero_()  # exclude the word itself from the argmax
    most, chosen = attention[:, questions.words].max(dim=-1)  # [heads, questions]
    right_words = questions.answers & visible[questions.words]
    every = torch.arange(len(questions.kinds), device=weights.device)
    right = right_words[every, chosen] & (most > 0)
    targets = questions.words + torch.tensor(BASELINE_OFFSETS, device=weights.device)[:, None]  # [offsets, questions]
    inside = (targets >= 0) & (targets < len(visible))
    by_offset = right_words[every, targets.clamp(0, len(visible) - 1)] & inside
    return torch.cat([right, by_offset, right_words.any(dim=-1)[None]])


def _between_words(
    weights: AttentionWeights, pieces: Float[Tensor, "words tokens"]
) -> tuple[Float[Tensor, "heads words words"], Bool[Tensor, "words words"]]:
    """Return the attention between words per head, and which words are visible to at least one head."""
    scores, lse = weights.scores[0], weights.lse[0]
    # a row without visible keys has lse −inf; subtracting it would give nan
    cells = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
    mean = pieces / pieces.sum(dim=-1, keepdim=True).clamp(min=1)
    allowed = (scores > -torch.inf).any(dim=0).to(pieces.dtype)
    return mean @ cells @ pieces.T, pieces @ allowed @ pieces.T > 0


def _pieces(name: str, tokens: Tokens, sentence: Sentence) -> Float[Tensor, "words tokens"]:
    """Return 1 where a token is part of a word. A word that the tokenizer dropped has a row of zeros."""
    count = 1 + max((word for word in tokens.words if word is not None), default=-1)
    if count != len(sentence.words):
        raise ValueError(
            f"{name} has {count} words, but its sentence has {len(sentence.words)}"
            f" ({' '.join(sentence.words[:8])}{' …' if len(sentence.words) > 8 else ''}); expected a recording of the"
            " sentence's words"
        )
    pieces = torch.zeros(count, len(tokens))
    for index, word in enumerate(tokens.words):
        if word is not None:
            pieces[word, index] = 1
    return pieces


def _self_attention_stacks(index: int, recording: Recording) -> dict[str, Stack]:
    """Return the self-attention stacks over the sentence: the first, and others with the same text."""
    stacks = {name: stack for name, stack in recording.stacks.items() if is_self_attention(name, stack)}
    if not stacks:
        raise ValueError(f"recordings[{index}] has {', '.join(recording.stacks) or 'nothing'}; expected self-attention")
    text = _ordinary_texts(next(iter(stacks.values())).queries)
    return {name: stack for name, stack in stacks.items() if _ordinary_texts(stack.queries) == text}


def _ordinary_texts(tokens: Tokens) -> list[str]:
    return [text for text, special in zip(tokens.texts, tokens.special, strict=True) if not special]


def _pairs(recordings: Iterable[Recording], sentences: Iterable[Sentence]) -> Iterator[tuple[Recording, Sentence]]:
    # not itertools.zip_longest, which may keep a reference to the first pair and its recording
    remaining, count = iter(sentences), 0
    for recording in check_one_model(recordings):
        sentence = next(remaining, _END)
        if sentence is _END:
            raise ValueError(
                f"sentences has {count} entries, but recordings has more; expected a sentence per recording"
            )
        if not isinstance(sentence, Sentence):
            raise TypeError(f"sentences[{count}] is {sentence!r}; expected a Sentence")
        yield recording, sentence
        count += 1
    if next(remaining, _END) is not _END:
        raise ValueError(f"recordings has {count} entries, but sentences has more; expected a sentence per recording")


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a proportion, which is also valid for small and extreme counts.

    Examples:
        >>> [round(end, 3) for end in wilson(9, 10)]
        [0.596, 0.982]
    """
    share, spread = right / count, Z_95 * Z_95 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def _sort_key(score: RelationScore) -> tuple[int, int]:
    return LISTED_FIRST.index(score.relation) if score.relation in LISTED_FIRST else len(LISTED_FIRST), -score.count
