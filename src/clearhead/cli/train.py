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
from clearhead._utils.text import printable
from clearhead.cli.errors import say
from clearhead.cli.inputs import usable_device
from clearhead.cli.options import DeviceOption, Dtype, DtypeOption
from clearhead.cli.output import progress_bar, write

if TYPE_CHECKING:
    from clearhead.translation import Config, Dataset, RunDirectory, TrainingCallbacks, Translator

MAX_ROLE_SENTENCES = 100  # validation sentences that show the roles of heads where no relations are known


def train(
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|SOURCE,TARGET",
            help="Parallel text: a TSV file, or two files with a comma between (.gz too). Repeatable."
            " The built-in grammar where none is given.",
        ),
    ] = None,
    valid: Annotated[
        list[str] | None, typer.Option(metavar="FILE|SOURCE,TARGET", help="Pairs to validate with. Repeatable.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with sizes and settings.")] = None,
    output: Annotated[Path, typer.Option(help="The run's folder.")] = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    steps: Annotated[int | None, typer.Option(help="How many steps to train for.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="What everything random is drawn from.")] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = Dtype.float32,
) -> None:
    """Train a Transformer to translate, and see which head comes to find which relation."""
    import torch

    from clearhead.distributed.process_group import is_main_process
    from clearhead.translation import RunDirectory
    from clearhead.translation import train as run_training

    run = RunDirectory(output)
    if resume and (config is not None or steps is not None or seed is not None):
        raise ValueError("--config, --steps and --seed do not go with --resume, which goes on with the run's own")
    settings = run.read()[0] if resume else _read_config(config, steps, seed)
    torch_device = usable_device(device)
    dataset = _read_data(run, data or [], valid or [], settings, resume)
    with _signal_as_exit_code(), _training_callbacks(settings) as callbacks:
        for note in dataset.notes:
            callbacks.on_message(note)
        torch_dtype = getattr(torch, dtype.value)
        run_training(dataset, settings, run, device=torch_device, dtype=torch_dtype, resume=resume, callbacks=callbacks)
    if is_main_process():
        _show_run(run, dataset)


def translate(
    text: Annotated[str | None, typer.Argument(help="A sentence to translate.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help='Translate line by line; "-" is standard input. Repeatable.')
    ] = None,
    model: Annotated[str, typer.Option("--model", help="The bundled model, en-ja, or a run's folder.")] = "en-ja",
    show: Annotated[bool, typer.Option("--show", help="Show which source words each token follows from.")] = False,
    beams: Annotated[int, typer.Option(help="How many beginnings are followed at once; 1 is greedy.", min=1)] = 4,
    device: DeviceOption = None,
    output: Annotated[Path | None, typer.Option(help="A file to write to, instead of standard output.")] = None,
) -> None:
    """Translate a sentence, or files line by line."""
    from clearhead.translation import Translator

    if (text is None) == (not file):
        raise ValueError("give a sentence, or --file")
    if show and output is not None:
        raise ValueError("--output does not go with --show, which draws on the terminal")
    lines = [text] if text is not None else [line for path in file or () for line in _read_lines(path)]
    translator = Translator.load(model, device=usable_device(device))
    translations = []
    with progress_bar("lines", len(lines) if file else 0) as advance:
        for translation in translator.stream(lines, beams=beams):
            translations.append(translation)
            if output is None and not show:  # one by one, so that an interrupt loses nothing that is done
                typer.echo(printable(translation))
            advance(len(translations), len(lines))
    if show:
        _show_alignment(translator, lines, translations)
    elif output is not None:
        write("".join(f"{line}\n" for line in translations), output)


def _read_config(config: Path | None, steps: int | None, seed: int | None) -> Config:
    """Return the configuration of a file, or the default, with the steps and the seed of the command line."""
    from clearhead.translation import Config

    settings = Config() if config is None else Config.from_file(config)
    changes = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    return replace(settings, training=replace(settings.training, **changes))


def _read_data(run: RunDirectory, data: list[str], valid: list[str], config: Config, resume: bool) -> Dataset:
    """Read the files, or generate sentences by the built-in grammar."""
    from clearhead.translation import from_files, from_grammar

    if valid and not data:
        raise ValueError("--valid was given without --data; the built-in grammar has a validation set of its own")
    if not data:
        return from_grammar(config)
    return from_files(data, valid, config, run.vocabulary() if resume else None)


@contextmanager
def _training_callbacks(config: Config) -> Iterator[TrainingCallbacks]:
    """Show a bar with loss, speed and time left on a terminal's stderr, and a line for each validation."""
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

        def step(done: int, total: int, loss: float, speed: float) -> None:
            bar.update(task, completed=done, state=f"loss {loss:.3f}, {speed:,.0f} tokens/s,")

        def measured(metrics: dict[str, Any]) -> None:
            validation = metrics["validation"]
            trained = f"loss {metrics['loss']:.3f}, " if "loss" in metrics else ""
            say(
                f"step {metrics['step']}: {trained}validation loss {validation['loss']:.3f},"
                f" {validation['exact']:.1%} exact, BLEU {validation['bleu']:.1f}"
            )

        yield TrainingCallbacks(say, step, measured)


@contextmanager
def _signal_as_exit_code() -> Iterator[None]:
    """End the command with 128 + the number of the signal that has stopped the training."""
    from clearhead.translation import TrainingStopped

    try:
        yield
    except TrainingStopped as stopped:
        raise typer.Exit(128 + stopped.signal) from None


def _read_lines(file: Path) -> list[str]:
    """Return the lines of a text file, or of standard input if it is called "-"."""
    if str(file) != "-":
        return [line for _, line in numbered_lines(file)]
    return stdin_lines()


def _show_run(run: RunDirectory, data: Dataset) -> None:
    """Print which head finds which relation, and draw a chart into the run's folder; without relations, print roles."""
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
        say(f"clearhead: no chart: {error}")
    else:
        say(f"wrote {run.folder / 'heads.svg'}")


def _show_alignment(translator: Translator, lines: list[str], translations: list[str]) -> None:
    """Print each translation, and below it the source words that each of its tokens attends to."""
    from clearhead.cli.tables import print_alignment

    console = console_for_output()
    for line, translation in zip(lines, translations, strict=True):
        console.print(translation)
        if translation:
            with warnings.catch_warnings(action="ignore"):  # what there is to say was said when it was translated
                recording = translator.record(line, target=translation)
            # a row stands for the token read last, and shows what the next one, which it writes, follows from
            print_alignment(console, recording, list(recording["cross"].queries.texts[1:]))
