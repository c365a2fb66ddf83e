"""Statistics and roles of heads over many texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from clearhead._utils.version import __version__
from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.conllu import Sentence
from clearhead.analysis.relations import relation_scores
from clearhead.analysis.resumable import Job, ProgressCallback, run_jobs
from clearhead.analysis.roles import Roles, head_roles, roles_from_sums
from clearhead.analysis.spans import SpansOfStacks, StackSpansLike
from clearhead.analysis.statistics import sum_statistics
from clearhead.analysis.summary import AttentionSummary, summarize
from clearhead.distributed.process_group import ProcessGroup
from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens
from clearhead.recording.recording import Recording

REPEATED_RECORDINGS, REPEATED_TOKENS = 4, 64  # number of repeated random sequences, and tokens of each sequence


@runtime_checkable
class SummarizesWhileRunning(Protocol):
    """Optional capability of a model: computing statistics while it runs, without a recording."""

    def summarize(self, text: str, *, spans: StackSpansLike | None = None) -> AttentionSummary:
        """Run the model on a text and return entropy, distance and largest weight of every head.

        Args:
            text: the text.
            spans: spans of keys, whose mean attention is also returned, as in `summarize(recording, spans=…)`.
        """
        ...


def corpus_statistics(
    model: RecordableModel | Recording,
    texts: Sequence[str] = (),
    *,
    spans: StackSpansLike | None = None,
    process_group: ProcessGroup | None = None,
    results_folder: Path | None = None,
    progress: ProgressCallback | None = None,
) -> AttentionSummary:
    """Return entropy, distance and largest weight of every head, over all queries of all texts.

    Args:
        model: a model, or a recording (its text is used).
        texts: texts to run the model on, with one job each.
        spans: spans of keys, whose mean attention is also returned, as in `summarize`. They apply to every text.
        process_group: see `run_jobs`.
        results_folder: see `run_jobs`.
        progress: see `run_jobs`.
    """
    if isinstance(model, Recording):
        return summarize(model, spans=spans)
    chosen = None if spans is None else SpansOfStacks(spans)
    key = _cache_key(model) if chosen is None else f"{_cache_key(model)} {chosen!r}"

    def job(index: int, text: str) -> Job:
        return Job(f"stats {key} {text}", lambda: _sum_text(model, text, spans), f"text {index}")

    jobs = [job(index, text) for index, text in enumerate(texts)]
    total = run_jobs(jobs, process_group=process_group, results_folder=results_folder, progress=progress)
    names = {} if chosen is None else {stack: chosen.names_of(stack) for stack in total.heads}
    return AttentionSummary.from_sums(total, spans=names)


def _sum_text(model: RecordableModel, text: str, spans: StackSpansLike | None) -> HeadSums:
    if isinstance(model, SummarizesWhileRunning):
        summary = model.summarize(text) if spans is None else model.summarize(text, spans=spans)
    else:
        summary = summarize(model.record(text), spans=spans)
    for layer in summary:
        layer.warned = [layer.name]  # run_jobs warns of NaN and names the text
    return summary.to_sums(model.name)


def _cache_key(model: RecordableModel) -> str:
    """Return a key for stored results. Sums of the parameters distinguish models of the same name."""
    sums = [f"{parameter.dtype} {float(parameter.detach().double().sum())!r}" for parameter in model.parameters()]
    return f"{__version__} {model.name} {' '.join(sums)}"


def corpus_roles(
    model: RecordableModel | Recording,
    texts: Sequence[str] = (),
    *,
    sentences: Sequence[Sentence] = (),
    process_group: ProcessGroup | None = None,
    results_folder: Path | None = None,
    progress: ProgressCallback | None = None,
) -> Roles:
    """Return the role of each head, measured on texts, on repeated random sequences and on dependency trees.

    Args:
        model: a model, or a recording (its text is used).
        texts: texts to run the model on, with one job each.
        sentences: sentences with dependency trees, for labels of syntactic relations. Every process runs all of them.
        process_group: see `run_jobs`.
        results_folder: see `run_jobs`.
        progress: called with the number of sentences done and their total; without sentences, with numbers of jobs.
    """
    if isinstance(model, Recording):
        if sentences:
            raise ValueError("sentences is not empty, but model is a recording; expected a model")
        return head_roles([model])

    def record_sentences() -> Iterator[Recording]:
        for index, sentence in enumerate(sentences):
            yield model.record(sentence.words)
            if progress is not None:
                progress(index + 1, len(sentences))

    key = _cache_key(model)

    def job(name: str, make_recording: Callable[[], Recording], label: str) -> Job:
        return Job(f"roles {key} {name}", lambda: sum_statistics(make_recording()), label)

    jobs = [job(text, partial(model.record, text), f"text {index}") for index, text in enumerate(texts)]
    if isinstance(model, RecordsRepeatedTokens):
        jobs += [
            job(name := f"random tokens {seed}", partial(model.record_repeated, REPEATED_TOKENS, seed=seed), name)
            for seed in range(REPEATED_RECORDINGS)
        ]
    relations = relation_scores(record_sentences(), sentences) if sentences else None
    total = run_jobs(
        jobs, process_group=process_group, results_folder=results_folder, progress=None if sentences else progress
    )
    return roles_from_sums(total, relations=relations)
