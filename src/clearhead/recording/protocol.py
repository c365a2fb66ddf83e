"""Protocols that a model fulfils so that it can be recorded, viewed and analyzed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from clearhead.recording.recording import Recording


@runtime_checkable
class RecordableModel(Protocol):
    """A model with its tokenizer that runs on a text and returns its attention."""

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
        """Text to show the model on (default of `clearhead view` and `clearhead record`)."""
        ...

    @property
    def max_interactive_tokens(self) -> int:
        """Length, in tokens, of the longest text that takes seconds at most."""
        ...

    def token_count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        ...

    def record(self, text: str | Sequence[str], *, target: str | None = None, values: bool = False) -> Recording:
        """Run the model on a text, or on its words, and return its attention.

        Args:
            target: text that an encoder–decoder writes (default: what it writes greedily).
            values: keep the values too, and always queries and keys.
        """
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters, by which two models of one name are told apart."""
        ...


@runtime_checkable
class RecordsRepeatedTokens(Protocol):
    """Optional capability of a model: running on random tokens, which show induction heads."""

    def record_repeated(self, length: int = 64, *, seed: int = 0) -> Recording:
        """Record `length` random tokens, twice in a row."""
        ...
