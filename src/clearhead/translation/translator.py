"""Translator: a trained model with its vocabulary, bundled or loaded from a run directory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import overload

import torch
from torch import nn

from clearhead._utils.bounded_reads import BEAM_LIMIT, SENTENCE_LIMIT
from clearhead._utils.checks import check_bool, check_int, describe
from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from clearhead.recording.names import model_name
from clearhead.recording.next_tokens import TopTokens
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.translation._decoding import decode_all
from clearhead.translation.config import Config
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.tokenizer import END, START, UNKNOWN, Vocabulary
from clearhead.watching.output_projections import find_projection, with_projections

BUNDLED_MODELS = ("en-ja",)
SENTENCES_PER_BATCH = 256


class Translator:
    """Trained translation model with its vocabulary. It implements `RecordableModel`.

    Examples:
        >>> from clearhead.translation import Translator
        >>> translator = Translator.load()
        >>> translator.translate("I read a book in the library yesterday.")  # doctest: +SKIP
        '私は昨日図書館で本を読んだ。'
    """

    max_interactive_tokens = 256

    def __init__(self, name: str, model: Transformer, vocabulary: Vocabulary, config: Config) -> None:
        self.name, self.model, self.vocabulary, self.config = name, model, vocabulary, config

    @classmethod
    def load(
        cls, name: str | os.PathLike[str] = BUNDLED_MODELS[0], *, device: torch.device | str = "cpu"
    ) -> Translator:
        """Load the bundled model by name, or a model from a run directory.

        Args:
            name: "en-ja", or the path of a folder that `train` wrote.
            device: device of the model.
        """
        bundled = str(name) in BUNDLED_MODELS
        folder = Path(str(resources.files("clearhead.translation") / str(name))) if bundled else Path(name)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{name}: there is no such folder; expected a folder that `clearhead train` wrote,"
                f" or {', '.join(BUNDLED_MODELS)}"
            )
        run = RunDirectory(folder)
        config, _ = run.read()
        title = str(name) if bundled else model_name(os.path.abspath(folder), "translator")
        translator = cls(title, run.model(device), run.vocabulary(), config)
        if not bundled:
            run.warn_without_identity()
        return translator

    @property
    def layer_count(self) -> int:
        """Number of layers of the deeper stack."""
        return max(len(self.model.encoder), len(self.model.decoder))

    @property
    def default_text(self) -> str:
        """Example sentence."""
        return EXAMPLE_SENTENCE

    def token_count(self, text: str) -> int:
        """Return the number of tokens of a text, including the end token."""
        return len(self.vocabulary.encode(self.config.text.source(text)))

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of the model."""
        return self.model.parameters()

    @overload
    def translate(self, text: str, *, beams: int = ...) -> str: ...
    @overload
    def translate(self, text: list[str] | tuple[str, ...], *, beams: int = ...) -> list[str]: ...
    def translate(self, text: str | list[str] | tuple[str, ...], *, beams: int = 4) -> str | list[str]:
        """Translate a sentence or a list of sentences. An empty sentence gives an empty translation.

        Warns about characters that did not occur in the training data, and about sentences that are too long.

        Args:
            text: a sentence, or a list of sentences.
            beams: number of beams; 1 is greedy search.
        """
        if not isinstance(text, str | list | tuple):
            raise TypeError(f"text is {text!r}; expected a string or a list of strings")
        if isinstance(text, str):
            return next(self.stream([text], beams=beams))
        return list(self.stream(text, beams=beams))

    def stream(self, texts: Sequence[str], *, beams: int = 4) -> Iterator[str]:
        """Yield the translations of sentences in order. Sentences are translated in batches of 256."""
        if check_int("beams", beams) > BEAM_LIMIT.value:
            raise BEAM_LIMIT.exceeded(f"beams is {beams}")
        for start in range(0, len(texts), SENTENCES_PER_BATCH):
            indices = range(start, min(start + SENTENCES_PER_BATCH, len(texts)))
            sources = {index: self._encode_source(texts[index], index, len(texts)) for index in indices}
            not_empty = [index for index, source in sources.items() if len(source) > 1]
            decoded = decode_all(self.model, [sources[index] for index in not_empty], beams=beams)
            hypotheses = dict(zip(not_empty, decoded, strict=True))
            for index in indices:
                if index not in hypotheses:
                    yield ""
                    continue
                hypothesis = hypotheses[index]
                if not hypothesis.ended:
                    location, count = _location(index, len(texts)), len(hypothesis.tokens)
                    warnings.warn(f"{location}: translation cut after {count} tokens", stacklevel=2)
                yield self.vocabulary.decode(hypothesis.tokens)

    def record(self, text: str | Sequence[str], *, target: str | None = None, values: bool = False) -> Recording:
        """Record encoder, decoder and cross-attention while the model translates a text.

        The query of a row of "decoder" and "cross" is an input token of the decoder: the row predicts the next token,
        which `Stack.written` has. The last row predicts the end token.

        Args:
            text: a string, or a list of its words, whose tokens then get the indices of these words.
            target: translation to use instead of the model's.
            values: also keep query, key and value, to compute the contribution of each key to the output.
        """
        if not isinstance(text, str | Sequence):
            raise TypeError(f"text is {describe(text)}; expected a string or a list of words")
        if target is not None and not isinstance(target, str):
            raise TypeError(f"target is {describe(target)}; expected a string or None")
        check_bool("values", values)
        if isinstance(text, str):
            source = self._encode_source(text, 0, 1)
            words = list(self.vocabulary.word_indices(source))
        else:
            word_tokens = [self._encode_source(word, 0, 1)[:-1] for word in text]
            source = [token_id for token_ids in word_tokens for token_id in token_ids] + [END]
            words = [index for index, token_ids in enumerate(word_tokens) for _ in token_ids] + [None]
        if len(source) == 1:
            raise ValueError("text has no tokens; expected at least one")
        if target is None:
            translation = list(decode_all(self.model, [source], beams=4)[0].tokens)
        else:
            translation = self.vocabulary.encode(self.config.text.target(target))[:-1]
        device = self.model.embedding.weight.device
        decoder_input = [START, *translation]
        with torch.no_grad():
            logits, attentions = self.model(
                torch.tensor([source], device=device),
                torch.tensor([decoder_input], device=device),
                return_weights="keep_qk" if values else True,
            )
        read, source_tokens = self._numbered_tokens(decoder_input), self._tokens(source, words)
        written = self._numbered_tokens([*translation, END])
        sides = {
            "encoder": (source_tokens, source_tokens, None),
            "decoder": (read, read, written),
            "cross": (read, source_tokens, written),
        }
        stacks = {}
        for name, (queries, keys, next_tokens) in sides.items():
            layers = tuple(weights if values else weights.without_values() for weights in attentions[name])
            stacks[name] = self._with_projections(name, Stack(layers, queries, keys, next_tokens))
        return Recording(
            self.name,
            stacks,
            input=text if isinstance(text, str) else " ".join(text),
            output=self.vocabulary.decode(translation),
            next_tokens=TopTokens.of(logits[0]).named(lambda token_id: self._texts([token_id])[0]),
        )

    def _with_projections(self, name: str, stack: Stack) -> Stack:
        side, attention = ("decoder", "cross") if name == "cross" else (name, "attention")
        modules = [f"{side}.{layer}.{attention}" for layer in range(len(stack.layers))]
        return with_projections(stack, [find_projection(self.model, module) for module in modules])

    def _encode_source(self, text: str, index: int, count: int) -> list[int]:
        """Return the token ids of a text, with the end token. Warn about unknown characters and long texts.

        Args:
            index: index of the text among `count` texts, for messages.
        """
        if not isinstance(text, str):
            raise TypeError(f"text is {text!r}; expected a string")
        text = self.config.text.source(text)
        source = self.vocabulary.encode(text)
        if UNKNOWN in source:
            unknown = ", ".join(map(repr, self.vocabulary.unknown(text)))
            warnings.warn(f"{_location(index, count)}: never seen in training: {unknown}", stacklevel=3)
        if len(source) > SENTENCE_LIMIT.value:
            raise SENTENCE_LIMIT.exceeded(f"{_location(index, count)} has {len(source):,} tokens")
        if len(source) > self.config.text.max_tokens:
            warnings.warn(
                f"{_location(index, count)}: {len(source)} tokens, but the model was trained on at most"
                f" {self.config.text.max_tokens}; the translation will be poor",
                stacklevel=3,
            )
        return source

    def _tokens(self, token_ids: list[int], words: list[int | None]) -> Tokens:
        special = tuple(token_id in (START, END) for token_id in token_ids)
        return Tokens(self._texts(token_ids), special, tuple(words))

    def _numbered_tokens(self, token_ids: list[int]) -> Tokens:
        return self._tokens(token_ids, list(self.vocabulary.word_indices(token_ids)))

    def _texts(self, token_ids: list[int]) -> tuple[str, ...]:
        return tuple(piece.strip() or piece for piece in self.vocabulary.pieces(token_ids))


def _location(index: int, count: int) -> str:
    return "text" if count == 1 else f"line {index + 1}"
