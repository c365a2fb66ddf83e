"""Training loop: steps, validations and checkpoints of one run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clearhead._utils.evaluating import evaluating
from clearhead.analysis.statistics import measure_heads
from clearhead.distributed.process_group import ProcessGroup
from clearhead.translation._checkpoint import checkpoint_tensors
from clearhead.translation._evaluation import validate
from clearhead.translation._loss import cross_entropy
from clearhead.translation._meters import MeanLoss, TokenRate
from clearhead.translation.callbacks import TrainingCallbacks
from clearhead.translation.config import Config, TrainingConfig, first_difference
from clearhead.translation.data._batching import Batch, TokenIds, batch_indices, collate
from clearhead.translation.data.dataset import Dataset
from clearhead.translation.heads.film import FilmRecorder
from clearhead.translation.heads.probes import head_accuracies
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import ChangedRunError, RunDirectory, TrainerState
from clearhead.translation.tokenizer import PAD
from clearhead.translation.translator import Translator

MAX_RECORDED_PAIRS = 32  # validation sentences to measure head statistics on, for data without annotated relations
STEPS_BETWEEN_CALLBACKS = 10


class Trainer:
    """Training loop of one run: its data, directory, model and optimizer."""

    def __init__(
        self,
        data: Dataset,
        config: Config,
        run: RunDirectory,
        model: Transformer,
        dtype: torch.dtype,
        process_group: ProcessGroup,
        callbacks: TrainingCallbacks,
        film: FilmRecorder | None = None,
    ) -> None:
        self.data, self.config, self.run, self.model, self.callbacks = data, config, run, model, callbacks
        self.settings, self.dtype, self.process_group, self.film = config.training, dtype, process_group, film
        self.device = model.embedding.weight.device
        self.parallel_model = DistributedDataParallel(model) if process_group.world_size > 1 else model
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self.settings.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=self.settings.weight_decay,
            fused=True,
        )

    def begin(self, *, create: bool) -> TrainerState:
        """Validate the untrained model, and return the state of a run at step 0.

        Args:
            create: write the configuration and the tokenizer to the run directory first.
        """

        def create_and_validate() -> TrainerState:
            if create:
                self.run.create(self.config, self.data.vocabulary, self.run_facts(), self.identity())
            return self.validate_and_save(TrainerState(), {})

        return self.process_group.run_on_main(create_and_validate)

    def resume(self) -> TrainerState | None:
        """Load the last checkpoint and return its state; return None if the run has no checkpoint."""
        config, facts = self.run.read()
        difference = first_difference(self.config, config)
        if difference is not None:
            raise ValueError(f"{self.run.folder}: {difference}, as in config.json")
        if facts.get("fingerprint") != self.data.fingerprint:
            raise ValueError(
                f"{self.run.folder}: the data are not those of the run ({facts.get('data')}); expected the same data"
            )
        for name, value in self.numerical_facts().items():
            if facts.get(name, value) != value:
                raise ValueError(
                    f"{self.run.folder}: {name} is {value}; expected {facts[name]}, as at the start of the run"
                )
        state = self.process_group.run_on_main(self.load_checkpoint)
        if state is not None and not self.process_group.is_main:  # the main process has reported damaged checkpoints
            self.run.load_checkpoint(self.model, self.optimizer, lambda line: None)
        return state

    def load_checkpoint(self) -> TrainerState | None:
        """Load the last checkpoint in the main process; replace missing or damaged best weights."""
        self.run.metrics()  # raises now if metrics.jsonl is damaged, not at the next validation
        self.run.check_tokenizer()
        state = self.run.load_checkpoint(self.model, self.optimizer, self.callbacks.on_message)
        if state is not None:
            self.callbacks.on_message(f"resumed at step {state.step}")
            if self.ensure_best(state):
                state = replace(state, bleu=TrainerState.bleu, loss=TrainerState.loss)
        if self.run.identity is None or self.run.accepted:
            self.adopt_run()
        return state

    def adopt_run(self) -> None:
        """Give a new identity to a run of an earlier clearhead, or to one whose changes were accepted."""
        self.run.warn_without_identity()
        for message in self.run.accepted:
            self.callbacks.on_message(f"{message}; accepted")
        _, facts = self.run.read()
        self.run.adopt(self.config, self.data.vocabulary, facts, self.identity())

    def identity(self) -> str:
        """Return a checksum of everything that determines the weights: data, settings and the current state."""
        vocabulary = self.data.vocabulary
        tokens = vocabulary.pieces(range(len(vocabulary)))
        facts = [self.config.to_dict(), self.data.fingerprint, self.numerical_facts(), tokens]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for tensor in checkpoint_tensors(self.model, self.optimizer).values():
            digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:32]

    def ensure_best(self, state: TrainerState) -> bool:
        """Replace missing or damaged best weights by the current weights; return whether they were replaced."""
        try:
            self.run.check_best()
        except ChangedRunError:
            raise
        except (FileNotFoundError, ValueError) as error:
            self.run.save_best(self.model)
            self.callbacks.on_message(f"{error}; replaced by the weights of step {state.step}")
            return True
        return False

    def run_facts(self) -> dict[str, Any]:
        """Return the entries of config.json other than the configuration."""
        facts = {"data": self.data.name, "fingerprint": self.data.fingerprint, **self.numerical_facts()}
        return facts if self.film is None else {**facts, "film": self.film.text}

    def numerical_facts(self) -> dict[str, object]:
        """Return the facts, other than the configuration, that determine the weights bit for bit."""
        return {"dtype": str(self.dtype).removeprefix("torch."), "processes": self.process_group.world_size}

    def run_steps(self, state: TrainerState, signals: Sequence[int]) -> TrainerState | None:
        """Run the remaining steps; return the final state, or None if a signal stopped the run."""
        settings, callbacks = self.settings, self.callbacks
        self.model.train()
        mean_loss, token_rate = MeanLoss(self.process_group), TokenRate()
        for epoch, batch_index, pairs in _batches(self.data, settings, state):
            if self.out_of_patience(state):
                callbacks.on_message(f"ended at step {state.step}: BLEU has not improved in {state.worse} validations")
                break
            if self.process_group.any(bool(signals), self.device):
                if self.process_group.is_main:
                    self.run.save_checkpoint(self.model, self.optimizer, state)
                    callbacks.on_message(f"stopped at step {state.step} and saved a checkpoint; continue with --resume")
                return None
            batch = collate(pairs)
            state = replace(state, step=state.step + 1, epoch=epoch, batch=batch_index + 1)
            mean_loss.add(self.train_step(batch, state.step))
            token_rate.add(int(batch.source.ne(PAD).sum() + batch.expected.ne(PAD).sum()))
            if state.step % STEPS_BETWEEN_CALLBACKS == 0:
                callbacks.on_step(state.step, settings.steps, mean_loss.value, token_rate.value)
            if state.step % settings.validate_every == 0 or state.step == settings.steps:
                loss = mean_loss.value
                if not math.isfinite(loss):
                    raise ValueError(
                        f"step {state.step}: the loss is {loss}; a training.learning_rate below"
                        f" {settings.learning_rate:g} may help (the last checkpoint is from an earlier step)"
                    )
                training_metrics = {"loss": round(loss, 5), "tokens_per_second": round(token_rate.value)}
                mean_loss = MeanLoss(self.process_group)
                with token_rate.paused():
                    state = self.process_group.run_on_main(partial(self.validate_and_save, state, training_metrics))
            elif self.film is not None and state.step in self.film.steps:
                with token_rate.paused():
                    self.process_group.run_on_main(partial(self.film.add, self.model, state.step))
        return state

    def out_of_patience(self, state: TrainerState) -> bool:
        """Return whether the run ends because BLEU has not improved."""
        return 0 < self.settings.patience <= state.worse

    def train_step(self, batch: Batch, step: int) -> Float[Tensor, ""]:
        """Update the weights with one batch; return its mean loss per token."""
        settings, process_group = self.settings, self.process_group
        shard = batch.shard(process_group.rank, process_group.world_size).to(self.device)
        # seed dropout by the step, so that a resumed run draws the same masks
        torch.manual_seed(random.Random(repr((settings.seed, step, process_group.rank))).getrandbits(63))
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_factor(step, settings)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.parallel_model(shard.source, shard.target, shard.lengths)
        # DistributedDataParallel averages gradients: dividing by tokens / world_size gives the mean over all tokens
        token_count = int(batch.expected.ne(PAD).sum()) / process_group.world_size
        loss = cross_entropy(logits, shard.expected, settings.label_smoothing) / token_count
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        return loss.detach()

    def validate_and_save(self, state: TrainerState, training_metrics: dict[str, Any]) -> TrainerState:
        """Validate the model; write its metrics, its weights if they are the best so far, and a checkpoint."""
        data, references = self.data, [pair.target for pair in self.data.references]
        quality = validate(self.model, data.vocabulary, data.valid, references, self.config.text.bleu)
        metrics: dict[str, Any] = {"step": state.step, "epoch": state.epoch, **training_metrics}
        metrics["validation"] = {name: round(value, 5) for name, value in asdict(quality).items()}
        if data.probe:
            metrics["heads"] = head_accuracies(self.model, data.vocabulary, data.probe)
        else:
            metrics["roles"] = self.head_statistics()
        if (quality.bleu, -quality.loss) > (state.bleu, -state.loss):
            state = replace(state, bleu=quality.bleu, loss=quality.loss, worse=0)
            self.run.save_best(self.model)
        else:
            state = replace(state, worse=state.worse + 1)
        self.run.add_metrics(metrics)
        if self.film is not None and (state.step in self.film.steps or self.out_of_patience(state)):
            self.film.add(self.model, state.step, metrics)
        for name in self.run.write_description(self.config, data.vocabulary, self.run_facts()):
            self.callbacks.on_message(f"{self.run.folder / name}: the file was missing and has been written again")
        self.run.save_checkpoint(self.model, self.optimizer, state)
        self.callbacks.on_validation(metrics)
        return state

    def head_statistics(self) -> dict[str, dict[str, float]]:
        """Return the statistics of every head that `clearhead roles` uses, for data without annotated relations."""
        translator = Translator(self.data.name, self.model, self.data.vocabulary, self.config)
        pairs = self.data.references[:MAX_RECORDED_PAIRS]
        with evaluating(self.model):
            _, heads = measure_heads(translator.record(pair.source, target=pair.target) for pair in pairs)
        return {
            f"{stack} {layer}.{head}": {
                name: round(float(value), 4) for name, value in asdict(statistics).items() if value is not None
            }
            for (stack, layer, head), statistics in heads.items()
        }


def learning_rate_factor(step: int, settings: TrainingConfig) -> float:
    """Return the factor of the learning rate: linear warmup to 1, then linear decay."""
    rising = step / settings.warmup
    falling = (settings.steps - step + 1) / max(1, settings.steps - settings.warmup)
    return min(rising, falling, 1.0)


def _batches(data: Dataset, settings: TrainingConfig, state: TrainerState) -> Iterator[tuple[int, int, list[TokenIds]]]:
    """Yield (epoch, batch index, pairs) for each step after `state`."""
    step = state.step
    for epoch in itertools.count(state.epoch):
        pairs = data.epoch(epoch)
        batches = batch_indices(pairs, settings.batch_tokens, (settings.seed, epoch))
        done = state.batch if epoch == state.epoch else 0
        for batch_index, indices in enumerate(batches[done:], done):
            if step >= settings.steps:
                return
            step += 1
            yield epoch, batch_index, [pairs[index] for index in indices]
