"""What `train` and `translate` show in the terminal."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clearhead._utils.bounded_reads import numbered_lines, stdin_lines
from clearhead._utils.consoles import PlainConsole, console_for_output
from clearhead.cli.errors import say
from clearhead.cli.options import progress_bar

SHOWN = 100  # validation sentences that heads are judged by where no relations are known

if TYPE_CHECKING:
    from clearhead.translation import Config, Dataset, RunDirectory, TrainingCallbacks, Translator


def configured(config: Path | None, steps: int | None, seed: int | None) -> Config:
    """The file's configuration, or the default, with what the command line says besides."""
    from clearhead.translation import Config

    found = Config() if config is None else Config.from_file(config)
    said = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    return replace(found, training=replace(found.training, **said))


def data_for(run: RunDirectory, data: list[str], valid: list[str], config: Config, resume: bool) -> Dataset:
    """The files given, or the built-in grammar."""
    from clearhead.translation import from_files, from_grammar

    if valid and not data:
        raise ValueError("--valid was given without --data; the built-in grammar has a validation set of its own")
    if not data:
        return from_grammar(config)
    return from_files(data, valid, config, run.vocabulary() if resume else None)


@contextmanager
def training_report(config: Config) -> Iterator[TrainingCallbacks]:
    """A bar on a terminal's stderr with loss, speed and time left; a line for each validation anywhere."""
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

        def say(line: str) -> None:
            bar.console.print(line, soft_wrap=True)

        def step(done: int, of: int, loss: float, speed: float) -> None:
            bar.update(task, completed=done, state=f"loss {loss:.3f}, {speed:,.0f} tokens/s,")

        def measured(metrics: dict[str, Any]) -> None:
            found = metrics["validation"]
            trained = f"loss {metrics['loss']:.3f}, " if "loss" in metrics else ""
            say(
                f"step {metrics['step']}: {trained}validation loss {found['loss']:.3f},"
                f" {found['exact']:.1%} exact, BLEU {found['bleu']:.1f}"
            )

        yield TrainingCallbacks(say, step, measured)


@contextmanager
def signal_as_exit_code() -> Iterator[None]:
    """End the command with 128 + the number of the signal that has stopped the training."""
    from clearhead.translation import TrainingStopped

    try:
        yield
    except TrainingStopped as stopped:
        raise typer.Exit(128 + stopped.signal) from None


def lines_of(file: Path) -> list[str]:
    """Lines of a text file, or of standard input where it is called "-"."""
    if str(file) != "-":
        return [line for _, line in numbered_lines(file)]
    return stdin_lines()


def show_run(run: RunDirectory, data: Dataset) -> None:
    """Which head finds which relation, on stdout, and a chart in the run's folder; without relations, the roles."""
    from clearhead.cli.tables import print_damages, print_roles, print_specialised
    from clearhead.translation import Translator
    from clearhead.translation.heads import ablation_effect, measure_emergence, plot_emergence

    console = console_for_output()
    translator = Translator.load(run.folder)
    if not data.probe:
        from clearhead.analysis.roles import head_roles

        console.print()
        print_roles(
            console, head_roles(translator.record(pair.source, target=pair.target) for pair in data.references[:SHOWN])
        )
        return
    found = measure_emergence(run, data.probe)
    print_specialised(console, found)
    with progress_bar("heads", len(found.labels())) as advance:
        damages = []
        for number, address in enumerate(found.labels()):
            damages.append(ablation_effect(translator.model, translator.vocabulary, data.probe, address))
            advance(number + 1, len(found.labels()))
    print_damages(console, damages, found.labels())
    try:
        plot_emergence(found, run.folder / "heads.svg")
    except ImportError as error:
        say(f"clearhead: no chart: {error}")
    else:
        say(f"wrote {run.folder / 'heads.svg'}")


def show_alignment(translator: Translator, lines: list[str], translations: list[str]) -> None:
    """Each translation, and below it what its tokens follow from."""
    from clearhead.cli.tables import print_alignment

    console = console_for_output()
    for line, translation in zip(lines, translations, strict=True):
        console.print(translation)
        if translation:
            with warnings.catch_warnings(action="ignore"):  # what there is to say was said when it was translated
                recording = translator.record(line, target=translation)
            # a row stands for the token read last, and shows what the next one, which it writes, follows from
            print_alignment(console, recording, list(recording["cross"].queries.texts[1:]))
