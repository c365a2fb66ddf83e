"""Recordings of a watched model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from clearhead._utils.checks import check_int
from clearhead._utils.text import count_noun
from clearhead.recording.media import Media
from clearhead.recording.output_projection import OutputProjection
from clearhead.recording.recording import Recording, Stack
from clearhead.watching._stack_tokens import Sequences, StackTokens, TokensOfStacks
from clearhead.watching.joining import Run, split
from clearhead.watching.observed import KeptWeights
from clearhead.watching.output_projections import plain_projection, with_projections
from clearhead.watching.seen import Seen, Watched
from clearhead.weights.matrix import AttentionWeights


class _Matrix(NamedTuple):
    """Attention of one layer, with the sequences of its queries and keys."""

    layer: int
    run: int  # index of the run of calls
    is_joined: bool
    weights: AttentionWeights
    sequences: Sequences
    projection: OutputProjection | None


def recording_of(
    seen: Seen, tokens: TokensOfStacks = None, *, batch: int | None = None, media: Media | None = None
) -> Recording:
    """Return the attention of a watched model on one input; see `Seen.recording`."""
    seen.check_numbering()
    layers: dict[str, list[_Matrix]] = {}
    for watched, runs in _runs(seen, batch).items():
        stack, index = seen.address(watched)
        projection = plain_projection(watched.module)
        for position, run in enumerate(runs):
            sequences = _sequences(seen, watched, run, runs[0])
            matrix = _Matrix(index, position, run.is_joined, run.joined(), sequences, projection)
            layers.setdefault(stack, []).append(matrix)
    if not layers:
        raise ValueError(f"{seen.model}: no call was kept; expected at least one")
    stacks: dict[str, list[_Matrix]] = {}
    texts = max((max(matrix.run for matrix in group) + 1 for group in layers.values() if _has_joined(group)), default=1)
    for name, matrices in layers.items():
        stacks |= _titled(name, sorted(matrices, key=lambda matrix: matrix.layer), texts)
    sequences = {name: matrices[0].sequences for name, matrices in stacks.items()}
    axes = StackTokens(tokens, sequences, several_texts=texts > 1)
    return Recording(
        seen.model,
        {
            name: with_projections(
                Stack(tuple(matrix.weights for matrix in matrices), *axes.of_stack(name)),
                [matrix.projection for matrix in matrices],
            )
            for name, matrices in stacks.items()
        },
        media=media or Media(),
    )


def _runs(seen: Seen, batch: int | None) -> dict[Watched, list[Run]]:
    """Return the calls of each module as runs, for one sequence of the batch.

    The keys of cross-attention do not tell where a generation begins. Its runs are those of the self-attention that
    was called with as many queries.
    """
    calls = {watched: [_one_sequence(c.kept, batch, watched.name) for c in watched.calls] for watched in seen.values()}
    chosen = {watched: [call for call in each if call.weights().shape[2]] for watched, each in calls.items()}
    kept = {watched: each for watched, each in chosen.items() if each}
    if any(calls.values()) and not kept:
        raise ValueError(f"{seen.model}: queries= leaves out all queries of {count_noun(len(seen), 'module')}")
    by_reads: dict[tuple[int, ...], list[Run]] = {}
    runs: dict[Watched, list[Run]] = {}
    for watched in sorted(kept, key=lambda watched: _crosses(seen, watched)):
        reads = tuple(call.read for call in kept[watched])
        if not _crosses(seen, watched):
            runs[watched] = split(kept[watched])
            by_reads.setdefault(reads, runs[watched])
            continue
        partners = by_reads.get(reads, [])
        starts = [sum(len(run.calls) for run in partners[:index]) for index in range(len(partners))]
        runs[watched] = split(kept[watched], starts)
        if len(runs[watched]) == len(partners):
            for run, partner in zip(runs[watched], partners, strict=True):
                run.reader = partner
    return {watched: runs[watched] for watched in kept}


def _sequences(seen: Seen, watched: Watched, run: Run, first: Run) -> Sequences:
    """Return the sequences of the queries and keys of a run."""
    calls = run.calls
    q_len = sum(call.weights().shape[2] for call in calls)
    reads = sum(call.read for call in calls)
    crosses = _crosses(seen, watched) or run.crosses
    if not crosses and not run.is_joined:
        # one query and many keys may be a step with a KV cache, or a learned query that is not one of the tokens
        is_from_start = first.calls[0].read == first.calls[0].weights().shape[3]
        crosses = reads > run.kv_len or not (seen.is_known(watched) or is_from_start or first.is_joined)
    if not crosses:
        return Sequences(q_len, run.start, run.kv_len, run.kv_len, False)
    if run.reader is not None:
        return Sequences(q_len, run.reader.start, run.reader.kv_len, run.kv_len, True)
    return Sequences(q_len, calls[0].first_row, reads, run.kv_len, True)


def _crosses(seen: Seen, watched: Watched) -> bool:
    return watched.crosses or seen.address(watched)[0] == "cross"


def _has_joined(matrices: Sequence[_Matrix]) -> bool:
    return any(matrix.is_joined for matrix in matrices)


def _titled(name: str, matrices: Sequence[_Matrix], texts: int) -> dict[str, list[_Matrix]]:
    """Return stacks of matrices with equal sequences.

    Each generation has a stack. Other calls that could not be joined are layers of one stack.

    Args:
        name: name of the stack in the model.
        matrices: its matrices, by layer.
        texts: number of runs of the module that generated the most texts.
    """
    runs = 1 + max(matrix.run for matrix in matrices)
    by_text = runs > 1 and (_has_joined(matrices) or runs == texts)
    groups: dict[str, list[_Matrix]] = {}
    for matrix in matrices:
        title = f"{name}, run {matrix.run + 1}" if by_text else name
        groups.setdefault(title, []).append(matrix)
    stacks: dict[str, list[_Matrix]] = {}
    for group_title, group in groups.items():
        kinds = {matrix.sequences for matrix in group}
        sizes = {(kind.q_len, kind.kv_len) for kind in kinds}
        for matrix in group:
            kind = matrix.sequences
            size = "" if len(kinds) == 1 else f" {kind.q_len} × {kind.kv_len}"
            start = "" if len(kinds) == len(sizes) else f" from {kind.start}"
            stacks.setdefault(f"{group_title}{size}{start}", []).append(matrix)
    return stacks


def _one_sequence(call: KeptWeights, batch: int | None, name: str) -> KeptWeights:
    count = call.weights().shape[0]
    if batch is None and count > 1:
        raise ValueError(
            f"{name} ran on {count} sequences; choose one with seen.recording(batch=0), which report() and view()"
            " accept"
        )
    if batch is not None and check_int("batch", batch, least=0) >= count:
        raise ValueError(f"batch is {batch}; expected at most {count - 1}, because {name} ran on {count} sequences")
    return call if count == 1 else call.part(batch=batch)
