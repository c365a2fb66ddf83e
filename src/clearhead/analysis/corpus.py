"""A model run on texts to see what its heads do: their statistics, and their roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from clearhead._utils.version import __version__
from clearhead.analysis.conllu import Sentence
from clearhead.analysis.relations import relation_scores
from clearhead.analysis.resumable import Job, Progress, run_jobs
from clearhead.analysis.roles import Roles, head_roles, roles_of
from clearhead.analysis.statistics import sum_statistics
from clearhead.analysis.summary import AttentionSummary, LayerSummary
from clearhead.distributed.process_group import ProcessGroup
from clearhead.models import HuggingFaceModel, prepare, record, record_repeated
from clearhead.recording.recording import Recording
from clearhead.translation.translator import Translator

REPEATS, REPEATED = 4, 64  # texts of random tokens, and how many tokens each repeats


def statistics(
    model: HuggingFaceModel | Translator | Recording,
    texts: Sequence[str] = (),
    *,
    process_group: ProcessGroup = ProcessGroup(),  # noqa: B008, never changed
    keep: Path | None = None,
    progress: Progress = lambda done, of: None,
) -> AttentionSummary:
    """Entropy, distance and largest weight of every head, over all queries of all texts; nothing else is kept.

    Of a recording: over the text that was recorded.

    Args:
        process_group, keep, progress: as `run_jobs` takes them, a job for each text.
    """
    if isinstance(model, Recording):
        return _seen(model)
    if isinstance(model, HuggingFaceModel):
        from clearhead.huggingface import watch  # noqa: F401, it says what to install before anything is read

    who = _identity(model)

    def job(text: str) -> Job:
        return Job(f"stats {who} {text}", lambda: _watched(model, text).tally(model.name))

    jobs = [job(text) for text in texts]
    return AttentionSummary.from_sums(run_jobs(jobs, process_group=process_group, keep=keep, progress=progress))


def _watched(model: HuggingFaceModel | Translator, text: str) -> AttentionSummary:
    if isinstance(model, Translator):
        return _seen(model.record(text))
    from clearhead.huggingface import watch

    prepared = prepare(model, text)  # an encoder–decoder writes here, which is not to be counted
    with torch.no_grad(), watch(model.model, entropy=True, distance=True, top=1, keep_calls=False) as seen:
        model.model(**prepared.inputs, use_cache=False)
    return seen


def _seen(recording: Recording) -> AttentionSummary:
    seen = AttentionSummary()
    for name, stack in recording.stacks.items():
        real = torch.ones(1, len(stack.queries), dtype=torch.bool)
        for number, weights in enumerate(stack.layers):
            layer = seen.layers.setdefault((name, number), LayerSummary())
            layer.add(weights.observe(entropy=True, distance=True, top=1), real.to(weights.device), keep=False)
    return seen


def _identity(model: HuggingFaceModel | Translator) -> str:
    """What a kept result must have come from: weights are told apart by their sums, not by a name alone."""
    sums = [f"{own.dtype} {float(own.detach().double().sum())!r}" for own in model.model.parameters()]
    return f"{__version__} {model.name} {' '.join(sums)}"


def roles(
    model: HuggingFaceModel | Translator | Recording,
    texts: Sequence[str] = (),
    *,
    sentences: Sequence[Sentence] = (),
    process_group: ProcessGroup = ProcessGroup(),  # noqa: B008, never changed
    keep: Path | None = None,
    progress: Progress = lambda done, of: None,
) -> Roles:
    """What kind of head each is: on ordinary texts, on random tokens repeated, and on sentences with their trees.

    Of a recording: what the text that was recorded shows.

    Args:
        process_group, keep: as `run_jobs` takes them, a job for each text; sentences are read by every process.
        progress: called with the number of sentences, or without any of texts, that are done, and the number of all.
    """
    if isinstance(model, Recording):
        if sentences:
            raise ValueError("sentences are given, but a recording is of its own text; expected a model to read them")
        return head_roles([model])

    def read() -> Iterator[Recording]:
        for number, sentence in enumerate(sentences):
            yield record(model, sentence.words)
            progress(number + 1, len(sentences))

    who = _identity(model)

    def job(name: str, recorded: Callable[[], Recording]) -> Job:
        return Job(f"roles {who} {name}", lambda: sum_statistics(recorded()))

    jobs = [job(text, partial(record, model, text)) for text in texts]
    if isinstance(model, HuggingFaceModel):  # a translator reads no random tokens
        jobs += [
            job(f"random tokens {seed}", partial(record_repeated, model, REPEATED, seed=seed))
            for seed in range(REPEATS)
        ]
    relations = relation_scores(read(), sentences) if sentences else None
    of_texts: Progress = (lambda done, of: None) if sentences else progress
    total = run_jobs(jobs, process_group=process_group, keep=keep, progress=of_texts)
    return roles_of(total, relations=relations)
