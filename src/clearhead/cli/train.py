"""Commands `train` and `translate`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead._utils.bounded_reads import numbered_lines, stdin_lines
from clearhead._utils.consoles import PlainConsole, console_for_output
from clearhead._utils.suffixes import TEXT_FORMATS, check_suffix
from clearhead._utils.text import printable
from clearhead.cli.errors import print_stderr
from clearhead.cli.inputs import STDIN, usable_device
from clearhead.cli.options import DeviceOption, Dtype, DtypeOption
from clearhead.cli.output import progress_bar, write

if TYPE_CHECKING:
    from clearhead.translation import Config, Dataset, RunDirectory, TrainingCallbacks, Translator

MAX_ROLE_SENTENCES = 100  # validation sentences for head roles, if the data has no relations


def train(
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|SOURCE,TARGET",
            help="Parallel text: a TSV file, or a source and a target file separated by a comma (.gz is supported)."
            " Repeatable. Default: sentences of the built-in grammar.",
        ),
    ] = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|SOURCE,TARGET", help="Parallel text for validation. Repeatable."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with model sizes and training settings.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --output.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With --resume, accept edited settings, changed files and checkpoints of another run."
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Number of training steps.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    film: Annotated[
        bool,
        typer.Option(
            "--film",
            help="Record every head's attention on one sentence at several steps; write film.json and film.html, a page"
            " that plays it. Built-in grammar only. A resumed run continues its film.",
        ),
    ] = False,
    film_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Sentence of the film, an English sentence of the grammar of at most 12 words; implies --film."
            ' Default: "did the old man wear a hat ?".',
        ),
    ] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.float32,
) -> None:
    """Train a Transformer to translate, and show which head finds which relation."""
    import torch

    from clearhead.distributed.process_group import is_main_process
    from clearhead.translation import RunDirectory
    from clearhead.translation import train as run_training

    run = RunDirectory(output, force=force)
    if force and not resume:
        raise ValueError("--force is given without --resume; it accepts changed files of the run to resume")
    if resume and (config is not None or steps is not None or seed is not None):
        raise ValueError(
            "--config, --steps and --seed cannot be combined with --resume, which uses the settings of the run"
        )
    if resume and (film or film_text is not None):
        raise ValueError("--film and --film-text cannot be combined with --resume, which continues the film of the run")
    sentence = _film_sentence(film, film_text, data or [])
    settings = run.read()[0] if resume else _read_config(config, steps, seed)
    torch_device = usable_device(device)
    dataset = _read_data(run, data or [], valid or [], settings, resume)
    with _signal_as_exit_code(), _training_callbacks(settings) as callbacks:
        for note in dataset.notes:
            callbacks.on_message(note)
        torch_dtype = getattr(torch, dtype.value)
        run_training(
            dataset,
            settings,
            run,
            device=torch_device,
            dtype=torch_dtype,
            resume=resume,
            callbacks=callbacks,
            film=sentence,
        )
    if is_main_process():
        _show_run(run, dataset)
        _show_film(run)


def translate(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help='Sentence to translate; "-" reads lines of standard input.')
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", help='File to translate line by line; "-" is standard input. Repeatable.'),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", help="The bundled model en-ja, or the folder of a training run.")
    ] = "en-ja",
    show: Annotated[bool, typer.Option("--show", help="Show which source words each target token attends to.")] = False,
    beams: Annotated[int, typer.Option(help="Beam size; 1 is greedy decoding.", min=1)] = 4,
    device: DeviceOption = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
) -> None:
    """Translate a sentence, or files line by line."""
    from clearhead.translation import Translator

    if text is None and not file:
        raise ValueError("TEXT is missing; expected a sentence to translate, or --file")
    if text is not None and file:
        raise ValueError("TEXT and --file are both given; expected one of them")
    if show and output is not None:
        raise ValueError("--output cannot be combined with --show, which prints to the terminal")
    if output is not None:
        check_suffix("--output", output, *TEXT_FORMATS)
    if text == STDIN:
        text, file = None, [Path(STDIN)]
    lines = [text] if text is not None else [line for path in file or () for line in _read_lines(path)]
    translator = Translator.load(model, device=usable_device(device))
    translations = []
    with progress_bar("lines", len(lines) if file else 0) as advance:
        for translation in translator.stream(lines, beams=beams):
            translations.append(translation)
            if output is None and not show:  # at once, so that an interrupt loses no finished translation
                typer.echo(printable(translation))
            advance(len(translations), len(lines))
    if show:
        _show_alignment(translator, lines, translations)
    elif output is not None:
        write("".join(f"{line}\n" for line in translations), output)


def _film_sentence(film: bool, text: str | None, data: list[str]) -> str | None:
    """Return the sentence of the film; None without --film and --film-text."""
    from clearhead.translation.data.grammar.annotate import annotate
    from clearhead.translation.heads import DEFAULT_FILM_TEXT

    if not film and text is None:
        return None
    if data:
        raise ValueError("--film cannot be combined with --data; only the built-in grammar has annotated relations")
    sentence = DEFAULT_FILM_TEXT if text is None else text
    annotate(sentence)  # raises now, before the data are read, if the grammar does not have the sentence
    return sentence


def _read_config(config: Path | None, steps: int | None, seed: int | None) -> Config:
    """Read the configuration file (default: the default configuration), and apply --steps and --seed."""
    from clearhead.translation import Config

    settings = Config() if config is None else Config.from_file(config)
    changes = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    return replace(settings, training=replace(settings.training, **changes))


def _read_data(run: RunDirectory, data: list[str], valid: list[str], config: Config, resume: bool) -> Dataset:
    """Read the files (default: generate sentences with the built-in grammar)."""
    from clearhead.translation import from_files, from_grammar

    if valid and not data:
        raise ValueError(
            "--valid is given without --data; expected both, because the built-in grammar has its own validation set"
        )
    if not data:
        return from_grammar(config)
    return from_files(data, valid, config, run.vocabulary() if resume else None)


@contextmanager
def _training_callbacks(config: Config) -> Iterator[TrainingCallbacks]:
    """Yield callbacks that print each validation on stderr and, on a terminal, show a progress bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from clearhead.distributed.process_group import is_main_process
    from clearhead.translation import TrainingCallbacks

    if not is_main_process():
        yield TrainingCallbacks()
        return
    console = PlainConsole(stderr=True)
    columns = (
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=config.training.steps, state="")

        def print_line(line: str) -> None:
            bar.console.print(line, soft_wrap=True)

        def step(done: int, total: int, loss: float, speed: float) -> None:
            bar.update(task, completed=done, state=f"loss {loss:.3f}, {speed:,.0f} tokens/s,")

        def measured(metrics: dict[str, Any]) -> None:
            validation = metrics["validation"]
            trained = f"loss {metrics['loss']:.3f}, " if "loss" in metrics else ""
            print_line(
                f"step {metrics['step']}: {trained}validation loss {validation['loss']:.3f},"
                f" {validation['exact']:.1%} exact, BLEU {validation['bleu']:.1f}"
            )

        yield TrainingCallbacks(print_line, step, measured)


@contextmanager
def _signal_as_exit_code() -> Iterator[None]:
    """Exit with 128 + the signal number if a signal stopped the training."""
    from clearhead.translation import TrainingStopped

    try:
        yield
    except TrainingStopped as stopped:
        raise typer.Exit(128 + stopped.signal) from None


def _read_lines(file: Path) -> list[str]:
    """Return the lines of a text file, or of standard input for "-"."""
    if str(file) != STDIN:
        return [line for _, line in numbered_lines(file)]
    return stdin_lines()


def _show_run(run: RunDirectory, data: Dataset) -> None:
    """Print which head finds which relation, and write a chart to the run's folder.

    Prints the roles of heads if the data has no relations.
    """
    from clearhead.cli.tables import print_ablation_effects, print_emergence, print_roles
    from clearhead.translation import Translator
    from clearhead.translation.heads import ablation_effect, measure_emergence, plot_emergence

    console = console_for_output()
    translator = Translator.load(run.folder)
    if not data.probe:
        from clearhead.analysis.roles import head_roles

        console.print()
        print_roles(
            console,
            head_roles(
                translator.record(pair.source, target=pair.target) for pair in data.references[:MAX_ROLE_SENTENCES]
            ),
        )
        return
    emergence = measure_emergence(run, data.probe)
    print_emergence(console, emergence)
    with progress_bar("heads", len(emergence.labels())) as advance:
        effects = []
        for index, address in enumerate(emergence.labels()):
            effects.append(ablation_effect(translator.model, translator.vocabulary, data.probe, address))
            advance(index + 1, len(emergence.labels()))
    print_ablation_effects(console, effects, emergence.labels())
    try:
        plot_emergence(emergence, run.folder / "heads.svg")
    except ImportError as error:
        print_stderr(f"clearhead: no chart: {error}")
    else:
        print_stderr(f"wrote {run.folder / 'heads.svg'}")


def _show_film(run: RunDirectory) -> None:
    """Write the page of the run's film, if the run has one."""
    from clearhead.translation.heads import read_film
    from clearhead.translation.run_directory import FILM_FILE, FILM_PAGE_FILE

    path = run.folder / FILM_PAGE_FILE
    if not (run.folder / FILM_FILE).exists():
        return
    try:
        from clearhead.explain.course.film_page import write_film_page
    except ImportError as error:
        print_stderr(f"clearhead: no page of the film: {error}")
    else:
        write_film_page(read_film(run), path)
        print_stderr(f"wrote {path}")


def _show_alignment(translator: Translator, lines: list[str], translations: list[str]) -> None:
    """Print each translation, followed by the source words that each of its tokens attends to."""
    from clearhead.cli.tables import print_alignment

    console = console_for_output()
    for line, translation in zip(lines, translations, strict=True):
        console.print(translation)
        if translation:
            with warnings.catch_warnings(action="ignore"):  # the translation has already shown them
                recording = translator.record(line, target=translation)
            heads = sum(weights.shape[1] for weights in recording["cross"].layers)
            console.print(f"attention of each token to the source words, mean of all {heads} cross heads:")
            print_alignment(console, recording)
