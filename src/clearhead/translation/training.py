"""Training of a Transformer. A run can be killed at any moment and resumed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from clearhead._utils.extras import needs_extra
from clearhead.distributed.process_group import ProcessGroup, init_process_group
from clearhead.translation._signals import TrainingStopped, catch_stop_signals
from clearhead.translation._trainer import Trainer
from clearhead.translation.callbacks import TrainingCallbacks
from clearhead.translation.config import Config
from clearhead.translation.data.dataset import Dataset
from clearhead.translation.heads.film import FilmRecorder
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory

COMPUTE_DTYPES = (torch.float32, torch.bfloat16)


def train(
    data: Dataset,
    config: Config,
    run: RunDirectory,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    resume: bool = False,
    model: Transformer | None = None,
    callbacks: TrainingCallbacks | None = None,
    film: str | None = None,
) -> Transformer:
    """Train a Transformer, and return it with the weights of the validation with the best BLEU.

    A run that was interrupted and resumed ends with the same weights as an uninterrupted run, bit for bit on a CPU.
    Under torchrun, each batch is split across the processes.

    Args:
        data: sentences to train on and to validate with.
        config: configuration of the run.
        run: directory of the run.
        device: device to train on.
        dtype: compute dtype, float32 or bfloat16; weights are float32.
        resume: resume the run in `run`; `run.read()` returns its configuration.
        model: model to train (default: a new one with the sizes in `config.model`).
        callbacks: functions that are called with messages, losses and metrics.
        film: sentence of the built-in grammar. Its attention maps at several steps are written to `film.json`. The
            film does not change the weights. A resumed run continues the film of the run.

    Raises:
        TrainingStopped: SIGINT or SIGTERM arrived. The run stops after the current step and writes a checkpoint; a
            second signal stops it at once.
    """
    if dtype not in COMPUTE_DTYPES:
        raise ValueError(f"dtype is {dtype}; expected torch.float32 or torch.bfloat16")
    with needs_extra("translate", "training"):
        import sacrebleu  # noqa: F401, fail before the first step: validation needs it
    device = torch.device(device)
    recorder = _film_recorder(film, data, config, run, resume)
    with init_process_group(device) as process_group:
        torch.manual_seed(config.training.seed)
        model = (Transformer(config.model, len(data.vocabulary)) if model is None else model).to(device)
        callbacks = callbacks or TrainingCallbacks()
        trainer = Trainer(data, config, run, model, dtype, process_group, callbacks, recorder)
        with _locked(run, process_group, resume):
            state = trainer.resume() if resume else None
            if state is None:
                state = trainer.begin(create=not resume)
            with catch_stop_signals() as signals:
                final_state = trainer.run_steps(state, signals)
            if final_state is not None:
                process_group.run_on_main(partial(trainer.ensure_best, final_state))
            elif process_group.is_main:
                raise TrainingStopped(signals[0] if signals else signal.SIGINT)
            run.load_best(model)
    return model.eval()


def _film_recorder(
    text: str | None, data: Dataset, config: Config, run: RunDirectory, resume: bool
) -> FilmRecorder | None:
    """Return the recorder of the run's film; None for a run without a film."""
    if resume:
        recorded = run.read()[1].get("film")
        if text is not None and " ".join(text.split()) != recorded:
            raise ValueError(f"film is {text!r}; expected {recorded!r}, as at the start of the run, or None")
        text = recorded
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"film is {text!r}; expected a sentence")
    return FilmRecorder(text, data, config, run, resume=resume)


@contextmanager
def _locked(run: RunDirectory, process_group: ProcessGroup, resume: bool) -> Iterator[None]:
    """Lock the run directory in the main process; if it fails, raise the error in all processes."""
    with ExitStack() as stack:
        process_group.run_on_main(lambda: stack.enter_context(run.locked(resume=resume)))
        yield
