"""`AttentionLogCallback`: the attention log of a model that transformers' Trainer trains."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from clearhead._utils.checks import check_int
from clearhead.watching.training import AttentionLog, ScalarWriter, check_log_path, check_tensorboard
from clearhead.watching.watcher import Where

FILE_NAME = "attention.jsonl"


class AttentionLogCallback(TrainerCallback):
    """Callback of transformers' Trainer that writes an `AttentionLog`.

        trainer = Trainer(model, arguments, train_dataset=texts, callbacks=[AttentionLogCallback(every=100)])
        trainer.train()

    It observes the first optimizer step and every step whose number is a multiple of `every`. Steps are numbered as in
    the Trainer's logs. Means are over all batches of the step under gradient accumulation, and over all ranks.
    Evaluation is not observed. See `AttentionLog` for the format of a line.

    Attention is observed only while the forward pass of the model runs in training mode. If training is interrupted or
    raises, nothing stays replaced outside the model.

    Args:
        path: the file. Default: `attention.jsonl` in the `output_dir` of the Trainer.
        every: observe the steps that are multiples of this number.
        where: which modules: a pattern such as `"*.self_attn"`, or a function of the name. Default: all.
        tensorboard: folder of a TensorBoard run, or a writer with `add_scalar`.

    Raises:
        ValueError: when training begins, if the model is compiled or runs on nn.DataParallel.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: int = 100,
        where: Where | None = None,
        tensorboard: str | os.PathLike[str] | ScalarWriter | None = None,
    ) -> None:
        self._path = None if path is None else check_log_path(path)
        self._every, self._where = check_int("every", every), where
        self._tensorboard: Any = check_tensorboard(tensorboard)
        self._log: AttentionLog | None = None
        self._stop_observing: Callable[[], None] | None = None  # set during an observed step

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: nn.Module, **kwargs: Any
    ) -> None:
        self._end_step()  # an earlier training may have raised
        if args.torch_compile:
            raise ValueError("torch_compile is True, and AttentionLogCallback cannot observe compiled attention")
        if args.n_gpu > 1:
            raise ValueError(
                f"the Trainer has {args.n_gpu} GPUs in one process, and AttentionLogCallback cannot observe"
                " nn.DataParallel; start one process per GPU with torchrun, or set CUDA_VISIBLE_DEVICES"
            )
        self._log = AttentionLog(
            model,
            Path(args.output_dir or ".") / FILE_NAME if self._path is None else self._path,
            every=self._every,
            where=self._where,
            tensorboard=self._tensorboard,
        )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, model: nn.Module, **kwargs: Any
    ) -> None:
        self._end_step()
        if self._log is not None and (state.global_step == 0 or (state.global_step + 1) % self._every == 0):
            self._stop_observing = _observe_training(model, self._log)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._log is not None and self._end_step():
            self._log.write(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._end_step()  # the epoch may have stopped between two batches of a step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._end_step()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _end_step(self) -> bool:
        """Stop observing; return whether a step was observed."""
        stop, self._stop_observing = self._stop_observing, None
        if stop is None:
            return False
        stop()
        return True


def _observe_training(model: nn.Module, log: AttentionLog) -> Callable[[], None]:
    """Observe every forward pass of a model in training mode, and return a function that ends this.

    `forward` of the model is replaced. A forward hook would not do: it is not called after KeyboardInterrupt, and the
    functions that `watch` replaces would stay replaced.
    """
    log.discard()
    original = model.forward
    before = vars(model).get("forward")  # such as the wrapper of accelerate for mixed precision
    function = getattr(original, "__func__", None)
    active = True

    @functools.wraps(function or original)
    def observed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # a deep copy of the model is bound to the copy
        forward = original if module is model or function is None else MethodType(function, module)
        is_training = module.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if not (active and module is model and is_training):
            return forward(*args, **kwargs)
        with log.observe():
            return forward(*args, **kwargs)

    # of a wrapper that is not a method, inspect.signature must not drop the first argument
    replacement: Any = MethodType(observed, model)
    if function is None:
        replacement = functools.wraps(original)(functools.partial(observed, model))
    model.forward = replacement

    def stop() -> None:
        nonlocal active
        active = False
        if vars(model).get("forward") is not replacement:
            return  # another wrapper was put around it, which now calls the original
        if before is None:
            del model.forward
        else:
            model.forward = before

    return stop
