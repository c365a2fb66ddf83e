"""Protocols of models that can be recorded, viewed and analyzed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from clearhead.recording.recording import Recording


@runtime_checkable
class RecordableModel(Protocol):
    """Model with its tokenizer that runs on a text and returns its attention."""

    @property
    def name(self) -> str:
        """Name of the model in recordings and tables."""
        ...

    @property
    def layer_count(self) -> int:
        """Number of layers of the deepest stack."""
        ...

    @property
    def default_text(self) -> str:
        """Default text of `clearhead view` and `clearhead record`."""
        ...

    @property
    def max_interactive_tokens(self) -> int:
        """Number of tokens of the longest text that takes at most seconds."""
        ...

    def token_count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        ...

    def record(self, text: str | Sequence[str], *, target: str | None = None, values: bool = False) -> Recording:
        """Run the model on a text and return its attention.

        Args:
            text: a string, or a list of its words.
            target: output of an encoder–decoder (default: its greedy output).
            values: record the values too, and queries and keys even if the scores take less memory.
        """
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters, which distinguish two models of the same name."""
        ...


@runtime_checkable
class RecordsRepeatedTokens(Protocol):
    """Optional capability of a model: recording a repeated random sequence, which reveals induction heads."""

    def record_repeated(self, length: int = 64, *, seed: int = 0) -> Recording:
        """Record a random sequence of `length` tokens, repeated once."""
        ...


@runtime_checkable
class RecordsTokenIds(Protocol):
    """Optional capability of a model: recording token ids instead of a text."""

    def record_ids(
        self, input_ids: object, *, decoder_input_ids: object = None, target: str | None = None, values: bool = False
    ) -> Recording:
        """Record one sequence of token ids, and for an encoder–decoder the ids or the text of the decoder."""
        ...
