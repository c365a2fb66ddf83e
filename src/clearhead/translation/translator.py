"""`Translator`: a trained model with its tokens, from a run's folder or as bundled; `translate` and `record`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib import resources
from pathlib import Path
from typing import overload

import torch

from clearhead._utils.bounded_reads import BEAM_LIMIT, SENTENCE_LIMIT
from clearhead._utils.checks import check_int
from clearhead.functional import keeping_vectors
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.translation._evaluation import write_all
from clearhead.translation.config import Config
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.tokenizer import END, START, UNKNOWN, Vocabulary

BUNDLED = ("en-ja",)
TOGETHER = 256  # sentences translated at a time


class Translator:
    """A model that translates.

    >>> from clearhead.translation import Translator
    >>> translator = Translator.load()
    >>> translator.translate("I read a book in the library yesterday.")  # doctest: +SKIP
    '私は昨日図書館で本を読んだ。'
    """

    def __init__(self, name: str, model: Transformer, vocabulary: Vocabulary, config: Config) -> None:
        self.name, self.model, self.vocabulary, self.config = name, model, vocabulary, config

    @classmethod
    def load(cls, name: str | os.PathLike[str] = BUNDLED[0], *, device: torch.device | str = "cpu") -> Translator:
        """The bundled model by its name, or a run by its folder."""
        bundled = str(name) in BUNDLED
        folder = Path(str(resources.files("clearhead.translation") / str(name))) if bundled else Path(name)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{name}: there is no such folder; expected one that `clearhead train` wrote, or {', '.join(BUNDLED)}"
            )
        run = RunDirectory(folder)
        config, _ = run.read()
        return cls(folder.name, run.model(device), run.vocabulary(), config)

    @overload
    def translate(self, text: str, *, beams: int = ...) -> str: ...
    @overload
    def translate(self, text: list[str] | tuple[str, ...], *, beams: int = ...) -> list[str]: ...
    def translate(self, text: str | list[str] | tuple[str, ...], *, beams: int = 4) -> str | list[str]:
        """A sentence, or many at once; an empty one stays empty. What the model cannot read well is warned of.

        Args:
            beams: how many beginnings are followed at once; 1 is greedy.
        """
        if not isinstance(text, str | list | tuple):
            raise TypeError(f"text is {text!r}; expected a string, or a list of them")
        if isinstance(text, str):
            return next(self.stream([text], beams=beams))
        return list(self.stream(text, beams=beams))

    def stream(self, texts: Sequence[str], *, beams: int = 4) -> Iterator[str]:
        """Translations one after the other, as they are done: some hundred sentences at a time."""
        if check_int("beams", beams) > BEAM_LIMIT.value:
            raise BEAM_LIMIT.exceeded(f"beams is {beams}")
        for start in range(0, len(texts), TOGETHER):
            numbers = range(start, min(start + TOGETHER, len(texts)))
            sources = {number: self._read(texts[number], number, len(texts)) for number in numbers}
            filled = [number for number, source in sources.items() if len(source) > 1]
            written = write_all(self.model, [sources[number] for number in filled], beams=beams)
            found = dict(zip(filled, written, strict=True))
            for number in numbers:
                if number not in found:
                    yield ""
                    continue
                if not found[number].ended:
                    where, count = _where(number, len(texts)), len(found[number].tokens)
                    warnings.warn(f"{where}: cut after {count} tokens", stacklevel=2)
                yield self.vocabulary.decode(found[number].tokens)

    def record(self, text: str | Sequence[str], *, target: str | None = None, values: bool = False) -> Recording:
        """The attention of encoder, decoder and between them, while the model writes its translation or `target`.

        A row of "decoder" and "cross" stands for the token that was read last; it is what the next one follows from.

        Args:
            text: a string, or its words, which are then read and numbered one by one.
            values: keep the values too, for each key's contribution to the output, and queries and keys in any case.
        """
        if isinstance(text, str):
            source = self._read(text, 0, 1)
            words = list(self.vocabulary.words_of(source))
        else:
            parts = [self._read(word, 0, 1)[:-1] for word in text]
            source = [number for part in parts for number in part] + [END]
            words = [place for place, part in enumerate(parts) for _ in part] + [None]
        if len(source) == 1:
            raise ValueError("text has no tokens; expected at least one")
        if target is None:
            written = list(write_all(self.model, [source], beams=4)[0].tokens)
        else:
            written = self.vocabulary.encode(self.config.text.target(target))[:-1]
        device = self.model.embedding.weight.device
        read = [START, *written]
        with torch.no_grad(), keeping_vectors() if values else nullcontext():
            _, attentions = self.model(
                torch.tensor([source], device=device), torch.tensor([read], device=device), return_weights=True
            )
        axes = {
            "source": self._tokens(source, words),
            "target": self._tokens(read, list(self.vocabulary.words_of(read))),
        }
        sides = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
        stacks = {}
        for name, (queries, keys) in sides.items():
            layers = tuple(own if values else own.without_values() for own in attentions[name])
            stacks[name] = Stack(layers, axes[queries], axes[keys])
        return Recording(self.name, stacks)

    def _read(self, text: str, number: int, count: int) -> list[int]:
        """Numbers of a text's tokens, with the end; what the model never met is said."""
        if not isinstance(text, str):
            raise TypeError(f"text is {text!r}; expected a string, or several")
        text = self.config.text.source(text)
        source = self.vocabulary.encode(text)
        if UNKNOWN in source:
            unknown = ", ".join(map(repr, self.vocabulary.unknown(text)))
            warnings.warn(f"{_where(number, count)}: never seen in training: {unknown}", stacklevel=3)
        if len(source) > SENTENCE_LIMIT.value:
            raise SENTENCE_LIMIT.exceeded(f"{_where(number, count)} has {len(source):,} tokens")
        if len(source) > self.config.text.max_tokens:
            warnings.warn(
                f"{_where(number, count)}: {len(source)} tokens, but the model was trained on at most"
                f" {self.config.text.max_tokens}; the translation will be poor",
                stacklevel=3,
            )
        return source

    def _tokens(self, numbers: list[int], words: list[int | None]) -> Tokens:
        pieces = [piece.strip() or piece for piece in self.vocabulary.pieces(numbers)]
        return Tokens(tuple(pieces), tuple(number in (START, END) for number in numbers), tuple(words))


def _where(number: int, count: int) -> str:
    return "text" if count == 1 else f"line {number + 1}"
