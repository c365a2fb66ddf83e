"""Vocabulary of subwords or whole words, based on the `tokenizers` library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead._utils.extras import needs_extra
from clearhead._utils.files import write_text
from clearhead._utils.text import one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
MAX_SUBWORD_LENGTH = 16  # characters
_FEATURE = "clearhead.translation"  # name in the error message if tokenizers is not installed


class Vocabulary:
    """Tokens and their ids. The first four tokens are padding, start, end and unknown."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        with needs_extra("translate", _FEATURE):
            from tokenizers.models import WordLevel

        self._tokenizer = tokenizer
        self._word_level = isinstance(tokenizer.model, WordLevel)
        tokenizer.encode_special_tokens = True  # encode "</s>" in a text as text, not as the end token

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Learn a byte-pair encoding of `size` subwords from texts of both languages.

        A space is part of the word after it.
        """
        with needs_extra("translate", _FEATURE):
            from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
            from tokenizers.models import BPE
            from tokenizers.trainers import BpeTrainer

        tokenizer = Tokenizer(BPE(unk_token=SPECIAL_TOKENS[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="never"),
                pre_tokenizers.Split(Regex(r"\p{P}"), "isolated"),
                pre_tokenizers.Digits(individual_digits=True),
            ]
        )  # pyright: ignore[reportAttributeAccessIssue]
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")  # pyright: ignore[reportAttributeAccessIssue]
        trainer = BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL_TOKENS),
            show_progress=False,
            max_token_length=MAX_SUBWORD_LENGTH,
        )
        tokenizer.train_from_iterator(map(_add_leading_space, texts), trainer)
        return cls(tokenizer)

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Vocabulary:
        """Return a fixed vocabulary of words. Punctuation marks are words."""
        with needs_extra("translate", _FEATURE):
            from tokenizers import Tokenizer, pre_tokenizers
            from tokenizers.models import WordLevel

        token_ids = {word: token_id for token_id, word in enumerate((*SPECIAL_TOKENS, *words))}
        tokenizer = Tokenizer(WordLevel(token_ids, unk_token=SPECIAL_TOKENS[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
        return cls(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with the end token."""
        return [*self._tokenizer.encode(self._preprocess(text)).ids, END]

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Encode many texts in parallel."""
        encodings = self._tokenizer.encode_batch(list(map(self._preprocess, texts)))
        return [[*encoding.ids, END] for encoding in encodings]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self._tokenizer.decode([token_id for token_id in token_ids if token_id > UNKNOWN]).strip()

    def pieces(self, token_ids: Iterable[int]) -> list[str]:
        """Return the text of each token, including a space before it."""
        return [(self._tokenizer.id_to_token(token_id) or "").replace("▁", " ") for token_id in token_ids]

    def word_indices(self, token_ids: Sequence[int]) -> Iterator[int | None]:
        """Yield the index of each token's word; None for special tokens. A punctuation mark is a word."""
        word, after_mark, after_space = -1, True, False
        for token_id, piece in zip(token_ids, self.pieces(token_ids), strict=True):
            if token_id not in (PAD, START, END):
                is_mark = not piece.isspace() and not any(map(str.isalnum, piece))
                # a space that is a separate token already counts as the start of the word
                word += not after_space and (self._word_level or after_mark or is_mark or piece.startswith(" "))
                after_mark, after_space = is_mark, piece.isspace()
            yield word if token_id > UNKNOWN else None

    def unknown(self, text: str) -> list[str]:
        """Return the words or characters of a text that are encoded as <unk>, each once."""
        encoding = self._tokenizer.encode(preprocessed := self._preprocess(text))
        pieces = (
            preprocessed[start:end]
            for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if token_id == UNKNOWN
        )
        return list(dict.fromkeys(pieces))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary to a JSON file."""
        write_text(path, self._tokenizer.to_str(pretty=True))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read a vocabulary from a JSON file. Raise ValueError if it is not a tokenizer."""
        with needs_extra("translate", _FEATURE):
            from tokenizers import Tokenizer

        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises Exception, not a subclass
            raise ValueError(f"{path}: not a tokenizer ({one_line(error)})") from None

    def _preprocess(self, text: str) -> str:
        return text if self._word_level else _add_leading_space(text)


def _add_leading_space(text: str) -> str:
    """Insert a space before the first word, so that a word is the same token at any position.

    Text that starts with a non-ASCII character does not change: most such scripts are written without spaces.
    """
    return f" {text}" if text and text[0].isascii() else text
