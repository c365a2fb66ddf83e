"""`train`: from random weights to a Transformer that translates. Can be killed at any moment and resumed."""

from __future__ import annotations

import itertools
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clearhead.analysis.statistics import measure
from clearhead.distributed.process_group import ProcessGroup, init_process_group
from clearhead.translation._evaluation import cross_entropy, validate
from clearhead.translation.config import Config, TrainingConfig
from clearhead.translation.data._batching import Batch, Ids, collate, in_batches
from clearhead.translation.data.dataset import Data
from clearhead.translation.heads.probes import accuracies
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory, TrainerState
from clearhead.translation.tokenizer import PAD
from clearhead.translation.translator import Translator

DTYPES = (torch.float32, torch.bfloat16)
PROBED = 32  # validation sentences that heads are watched on where no relations are known
REPORTED = 10  # every so many steps


class Stopped(KeyboardInterrupt):
    """Training ended by a signal, whose number is `signal`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


@dataclass(frozen=True)
class TrainingCallbacks:
    """What happens, for whoever shows it."""

    say: Callable[[str], None] = lambda line: None
    step: Callable[[int, int, float, float], None] = lambda done, of, loss, tokens_per_second: None
    measured: Callable[[dict[str, Any]], None] = lambda metrics: None


def train(
    data: Data,
    config: Config,
    run: RunDirectory,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    resume: bool = False,
    model: Transformer | None = None,
    report: TrainingCallbacks | None = None,
) -> Transformer:
    """Train, and return the model as it was when it translated the validation set best, by BLEU.

    Every step follows from the checkpoint and the step's number alone: a run that was interrupted and resumed ends
    with the weights of one that was not, bit for bit on a CPU. Under torchrun all processes share each batch.
    Ctrl-C or SIGTERM ends the run after the current step with `Stopped`, a KeyboardInterrupt.

    Args:
        dtype: what products are computed in, float32 or bfloat16; weights are float32.
        resume: go on with the run; `run.read()` gives the configuration it was begun with.
        model: what to train, in place of a new model by the configuration.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; expected torch.float32 or torch.bfloat16")
    device = torch.device(device)
    with init_process_group(device) as process_group:
        torch.manual_seed(config.training.seed)
        model = (Transformer(config.model, len(data.vocabulary)) if model is None else model).to(device)
        training = _Training(data, config, run, model, dtype, process_group, report or TrainingCallbacks())
        with _locked(run, process_group, resume):
            progress = training.resumed() if resume else None
            if progress is None:
                progress = training.begun(anew=not resume)
            with _stopping() as asked_to_stop:
                ended = training.steps(progress, asked_to_stop)
            if ended is not None:
                process_group.run_on_main(partial(training.secure_best, ended))
            elif process_group.is_main:
                raise Stopped(asked_to_stop[0] if asked_to_stop else signal.SIGINT)
            run.load_best(model)
    return model.eval()


@contextmanager
def _locked(run: RunDirectory, process_group: ProcessGroup, resume: bool) -> Iterator[None]:
    """Hold the run's folder in the first process, for all; a refusal is raised in all."""
    with ExitStack() as stack:
        process_group.run_on_main(lambda: stack.enter_context(run.locked(resume=resume)))
        yield


class _Training:
    """A run at work."""

    def __init__(
        self,
        data: Data,
        config: Config,
        run: RunDirectory,
        model: Transformer,
        dtype: torch.dtype,
        process_group: ProcessGroup,
        report: TrainingCallbacks,
    ) -> None:
        self.data, self.config, self.run, self.model, self.report = data, config, run, model, report
        self.settings, self.dtype, self.process_group = config.training, dtype, process_group
        self.device = model.embedding.weight.device
        self.shared = DistributedDataParallel(model) if process_group.world_size > 1 else model
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self.settings.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    def begun(self, anew: bool) -> TrainerState:
        """Where a run starts: nothing learned, and measured all the same."""

        def begin() -> TrainerState:
            if anew:
                self.run.begin(self.config, self.data.vocabulary, self.facts())
            return self.measured(TrainerState(), {})

        return self.process_group.run_on_main(begin)

    def resumed(self) -> TrainerState | None:
        """Where it stood; None if it had not come to its first checkpoint."""
        _, facts = self.run.read()
        if facts.get("fingerprint") != self.data.fingerprint:
            raise ValueError(
                f"{self.run.folder}: the run began with other data ({facts.get('data')}); give it the same"
            )
        for name, now in self.kind().items():
            if facts.get(name, now) != now:
                raise ValueError(
                    f"{self.run.folder}: the run began with {name} {facts[name]}, not {now}; give it the same"
                )
        progress = self.process_group.run_on_main(self.restored)
        if progress is not None and not self.process_group.is_main:  # what the first has found whole
            self.run.restore(self.model, self.optimizer, lambda line: None)
        return progress

    def restored(self) -> TrainerState | None:
        self.run.metrics()  # damage is found now, not at the next validation
        progress = self.run.restore(self.model, self.optimizer, self.report.say)
        if progress is None:
            return None
        self.report.say(f"resumed at step {progress.step}")
        if self.secure_best(progress):
            return replace(progress, bleu=TrainerState.bleu, loss=TrainerState.loss)
        return progress

    def secure_best(self, progress: TrainerState) -> bool:
        """Put the weights of now in the place of the best ones if these are lost; return whether they were."""
        try:
            self.run.check_best()
        except (FileNotFoundError, ValueError) as error:
            self.run.save_best(self.model)
            self.report.say(f"{error}; the weights of step {progress.step} take its place")
            return True
        return False

    def facts(self) -> dict[str, Any]:
        """Return what config.json holds besides the configuration."""
        return {"data": self.data.name, "fingerprint": self.data.fingerprint, **self.kind()}

    def kind(self) -> dict[str, object]:
        """What the last bits of the weights depend on, beside the configuration."""
        return {"dtype": str(self.dtype).removeprefix("torch."), "processes": self.process_group.world_size}

    def steps(self, progress: TrainerState, asked_to_stop: list[int]) -> TrainerState | None:
        """Take all steps that are left; return the progress at the end, or None if asked to stop."""
        settings = self.settings
        self.model.train()
        recent, speed = _Mean(self.process_group), _Speed()
        for epoch, number, pairs in _batches(self.data, settings, progress):
            if settings.patience and progress.worse >= settings.patience:
                self.report.say(f"ended at step {progress.step}: no better BLEU in {progress.worse} validations")
                break
            if self.process_group.any(bool(asked_to_stop), self.device):
                if self.process_group.is_main:
                    self.run.save(self.model, self.optimizer, progress)
                    self.report.say(f"stopped at step {progress.step}, which is saved; --resume goes on from there")
                return None
            batch = collate(pairs)
            progress = replace(progress, step=progress.step + 1, epoch=epoch, batch=number + 1)
            recent.add(self.step(batch, progress.step))
            speed.add(int(batch.source.ne(PAD).sum() + batch.expected.ne(PAD).sum()))
            if progress.step % REPORTED == 0:
                self.report.step(progress.step, settings.steps, recent.value, speed.value)
            if progress.step % settings.validate_every == 0 or progress.step == settings.steps:
                loss = recent.value
                if not math.isfinite(loss):
                    raise ValueError(
                        f"step {progress.step}: the loss is {loss}; a training.learning_rate below"
                        f" {settings.learning_rate:g} may help (the last checkpoint is from before)"
                    )
                learned = {"loss": round(loss, 5), "tokens_per_second": round(speed.value)}
                recent = _Mean(self.process_group)
                with speed.paused():
                    progress = self.process_group.run_on_main(partial(self.measured, progress, learned))
        return progress

    def step(self, batch: Batch, number: int) -> Tensor:
        """Learn from a batch; its loss, the mean over its tokens."""
        settings, process_group = self.settings, self.process_group
        own = batch.share(process_group.rank, process_group.world_size).to(self.device)
        # what dropout draws follows from the step, so that it is the same after a restart
        torch.manual_seed(random.Random(repr((settings.seed, number, process_group.rank))).getrandbits(63))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(number, settings)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.shared(own.source, own.target, own.lengths)
        # over the tokens of all processes, whose gradients are averaged
        count = int(batch.expected.ne(PAD).sum()) / process_group.world_size
        loss = cross_entropy(logits, own.expected, settings.label_smoothing) / count
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        return loss.detach()

    def measured(self, progress: TrainerState, learned: dict[str, Any]) -> TrainerState:
        """Validate, note what was found, keep the weights if they are the best so far, and make a checkpoint."""
        data, references = self.data, [pair.target for pair in self.data.references]
        quality = validate(self.model, data.vocabulary, data.valid, references, self.config.text.bleu)
        metrics: dict[str, Any] = {"step": progress.step, "epoch": progress.epoch, **learned}
        metrics["validation"] = {name: round(value, 5) for name, value in asdict(quality).items()}
        if data.probe:
            metrics["heads"] = accuracies(self.model, data.vocabulary, data.probe)
        else:
            metrics["roles"] = self.roles()
        if (quality.bleu, -quality.loss) > (progress.bleu, -progress.loss):
            progress = replace(progress, bleu=quality.bleu, loss=quality.loss, worse=0)
            self.run.save_best(self.model)
        else:
            progress = replace(progress, worse=progress.worse + 1)
        self.run.add_metrics(metrics)
        for name in self.run.describe(self.config, data.vocabulary, self.facts()):
            self.report.say(f"{self.run.folder / name}: there is no such file; it is written again")
        self.run.save(self.model, self.optimizer, progress)
        self.report.measured(metrics)
        return progress

    def roles(self) -> dict[str, dict[str, float]]:
        """What can be said of heads where relations are not known: the numbers behind `clearhead roles`."""
        translator = Translator(self.data.name, self.model, self.data.vocabulary, self.config)
        training = self.model.training
        self.model.eval()
        pairs = self.data.references[:PROBED]
        _, heads = measure(translator.record(pair.source, target=pair.target) for pair in pairs)
        self.model.train(training)
        return {
            f"{stack} {layer}.{head}": {
                name: round(float(value), 4) for name, value in asdict(own).items() if value is not None
            }
            for (stack, layer, head), own in heads.items()
        }


def schedule(step: int, settings: TrainingConfig) -> float:
    """The share of the learning rate: it rises in the first steps, then falls to 0 in a straight line."""
    rising = step / settings.warmup
    falling = (settings.steps - step + 1) / max(1, settings.steps - settings.warmup)
    return min(rising, falling, 1.0)


def _batches(data: Data, settings: TrainingConfig, progress: TrainerState) -> Iterator[tuple[int, int, list[Ids]]]:
    """Epoch, number of the batch in it, and its pairs, from where the run stands to its last step."""
    step = progress.step
    for epoch in itertools.count(progress.epoch):
        pairs = data.epoch(epoch)
        batches = in_batches(pairs, settings.batch_tokens, (settings.seed, epoch))
        done = progress.batch if epoch == progress.epoch else 0
        for number, rows in enumerate(batches[done:], done):
            if step >= settings.steps:
                return
            step += 1
            yield epoch, number, [pairs[row] for row in rows]


class _Mean:
    """Of losses, which stay on their device until somebody asks; of all processes, which then ask together."""

    def __init__(self, process_group: ProcessGroup) -> None:
        self.total, self.count, self.process_group = torch.zeros(()), 0, process_group

    def add(self, loss: Tensor) -> None:
        self.total, self.count = self.total.to(loss.device) + loss, self.count + 1

    @property
    def value(self) -> float:
        return float(self.process_group.all_reduce(self.total)) / max(1, self.count) / self.process_group.world_size


class _Speed:
    """Tokens a second, validations apart."""

    def __init__(self) -> None:
        self.began, self.tokens = time.perf_counter(), 0

    def add(self, tokens: int) -> None:
        self.tokens += tokens

    @property
    def value(self) -> float:
        return self.tokens / (time.perf_counter() - self.began)

    @contextmanager
    def paused(self) -> Iterator[None]:
        paused = time.perf_counter()
        yield
        self.began += time.perf_counter() - paused


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """Ctrl-C and a polite kill end the step at hand first; what comes to stand in the list says so."""
    asked: list[int] = []

    def remember(number: int, frame: object) -> None:
        if asked:  # the second time at once
            raise Stopped(number)
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
