"""Decoding of translations: greedy search and beam search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead.recording.recording import Address
from clearhead.translation._cuda_graphs import captured_decoder
from clearhead.translation._searches import BeamSearch, GreedySearch, Hypothesis
from clearhead.translation.data._batching import TokenIds, batch_indices, pad_rows
from clearhead.translation.model import Memory, Transformer

EVALUATION_BATCH_TOKENS = 8192  # source and target tokens together
STEPS_PER_CHECK = 8  # steps of a CUDA graph between two checks for the end, each of which waits for the GPU


@torch.inference_mode()
def greedy(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    max_tokens: int = 128,
    ablate: Collection[Address] = (),
    graph: bool | None = None,
) -> list[Hypothesis]:
    """Translate a batch of sources, choosing the most probable next token at each step.

    Args:
        model: trained model.
        source: token ids, padded on the right.
        lengths: numbers of source tokens without padding (default: no padding).
        max_tokens: largest number of tokens of a translation.
        ablate: heads to leave out, as (stack, layer, head).
        graph: whether to run the steps as a CUDA graph. Default: if that is supported.
    """
    max_tokens = check_int("max_tokens", max_tokens)
    memory = model.encode(source, lengths, ablate=ablate)
    return _decode(model, memory, 1, max_tokens, 1.0, ablate, graph)


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Int[Tensor, "batch source"],
    lengths: Int[Tensor, " batch"] | None = None,
    *,
    beams: int = 4,
    max_tokens: int = 128,
    length_penalty: float = 1.0,
    graph: bool | None = None,
) -> list[Hypothesis]:
    """Translate a batch of sources by beam search; arguments as for `greedy`.

    Finished translations are compared by their log-probability divided by `length**length_penalty`. The search for
    a source stops when `beams` translations have ended, or when no unfinished one can score higher.
    """
    beams, max_tokens = check_int("beams", beams), check_int("max_tokens", max_tokens)
    memory = model.encode(source, lengths)
    return _decode(model, memory, beams, max_tokens, length_penalty, (), graph)


def decode_all(model: Transformer, sources: Sequence[list[int]], *, beams: int) -> list[Hypothesis]:
    """Translate sources in batches of similar length; return the translations in the order of the sources."""
    device = model.embedding.weight.device
    hypotheses: dict[int, Hypothesis] = {}
    pairs = [TokenIds(source, source) for source in sources]  # assumes translations as long as their sources
    for indices in batch_indices(pairs, EVALUATION_BATCH_TOKENS // check_int("beams", beams)):
        source, lengths = pad_rows([sources[index] for index in indices], device)
        max_tokens = 2 * source.shape[1] + 32
        decoded = beam_search(model, source, lengths, beams=beams, max_tokens=max_tokens)
        hypotheses.update(zip(indices, decoded, strict=True))
    return [hypotheses[index] for index in range(len(sources))]


def _decode(
    model: Transformer,
    memory: Memory,
    beams: int,
    max_tokens: int,
    length_penalty: float,
    ablate: Collection[Address],
    graph: bool | None,
) -> list[Hypothesis]:
    with captured_decoder(model, memory, beams, max_tokens, ablate, graph) as captured:
        if captured is not None:
            captured.decoder.load(model, memory, max_tokens, length_penalty)
            return run_search(captured.decoder.search, captured.step, max_tokens, STEPS_PER_CHECK)
    batch, device = memory.states.shape[0], memory.states.device
    if beams == 1:
        search = GreedySearch(batch, max_tokens, device)
    else:
        search = BeamSearch(batch, beams, max_tokens, device)
        memory = memory.select(torch.arange(batch, device=device).repeat_interleave(beams))
    search.start(batch, max_tokens, length_penalty)
    caches = model.caches()

    def step() -> None:
        rows = search.advance(model.decode(search.last, memory, caches=caches, ablate=ablate)[:, -1])
        if rows is not None:
            caches.reorder(rows)

    return run_search(search, step, max_tokens, 1)


def run_search(
    search: GreedySearch | BeamSearch, step: Callable[[], None], max_tokens: int, steps_per_check: int
) -> list[Hypothesis]:
    """Run steps until the search is done; return the translations."""
    count = 0
    while count < max_tokens:
        step()
        count += 1
        if count % steps_per_check == 0 and search.is_done(count):
            break
    return search.hypotheses(count)
