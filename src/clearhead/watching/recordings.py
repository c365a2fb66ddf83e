"""Recordings of a watched model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clearhead._utils.checks import check_int, describe
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.watching.seen import Seen, Watched
from clearhead.weights.matrix import AttentionWeights

TokensLike = Tokens | Sequence[str]
TokensOfStacks = TokensLike | Mapping[str, TokensLike | tuple[TokensLike, TokensLike]] | None


def recording_of(seen: Seen, tokens: TokensOfStacks = None, *, batch: int | None = None) -> Recording:
    """Return the attention of a watched model on one input; see `Seen.recording`."""
    layers: dict[str, list[tuple[int, AttentionWeights]]] = {}
    for watched in seen.values():
        stack, index = seen.address(watched)
        for weights in _matrices(watched):
            layers.setdefault(stack, []).append((index, _one_sequence(weights, batch, watched.name)))
    stacks: dict[str, list[AttentionWeights]] = {}
    for name, matrices in layers.items():
        sizes = {tuple(weights.shape[2:]) for _, weights in matrices}
        for _, weights in sorted(matrices, key=lambda pair: pair[0]):
            _, _, q_len, kv_len = weights.shape
            title = name if len(sizes) == 1 else f"{name} {q_len} × {kv_len}"
            stacks.setdefault(title, []).append(weights)
    if not stacks:
        raise ValueError(f"{seen.model}: no call was kept; expected at least one")
    axes = _Axes(tokens, stacks)
    return Recording(
        seen.model,
        {
            name: Stack(tuple(matrices), *axes.of_stack(name, *matrices[0].shape[2:]))
            for name, matrices in stacks.items()
        },
    )


def _matrices(watched: Watched) -> list[AttentionWeights]:
    """Return the joined calls of a generation, or each call if they do not continue each other."""
    if len(watched.calls) > 1:
        try:
            return [watched.joined()]
        except ValueError:
            pass
    return [call.weights for call in watched.calls]


def _one_sequence(weights: AttentionWeights, batch: int | None, name: str) -> AttentionWeights:
    count = weights.shape[0]
    if batch is None and count > 1:
        raise ValueError(f"{name} ran on {count} sequences; pass batch=0 to record the first")
    if batch is not None and check_int("batch", batch, least=0) >= count:
        raise ValueError(f"batch is {batch}; expected at most {count - 1}, because {name} ran on {count} sequences")
    return weights if count == 1 else weights.part(batch=batch)


class _Axes:
    """Tokens of the axes of each stack."""

    def __init__(self, tokens: TokensOfStacks, stacks: Mapping[str, Sequence[AttentionWeights]]) -> None:
        lengths = {length for matrices in stacks.values() for length in matrices[0].shape[2:]}
        self._by_stack: dict[str, tuple[Tokens, Tokens]] = {}
        self._shared: Tokens | None = None
        if isinstance(tokens, Mapping):
            for name, axes in tokens.items():
                if name not in stacks:
                    raise ValueError(f"tokens has {name!r}; expected stacks {', '.join(map(repr, stacks))}")
                queries, keys = axes if isinstance(axes, tuple) and not _is_texts(axes) else (axes, axes)
                self._by_stack[name] = _tokens(queries), _tokens(keys)
        elif tokens is not None:
            self._shared = _tokens(tokens)
            if len(self._shared) not in lengths:
                expected = " or ".join(map(str, sorted(lengths)))
                raise ValueError(f"tokens has {len(self._shared)} entries; expected one for each position: {expected}")

    def of_stack(self, name: str, q_len: int, kv_len: int) -> tuple[Tokens, Tokens]:
        """Return the tokens of queries and keys. Positions without tokens are numbered."""
        if name in self._by_stack:
            return self._by_stack[name]
        return self._of_length(q_len), self._of_length(kv_len)

    def _of_length(self, length: int) -> Tokens:
        if self._shared is not None and len(self._shared) == length:
            return self._shared
        return _tokens([str(position) for position in range(length)])


def _is_texts(value: Sequence[object]) -> bool:
    return all(isinstance(entry, str) for entry in value)


def _tokens(texts: object) -> Tokens:
    if isinstance(texts, Tokens):
        return texts
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise TypeError(f"tokens is {describe(texts)}; expected a list with the text of each token")
    return Tokens(tuple(texts), (False,) * len(texts), (None,) * len(texts))
