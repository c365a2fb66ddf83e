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

    Raises:
        TrainingStopped: SIGINT or SIGTERM arrived. The run stops after the current step and writes a checkpoint; a
            second signal stops it at once.
    """
    if dtype not in COMPUTE_DTYPES:
        raise ValueError(f"dtype is {dtype}; expected torch.float32 or torch.bfloat16")
    with needs_extra("translate", "training"):
        import sacrebleu  # noqa: F401, fail before the first step: validation needs it
    device = torch.device(device)
    with init_process_group(device) as process_group:
        torch.manual_seed(config.training.seed)
        model = (Transformer(config.model, len(data.vocabulary)) if model is None else model).to(device)
        trainer = Trainer(data, config, run, model, dtype, process_group, callbacks or TrainingCallbacks())
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


@contextmanager
def _locked(run: RunDirectory, process_group: ProcessGroup, resume: bool) -> Iterator[None]:
    """Lock the run directory in the main process; if it fails, raise the error in all processes."""
    with ExitStack() as stack:
        process_group.run_on_main(lambda: stack.enter_context(run.locked(resume=resume)))
        yield
