"""A model run on texts to see what its heads do: their statistics, and their roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from clearhead.huggingface.watching import Layer, Watched, watch
from clearhead.models import Loaded, prepare, record, record_repeated
from clearhead.recording import Recording
from clearhead.roles import Roles, head_roles
from clearhead.syntax import relation_scores
from clearhead.transformer.translate import Translator
from clearhead.treebank import Sentence

REPEATS, REPEATED = 4, 64  # texts of random tokens, and how many tokens each repeats
# What a model reads where no text is given: ordinary prose, longer than any fixed offset.
PASSAGE = (
    "When the ferry left the harbour, the rain had already stopped, and the old woman at the window folded her coat. "
    "She had promised her brother that she would not wait for him, but she was still looking back at the lighthouse. "
    "Behind her, two children were arguing quietly about the colour of the sea: one said that it was green, the other "
    "that it was never the same twice. The captain, who knew the passage better than anybody, was drinking cold tea.",
    "The first machines that could translate a sentence did it word by word. They looked each word up in a table, "
    "wrote down what they found, and left it to the reader to put the pieces in order. That works for a shopping list. "
    "It does not work for a question, for a joke, or for a language that keeps its verbs for the end.",
)


def statistics(model: Loaded | Translator, texts: Iterable[str]) -> Watched:
    """Entropy, distance and largest weight of every head, over all queries of all texts; nothing else is kept."""
    if isinstance(model, Translator):
        return _watched(model.record(text) for text in texts)
    prepared = [prepare(model, text) for text in texts]  # an encoder–decoder writes here, which is not to be counted
    with torch.no_grad(), watch(model.model, entropy=True, distance=True, top=1, keep_calls=False) as seen:
        for text in prepared:
            model.model(**text.inputs, use_cache=False)
    return seen


def _watched(recordings: Iterable[Recording]) -> Watched:
    seen = Watched([])
    for recording in recordings:
        for name, stack in recording.stacks.items():
            real = torch.ones(1, len(stack.queries), dtype=torch.bool)
            for number, weights in enumerate(stack.layers):
                layer = seen.layers.setdefault((name, number), Layer())
                found = weights.observe(entropy=True, distance=True, top=1)
                layer.add(found, real.to(weights.device), keep=False)
    return seen


def roles(
    model: Loaded | Translator,
    texts: Iterable[str],
    *,
    sentences: Sequence[Sentence] = (),
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Roles:
    """What kind of head each is: on ordinary texts, on random tokens repeated, and on sentences with their trees.

    Args:
        progress: called with the number of sentences done and the number of all.
    """

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
