"""`Vocabulary`: text to tokens and back, by the `tokenizers` library: subwords of both languages, or whole words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer

from clearhead._utils.files import write_text

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
LONGEST = 16  # characters of a subword


class Vocabulary:
    """Tokens by number. The first four are padding, start, end, and what was never seen."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # "</s>" in a text is text, and ends nothing

    @classmethod
    def of_subwords(cls, texts: Iterable[str], size: int) -> Vocabulary:
        """Byte-pair encoding learned from texts of both languages. Spaces go along with the word after them."""
        tokenizer = Tokenizer(BPE(unk_token=SPECIAL[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(prepend_scheme="never"),
                pre_tokenizers.Split(Regex(r"\p{P}"), "isolated"),
                pre_tokenizers.Digits(individual_digits=True),
            ]
        )  # pyright: ignore[reportAttributeAccessIssue]
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")  # pyright: ignore[reportAttributeAccessIssue]
        trainer = BpeTrainer(
            vocab_size=size, special_tokens=list(SPECIAL), show_progress=False, max_token_length=LONGEST
        )
        tokenizer.train_from_iterator(map(_spaced, texts), trainer)
        return cls(tokenizer)

    @classmethod
    def of_words(cls, words: Iterable[str]) -> Vocabulary:
        """A closed vocabulary of words; punctuation marks are words."""
        numbers = {word: number for number, word in enumerate((*SPECIAL, *words))}
        tokenizer = Tokenizer(WordLevel(numbers, unk_token=SPECIAL[UNKNOWN]))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
        return cls(tokenizer)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Numbers of a text's tokens, and the end."""
        return [*self._tokenizer.encode(self._prepared(text)).ids, END]

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """The same for many, on all cores."""
        return [[*found.ids, END] for found in self._tokenizer.encode_batch(list(map(self._prepared, texts)))]

    def decode(self, numbers: Iterable[int]) -> str:
        """The text; special tokens are left out."""
        return self._tokenizer.decode([number for number in numbers if number > UNKNOWN]).strip()

    def pieces(self, numbers: Iterable[int]) -> list[str]:
        """Each token as it stands in the text, a space before it included."""
        return [(self._tokenizer.id_to_token(number) or "").replace("▁", " ") for number in numbers]

    def words_of(self, numbers: Sequence[int]) -> Iterator[int | None]:
        """Which word each token is a part of; None for special tokens. A punctuation mark is a word."""
        word, alone, begun = -1, True, False  # begun: by a space that is a token of its own
        whole_words = isinstance(self._tokenizer.model, WordLevel)
        for number, piece in zip(numbers, self.pieces(numbers), strict=True):
            if number not in (PAD, START, END):
                mark = not piece.isspace() and not any(map(str.isalnum, piece))
                word += not begun and (whole_words or alone or mark or piece.startswith(" "))
                alone, begun = mark, piece.isspace()
            yield word if number > UNKNOWN else None

    def unknown(self, text: str) -> list[str]:
        """What of a text was never seen, and is read as <unk>: words or characters, each once."""
        found = self._tokenizer.encode(prepared := self._prepared(text))
        pieces = (
            prepared[start:end]
            for number, (start, end) in zip(found.ids, found.offsets, strict=True)
            if number == UNKNOWN
        )
        return list(dict.fromkeys(pieces))

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, self._tokenizer.to_str(pretty=True))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{path}: not a tokenizer ({error})") from None

    def _prepared(self, text: str) -> str:
        return text if isinstance(self._tokenizer.model, WordLevel) else _spaced(text)


def _spaced(text: str) -> str:
    """A space before a first word that has others after spaces, so that it is the same token wherever it stands.

    Languages that are written without spaces have no such words.
    """
    return f" {text}" if text and text[0].isascii() else text
