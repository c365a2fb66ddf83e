"""`train`: from random weights to a Transformer that translates. Can be killed at any moment and resumed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from clearhead.transformer.batching import Batch, collate, in_batches
from clearhead.transformer.config import Config, TrainingConfig
from clearhead.transformer.data import Data
from clearhead.transformer.model import Transformer
from clearhead.transformer.probing import accuracies
from clearhead.transformer.runs import Progress, Run
from clearhead.transformer.tokens import PAD
from clearhead.transformer.validation import cross_entropy, validate

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Report:
    """What happens, for whoever shows it."""

    say: Callable[[str], None] = lambda line: None
    step: Callable[[int, int, float, float], None] = lambda done, of, loss, tokens_per_second: None
    measured: Callable[[dict[str, Any]], None] = lambda metrics: None


def train(
    data: Data,
    config: Config,
    run: Run,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    resume: bool = False,
    model: Transformer | None = None,
    report: Report | None = None,
) -> Transformer:
    """Train, and return the model as it was when it translated the validation set best, by BLEU.

    Every step follows from the checkpoint and the step's number alone: a run that was interrupted and resumed ends
    with the weights of one that was not, bit for bit on a CPU. Under torchrun all processes share each batch.

    Args:
        dtype: what products are computed in, float32 or bfloat16; weights are float32.
        resume: go on with the run; `run.read()` gives the configuration it was begun with.
        model: what to train, in place of a new model by the configuration.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; expected torch.float32 or torch.bfloat16")
    device, settings, report = torch.device(device), config.training, report or Report()
    with _processes(device) as (rank, world):
        first = rank == 0
        torch.manual_seed(settings.seed)
        model = (Transformer(config.model, len(data.vocabulary)) if model is None else model).to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        progress = _restored(run, data, model, optimizer, report) if resume else None
        if progress is None:
            if first and not resume:
                run.begin(config, data.vocabulary, {"data": data.name, "fingerprint": data.fingerprint})
            progress = Progress()
            if first:
                _measure(run, model, data, config, progress, {}, report)
                run.save(model, optimizer, progress)
        trained = DistributedDataParallel(model) if world > 1 else model
        with _stopping() as stopped:
            _steps(trained, model, optimizer, data, config, run, progress, dtype, (rank, world), report, stopped)
        if first and stopped:
            raise KeyboardInterrupt
    run.load_best(model)
    return model.eval()


def _steps(
    trained: nn.Module,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    data: Data,
    config: Config,
    run: Run,
    progress: Progress,
    dtype: torch.dtype,
    place: tuple[int, int],
    report: Report,
    stopped: list[int],
) -> None:
    rank, world = place
    settings, device = config.training, model.embedding.weight.device
    model.train()
    began, tokens, recent = time.perf_counter(), 0, _Mean(world)
    if settings.patience and progress.worse >= settings.patience:
        return  # it had stopped by itself before it was resumed
    for epoch, number, rows in _batches(data, settings, progress):
        if _agreed(bool(stopped), world):
            break
        step = progress.step + 1
        batch = collate(rows)
        count = int((batch.expected != PAD).sum())
        own = _share(batch, rank, world).to(device)
        # what dropout draws follows from the step, so that it is the same after a restart
        torch.manual_seed(random.Random(repr((settings.seed, step, rank))).getrandbits(63))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, settings)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = trained(own.source, own.target, own.lengths)
        # the mean over the tokens of all processes; theirs are averaged
        loss = cross_entropy(logits, own.expected, settings.label_smoothing) / count * world
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        progress = replace(progress, step=step, epoch=epoch, batch=number + 1)
        recent.add(loss.detach())
        tokens += int(batch.source.ne(PAD).sum()) + count
        if step % 10 == 0:
            report.step(step, settings.steps, recent.value, tokens / (time.perf_counter() - began))
        if step % settings.validate_every == 0 or step == settings.steps:
            extra = {"loss": round(recent.value, 5), "tokens_per_second": round(tokens / (time.perf_counter() - began))}
            recent = _Mean(world)
            paused = time.perf_counter()
            if rank == 0:
                progress = _measure(run, model, data, config, progress, extra, report)
                run.save(model, optimizer, progress)
            progress = _same(progress, world)
            began += time.perf_counter() - paused
            if settings.patience and progress.worse >= settings.patience:
                report.say(f"stopped at step {step}: no better BLEU in {progress.worse} validations")
                return
    if stopped and rank == 0:
        run.save(model, optimizer, progress)
        report.say(f"stopped at step {progress.step}, which is saved; --resume goes on from there")


def schedule(step: int, settings: TrainingConfig) -> float:
    """The share of the learning rate: it rises in the first steps, then falls to 0 in a straight line."""
    rising = step / settings.warmup
    falling = (settings.steps - step + 1) / max(1, settings.steps - settings.warmup)
    return min(rising, falling, 1.0)


def _batches(data: Data, settings: TrainingConfig, progress: Progress) -> Iterator[tuple[int, int, list]]:
    """Epoch, number of the batch in it, and its pairs, from where the run stands to its last step."""
    step = progress.step
    for epoch in itertools.count(progress.epoch):
        pairs = data.epoch(epoch)
        batches = in_batches(pairs, settings.batch_tokens, (settings.seed, epoch))
        done = progress.batch if epoch == progress.epoch else 0
        for number, rows in enumerate(batches[done:], done):
            if step == settings.steps:
                return
            step += 1
            yield epoch, number, [pairs[row] for row in rows]


def _measure(
    run: Run, model: Transformer, data: Data, config: Config, progress: Progress, extra: dict[str, Any], report: Report
) -> Progress:
    """Validate, note what was found, and keep the weights if they are the best so far."""
    quality = validate(model, data.vocabulary, data.valid, [pair.target for pair in data.references], config.text.bleu)
    metrics: dict[str, Any] = {"step": progress.step, "epoch": progress.epoch, **extra}
    metrics["validation"] = {name: round(value, 5) for name, value in asdict(quality).items()}
    if data.probe:
        metrics["heads"] = accuracies(model, data.vocabulary, data.probe)
    if (quality.bleu, -quality.loss) > (progress.bleu, -progress.loss):
        progress = replace(progress, bleu=quality.bleu, loss=quality.loss, worse=0)
        run.save_best(model)
    else:
        progress = replace(progress, worse=progress.worse + 1)
    run.add_metrics(metrics)
    report.measured(metrics)
    return progress


def _restored(
    run: Run, data: Data, model: Transformer, optimizer: torch.optim.Optimizer, report: Report
) -> Progress | None:
    _, facts = run.read()
    if facts.get("fingerprint") != data.fingerprint:
        raise ValueError(f"{run.folder}: the run began with other data ({facts.get('data')}); give it the same")
    progress = run.restore(model, optimizer, report.say)
    if progress is not None:
        report.say(f"resumed at step {progress.step}")
    return progress


class _Mean:
    """Of losses, which stay on their device until somebody asks; of all processes, which then ask together."""

    def __init__(self, world: int) -> None:
        self.total, self.count, self.world = torch.zeros(()), 0, world

    def add(self, loss: Tensor) -> None:
        self.total, self.count = self.total.to(loss.device) + loss, self.count + 1

    @property
    def value(self) -> float:
        total = self.total.clone()
        if self.world > 1:
            distributed.all_reduce(total)
        return float(total) / max(1, self.count) / self.world


@contextlib.contextmanager
def _stopping() -> Iterator[list[int]]:
    """Ctrl-C and a polite kill end the step at hand first; what comes to stand in the list says so."""
    asked: list[int] = []

    def remember(number: int, frame: object) -> None:
        if asked:  # the second time at once
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals do not arrive
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- several processes -----------------------------------------------------------------------------------------------


def is_first() -> bool:
    """Whether this process is the only one, or the one that writes and speaks for all."""
    return int(os.environ.get("RANK", 0)) == 0


@contextlib.contextmanager
def _processes(device: torch.device) -> Iterator[tuple[int, int]]:
    """This process's number and how many there are, as torchrun says."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world == 1:
        yield 0, 1
        return
    if device.type == "cuda" and device.index is None:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))  # a GPU for each
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield distributed.get_rank(), world
    finally:
        distributed.destroy_process_group()


def _share(batch: Batch, rank: int, world: int) -> Batch:
    """Every `world`-th sentence; one that does not count where there are not enough."""
    if rank < batch.source.shape[0]:
        return batch.map(lambda tensor: tensor[rank::world])
    first = batch.map(lambda tensor: tensor[:1])
    return first._replace(expected=first.expected.new_full(first.expected.shape, PAD))


def _agreed(stop: bool, world: int) -> bool:
    """Whether any process was asked to stop."""
    if world == 1:
        return stop
    asked = torch.tensor(int(stop), device="cuda" if distributed.get_backend() == "nccl" else "cpu")
    distributed.all_reduce(asked)
    return bool(asked)


def _same(progress: Progress, world: int) -> Progress:
    """What the first process says, for all."""
    if world == 1:
        return progress
    box = [json.dumps(asdict(progress))]
    distributed.broadcast_object_list(box)
    return Progress(**json.loads(box[0]))
