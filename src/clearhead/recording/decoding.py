"""Texts of token ids, from a tokenizer of transformers or without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clearhead.recording.recording import Tokens


def token_text(tokenizer: Any, token: int) -> str:
    """Return the text of one token; its id without a tokenizer."""
    return str(token) if tokenizer is None else tokenizer.decode([token], clean_up_tokenization_spaces=False)


def make_tokens(tokenizer: Any, ids: Sequence[int], words: Sequence[int | None], special: Sequence[bool]) -> Tokens:
    """Return tokens with their texts. Each distinct id is decoded once."""
    texts = {token: token_text(tokenizer, token) for token in set(ids)}
    return Tokens(tuple(texts[token] for token in ids), tuple(special), tuple(words))


def decoded(tokenizer: Any, ids: Sequence[int]) -> Tokens:
    """Return the tokens of ids that do not come from a text, so their words are unknown.

    The unknown token is not special, because it replaces a word.
    """
    special_ids = set() if tokenizer is None else set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return make_tokens(tokenizer, ids, [None] * len(ids), [token in special_ids for token in ids])
