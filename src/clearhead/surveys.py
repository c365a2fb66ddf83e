"""A model run on texts to see what its heads do: their statistics, and their roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from clearhead.models import Loaded, prepare, record, record_repeated
from clearhead.recording import Recording
from clearhead.roles import Roles, head_roles
from clearhead.syntax import relation_scores
from clearhead.transformer.translate import Translator
from clearhead.treebank import Sentence
from clearhead.watched import Layer, Watched

REPEATS, REPEATED = 4, 64  # texts of random tokens, and how many tokens each repeats


def statistics(model: Loaded | Translator | Recording, texts: Iterable[str] = ()) -> Watched:
    """Entropy, distance and largest weight of every head, over all queries of all texts; nothing else is kept.

    Of a recording: over the text that was recorded.
    """
    if isinstance(model, Recording):
        return _recorded([model])
    if isinstance(model, Translator):
        return _recorded(model.record(text) for text in texts)
    from clearhead.huggingface import watch  # isort: skip, it says what to install where it is missing

    prepared = [prepare(model, text) for text in texts]  # an encoder–decoder writes here, which is not to be counted
    with torch.no_grad(), watch(model.model, entropy=True, distance=True, top=1, keep_calls=False) as seen:
        for text in prepared:
            model.model(**text.inputs, use_cache=False)
    return seen


def _recorded(recordings: Iterable[Recording]) -> Watched:
    seen = Watched()
    for recording in recordings:
        for name, stack in recording.stacks.items():
            real = torch.ones(1, len(stack.queries), dtype=torch.bool)
            for number, weights in enumerate(stack.layers):
                layer = seen.layers.setdefault((name, number), Layer())
                found = weights.observe(entropy=True, distance=True, top=1)
                layer.add(found, real.to(weights.device), keep=False)
    return seen


def roles(
    model: Loaded | Translator | Recording,
    texts: Iterable[str] = (),
    *,
    sentences: Sequence[Sentence] = (),
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Roles:
    """What kind of head each is: on ordinary texts, on random tokens repeated, and on sentences with their trees.

    Of a recording: what the text that was recorded shows.

    Args:
        progress: called with the number of sentences done and the number of all.
    """
    if isinstance(model, Recording):
        if sentences:
            raise ValueError("sentences are given, but a recording is of its own text; expected a model to read them")
        return head_roles([model])

    def read() -> Iterator[Recording]:
        for number, sentence in enumerate(sentences):
            yield record(model, sentence.words)
            progress(number + 1, len(sentences))

    def ordinary() -> Iterator[Recording]:
        yield from (record(model, text) for text in texts)
        if isinstance(model, Loaded):  # a translator reads no random tokens
            yield from (record_repeated(model, REPEATED, seed=seed) for seed in range(REPEATS))

    relations = relation_scores(read(), sentences) if sentences else None
    return head_roles(ordinary(), relations=relations)
