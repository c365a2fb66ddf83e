"""Commands `stats` and `roles`, which analyze the heads of a model on texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead._utils.consoles import console_for_output
from clearhead._utils.files import resolve_target
from clearhead._utils.suffixes import check_suffix
from clearhead._utils.text import json_text, visible_text
from clearhead.cli.inputs import (
    InputOptions,
    chosen_layers,
    load_source,
    parse_spans,
    process_group_for,
    source_name,
)
from clearhead.cli.options import AnalysisOptions, takes_analysis_options
from clearhead.cli.output import progress_bar, results_folder, write

if TYPE_CHECKING:
    from clearhead.recording.protocol import RecordableModel
    from clearhead.recording.recording import Recording


@takes_analysis_options
def stats(
    options: AnalysisOptions,
    spans: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STACK:]NAME=START:END",
            help="Also show each head's mean attention on tokens START to END − 1, counted from 0 with special tokens,"
            " such as system=0:40. A model with several stacks needs one: decoder:image=0:16,"
            " or '*:image=0:16' for all. Repeatable.",
        ),
    ] = None,
) -> None:
    """Run a model on texts; show the mean entropy, distance and largest weight of each head.

    Under torchrun, the texts are split across ranks.
    """
    with process_group_for(options.device) as process_group:
        _check_output(options)
        named_spans = parse_spans(spans)
        source, texts = _load(options)
        from clearhead.analysis.corpus import corpus_statistics
        from clearhead.cli.tables import print_statistics

        layers = chosen_layers(options.layers, source)
        with progress_bar("texts", len(texts)) as advance, results_folder(options.output) as folder:
            summary = corpus_statistics(
                source,
                texts,
                spans=named_spans,
                process_group=process_group,
                results_folder=folder,
                progress=advance,
            )
            if not process_group.is_main:
                return
            columns = summary.to_dict()
            rows = [row for row, layer in enumerate(columns["layer"]) if layer in layers]
            columns = {name: [values[row] for row in rows] for name, values in columns.items()}
            name = source_name(source)
            if options.as_json or options.output is not None:
                write(json_text({"model": name, "heads": columns}, indent=1) + "\n", options.output)
            else:
                print_statistics(console_for_output(), columns, f"{visible_text(name)}: means over queries")


@takes_analysis_options
def roles(
    options: AnalysisOptions,
    treebank: Annotated[
        list[Path] | None,
        typer.Option(help="CoNLL-U file of sentences with dependency trees (.gz is supported). Repeatable."),
    ] = None,
    effects: Annotated[
        bool,
        typer.Option(
            "--effects",
            help="Also show the loss change of a language model without each labeled head, on the texts and on"
            " repeated random tokens. Runs the model once per head and text.",
        ),
    ] = False,
) -> None:
    """Run a model on texts; label each head by its role: previous token, sink, induction, syntactic and others.

    Under torchrun, the texts are split across ranks.
    """
    with process_group_for(options.device) as process_group:
        _check_output(options)
        from clearhead.analysis.conllu import read_conllu

        sentences = [sentence for path in treebank or () for sentence in read_conllu(path)]
        source, texts = _load(options, head=effects)
        from clearhead.cli.tables import print_roles
        from clearhead.models import head_roles

        layers = chosen_layers(options.layers, source)
        label, count = ("sentences", len(sentences)) if sentences else ("texts", len(texts))
        count = 0 if effects else count  # the progress bars of the heads would overlap
        with progress_bar(label, count) as advance, results_folder(options.output) as folder:
            result = head_roles(
                source,
                texts=texts,
                sentences=sentences,
                layers=layers,
                effects=effects,
                process_group=process_group,
                results_folder=folder,
                progress=advance,
            )
            if not process_group.is_main:
                return
            if options.as_json or options.output is not None:
                write(result.to_json() + "\n", options.output)
            else:
                print_roles(console_for_output(), result)


def _check_output(options: AnalysisOptions) -> None:
    """Raise now, before a model runs, if the output cannot be written as JSON."""
    if options.output is not None:
        check_suffix("--output", options.output, "json")
        resolve_target(options.output)


def _load(options: AnalysisOptions, *, head: bool = False) -> tuple[RecordableModel | Recording, list[str]]:
    chosen = InputOptions(options.image, options.device, options.dtype.value, options.download, options.audio)
    return load_source(options.text, options.file, options.model, chosen, head=head)
