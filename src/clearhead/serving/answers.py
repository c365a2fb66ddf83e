"""End of an answer: how many of the tokens that a model wrote belong to it, and why it ended."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class StopRules:
    """Parameters of a request that end its answer.

    Attributes:
        tokens: ids that end the answer, which contains them.
        texts: texts that end the answer. Servers look for them after the step, so the model may write more tokens.
        min_tokens: number of tokens before which no text is looked for.
        max_tokens: largest number of tokens of the answer; None for no limit.
        skip_special_tokens: look for the texts in the answer without its special tokens.
    """

    tokens: frozenset[int] = frozenset()
    texts: tuple[str, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    skip_special_tokens: bool = True

    @classmethod
    def of(cls, sampling: Any, prompt_len: int, max_model_len: int | None) -> StopRules:
        """Return the rules of vLLM's `SamplingParams`."""
        ids = {getattr(sampling, "eos_token_id", None), *(getattr(sampling, "stop_token_ids", None) or ())} - {None}
        limits = [getattr(sampling, "max_tokens", None), max_model_len and max_model_len - prompt_len]
        texts = getattr(sampling, "stop", None) or ()
        return cls(
            frozenset(ids),
            (texts,) if isinstance(texts, str) else tuple(texts),
            getattr(sampling, "min_tokens", 0),
            min((limit for limit in limits if limit is not None), default=None),
            getattr(sampling, "skip_special_tokens", True),
        )


class AnswerEnd(NamedTuple):
    """Number of tokens of an answer, and why it ended; None if that is unknown."""

    tokens: int
    reason: FinishReason | None


def end_of_answer(
    written: Sequence[int], rows: int, rules: StopRules, decode: Callable[[Sequence[int]], str]
) -> AnswerEnd:
    """Return the end of an answer. It is an abort if no rule has ended it.

    Args:
        written: tokens that the model wrote, without the last one if it is unknown.
        rows: number of tokens that the model wrote.
        rules: parameters of the request.
        decode: returns the text of tokens.
    """
    ends: list[AnswerEnd] = []
    token = next((index for index, each in enumerate(written) if each in rules.tokens), None)
    if token is not None:
        ends.append(AnswerEnd(token + 1, "stop"))
    if rules.texts:
        counts = range(max(rules.min_tokens, 1), len(written) + 1)
        index = bisect.bisect_left(counts, True, key=lambda count: _contains(decode(written[:count]), rules.texts))
        if index < len(counts):
            ends.append(AnswerEnd(counts[index], "stop"))
    if rules.max_tokens is not None and rows >= rules.max_tokens:
        ends.append(AnswerEnd(rules.max_tokens, "length"))
    return min(ends, key=lambda end: end.tokens, default=AnswerEnd(rows, "abort" if len(written) == rows else None))


def _contains(text: str, parts: Sequence[str]) -> bool:
    return any(part in text for part in parts)
