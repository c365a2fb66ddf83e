"""Tokens of the queries and keys of a recording's stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clearhead._utils.checks import describe
from clearhead.recording.recording import Tokens

TokensLike = Tokens | Sequence[str]
TokensOfStacks = TokensLike | Mapping[str, TokensLike | tuple[TokensLike, TokensLike]] | None


class Sequences(NamedTuple):
    """Sequences that the queries and keys of a stack are tokens of.

    Attributes:
        q_len: number of queries.
        start: position of the first query in its sequence.
        query_length: length of the sequence of the queries.
        kv_len: number of keys, which are a whole sequence.
        crosses: whether they are different sequences.
    """

    q_len: int
    start: int
    query_length: int
    kv_len: int
    crosses: bool


class StackTokens:
    """Tokens of each stack, from the argument of `Seen.recording`."""

    def __init__(self, tokens: TokensOfStacks, stacks: Mapping[str, Sequences], *, several_texts: bool) -> None:
        """Check the tokens.

        Args:
            tokens: the argument.
            stacks: sequences of each stack.
            several_texts: whether stacks belong to different texts, so that one list cannot name the tokens of all.
        """
        self._stacks = stacks
        self._shared: Tokens | None = None
        self._by_stack: dict[str, tuple[Tokens, Tokens]] = {}
        if isinstance(tokens, Mapping):
            for name, entry in tokens.items():
                if name not in stacks:
                    raise ValueError(f"tokens has {name!r}; expected stacks {', '.join(map(repr, stacks))}")
                self._by_stack[name] = _tokens_of_stack(name, entry, stacks[name])
        elif tokens is not None:
            self._shared = _tokens(tokens)
            _check_shared(len(self._shared), stacks, several_texts)

    def of_stack(self, name: str) -> tuple[Tokens, Tokens]:
        """Return the tokens of queries and keys. Positions without tokens are numbered."""
        if name in self._by_stack:
            return self._by_stack[name]
        sequences, shared = self._stacks[name], self._shared
        length = None if shared is None else len(shared)
        queries = _positions(sequences.start, sequences.q_len)
        if shared is not None and length == sequences.query_length:
            queries = _queries_of(shared, sequences)
        keys = shared if shared is not None and length == sequences.kv_len else _positions(0, sequences.kv_len)
        return queries, keys


def _check_shared(length: int, stacks: Mapping[str, Sequences], several_texts: bool) -> None:
    """Raise unless it is certain which positions a list of tokens belongs to."""
    lengths = {length for sequences in stacks.values() for length in (sequences.query_length, sequences.kv_len)}
    if length not in lengths:
        expected = " or ".join(map(str, sorted(lengths)))
        raise ValueError(f"tokens has {length} entries; expected one for each position: {expected}")
    expected = f"expected a dict of lists by stack: {', '.join(map(repr, stacks))}"
    if several_texts:
        raise ValueError(f"tokens is one list, but the calls are those of several texts; {expected}")
    for name, sequences in stacks.items():
        if sequences.crosses and sequences.query_length == sequences.kv_len == length:
            raise ValueError(
                f"tokens is one list of {length}, but {name!r} attends from one sequence of that length to another;"
                f" {expected}, with a pair (tokens of the queries, tokens of the keys) for {name!r}"
            )
    fitting = [name for name, sequences in stacks.items() if not sequences.crosses and sequences.kv_len == length]
    if all(any(side in name.split(".") for name in fitting) for side in ("encoder", "decoder")):
        raise ValueError(f"tokens is one list of {length}, but encoder and decoder both have that length; {expected}")


def _tokens_of_stack(name: str, entry: object, sequences: Sequences) -> tuple[Tokens, Tokens]:
    if isinstance(entry, tuple) and len(entry) == 2 and not all(isinstance(part, str) for part in entry):
        queries, keys = map(_tokens, entry)
        return (queries if len(queries) == sequences.q_len else _queries_of(queries, sequences)), keys
    keys = _tokens(entry)
    if sequences.crosses:
        raise ValueError(
            f"tokens[{name!r}] is one list; expected a pair (tokens of the queries, tokens of the keys), because they"
            " are different sequences"
        )
    if len(keys) != sequences.kv_len:
        raise ValueError(f"tokens[{name!r}] has {len(keys)} entries; expected {sequences.kv_len}, one for each key")
    return _queries_of(keys, sequences), keys


def _queries_of(tokens: Tokens, sequences: Sequences) -> Tokens:
    """Return the tokens of the queries from those of their whole sequence."""
    start, end = sequences.start, sequences.start + sequences.q_len
    if len(tokens) != sequences.query_length:
        expected = " or ".join(map(str, sorted({sequences.q_len, sequences.query_length})))
        raise ValueError(f"tokens has {len(tokens)} entries for the queries; expected {expected}")
    if not 0 <= start <= end <= len(tokens):
        return _positions(start, sequences.q_len)
    return tokens.part(start, end)


def _positions(start: int, count: int) -> Tokens:
    return _tokens([str(position) for position in range(start, start + count)])


def _tokens(texts: object) -> Tokens:
    if isinstance(texts, Tokens):
        return texts
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(f"tokens is {describe(texts)}; expected a list with the text of each token")
    return Tokens(tuple(texts), (False,) * len(texts), (None,) * len(texts))
