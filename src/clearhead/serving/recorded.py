"""`Recording` of a finished request, with the texts of its tokens."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from clearhead._utils.text import is_unicode
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.serving.finished import FinishedRequest, RecordedLayer
from clearhead.serving.indices import format_indices
from clearhead.serving.tokens import token_texts
from clearhead.weights.matrix import AttentionWeights

STACK = "decoder"


class RequestTexts(NamedTuple):
    """Tokens that a model read, the one that it wrote last, and prompt and answer.

    Attributes:
        tokens: tokens that the model read.
        last: last token of the answer, which the model never read. Its text is empty if it is unknown.
        prompt: text of the prompt; None without a tokenizer.
        answer: text of the answer; None without a tokenizer.
    """

    tokens: Tokens
    last: Tokens
    prompt: str | None = None
    answer: str | None = None

    @classmethod
    def decode(cls, finished: FinishedRequest, tokenizer: Any) -> RequestTexts:
        """Return the texts of a request. The tokens are ids if `tokenizer` is None."""
        unread = [] if finished.unread is None else [finished.unread]
        written = token_texts([*finished.token_ids, *unread], tokenizer)  # together, because a character may need both
        count = len(finished.token_ids)
        tokens = written.part(0, count)
        last = written.part(count, count + 1) if unread else Tokens(("",), (False,), (None,))
        if tokenizer is None:
            return cls(tokens, last)
        prompt, answer = finished.token_ids[: finished.prompt_len], finished.token_ids[finished.prompt_len :]
        decode = functools.partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return cls(tokens, last, *(_valid(decode(ids)) for ids in (prompt, [*answer, *unread])))


def _valid(text: str) -> str | None:
    return text if is_unicode(text) else None


def to_recording(finished: FinishedRequest, model: str, texts: RequestTexts) -> Recording:
    """Return the recording of a request whose tensors are on the CPU.

    A recording numbers its layers and heads from 0. If some of the model's are missing, the name of the model lists
    those that were recorded.
    """
    keys, rows = texts.tokens, finished.rows
    after, last = keys.part(finished.first_row + 1, len(keys)), texts.last
    written = Tokens(after.texts + last.texts, after.special + last.special, after.words + last.words)
    layers = tuple(_weights(layer, finished.heads) for layer in finished.recording)
    stack = Stack(layers, keys.part(finished.first_row, finished.first_row + rows), keys, written)
    indices = [layer.layer.index for layer in finished.recording]
    return Recording(_name(model, indices, finished.heads), {STACK: stack}, texts.prompt, texts.answer)


def _weights(recorded: RecordedLayer, heads: Sequence[int] | None) -> AttentionWeights:
    value = None if recorded.value is None else recorded.value[None]
    call = recorded.layer.call(recorded.query[None], recorded.key[None], value)
    weights = AttentionWeights(call, recorded.lse[None], check_mutation=False)
    return weights if heads is None else weights.part(heads=list(heads))


def _name(model: str, layers: Sequence[int], heads: Sequence[int] | None) -> str:
    parts = [model]
    if list(layers) != list(range(len(layers))):
        parts.append(f"layers {format_indices(layers)}")
    if heads is not None:
        parts.append(f"heads {format_indices(heads)}")
    return ", ".join(parts)
