"""`AttentionLog`: statistics of a model's attention while it trains, every so many steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from clearhead._utils.checks import check_int, check_path, describe
from clearhead._utils.files import append_json_line, is_pipe_or_device, resolve_target
from clearhead.distributed.process_group import ProcessGroup, current_process_group, is_main_process
from clearhead.watching._head_totals import HeadTotals, mean_over_heads, over_ranks, to_record
from clearhead.watching._unwrap import unwrap
from clearhead.watching.watcher import Where, watch

SINK = {"*": {"sink": (0, 1)}}  # the first key, in every stack


class ScalarWriter(Protocol):
    """Writer of scalars, such as TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write one number."""
        ...


class AttentionLog:
    """Log of entropy, distance, sink share and peak scores of every head, written while a model trains.

        log = AttentionLog(model, "runs/attention.jsonl", every=100)
        for step, batch in enumerate(loader):
            with log.step(step):        # observes every 100th step
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Each observed step appends one line of JSON:

        {"step": 100, "entropy": 3.1, "distance": 40.5, "sink": 0.25, "peak": 9.7,
         "modules": {"blocks.0.attn": {"queries": 4096, "entropy": [3.3, 2.9], "distance": [38.1, 42.9],
                                       "sink": [0.3, 0.2], "peak": [9.7, 8.2]}, …}}

    - `modules` has the values of each head, by the name of its module, in order of first execution.
    - `entropy` is the mean entropy of a query's weights in nats. `distance` is the mean distance between a query and
      its keys, weighted by attention. `sink` is the mean attention on the first key, and `peak` the largest score.
    - Means are over the queries of all forward passes in the block that are not padding; `queries` is their number.
    - `entropy`, `distance` and `sink` before `modules` are means over all heads. `peak` is the largest.
    - Numbers have six significant digits. A number that is not finite is null.

    Lines are only appended. After a crash, an incomplete last line is removed with the next step. A run that resumes
    at an earlier step repeats steps in the file; the later line is the valid one.

    The model computes what it computes without the log, bit for bit. Recomputation by gradient checkpointing is not
    counted twice. With torch.distributed, means are over the queries of all ranks and peaks over all ranks. All ranks
    have to enter the same steps, and rank 0 writes.

    Args:
        model: a model that `watch` supports, or a wrapper such as DistributedDataParallel.
        path: the file, such as `runs/attention.jsonl`. Its folder is created.
        every: observe the steps that are multiples of this number.
        where: which modules: a pattern such as `"*.self_attn"`, or a function of the name. Default: all.
        tensorboard: folder of a TensorBoard run, or a writer with `add_scalar`. The scalars are
            `attention/entropy`, and `attention_entropy/<module>` for the mean over the heads of each module; and so on
            for the other statistics.
        process_group: the ranks that train on different data. Default: all ranks of torch.distributed.
            `ProcessGroup()` is this process only.

    Raises:
        ValueError: if `path` is a file with other contents. `step` raises it if no attention was observed.
        ImportError: if `tensorboard` is a folder and the package tensorboard is not installed.
    """

    def __init__(
        self,
        model: Any,
        path: str | os.PathLike[str],
        *,
        every: int = 100,
        where: Where | None = None,
        tensorboard: str | os.PathLike[str] | ScalarWriter | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self._kind = type(unwrap(model)).__name__
        self._model, self._where = model, where
        self.every = check_int("every", every)
        self._process_group = process_group
        if self._is_main():
            Path(check_log_path(path)).parent.mkdir(parents=True, exist_ok=True)
            self.path = resolve_target(path)
        else:
            self.path = Path(check_path("path", path))
        self._writer, self._closes_writer = self._open_writer(tensorboard)
        self._totals: dict[str, HeadTotals] = {}
        self._error: Exception | None = None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Observe the forward passes in a `with` block, and write a line at its end, if the step is to be logged.

        If the block raises, nothing is written.

        Args:
            step: the number of the step.
        """
        if check_int("step", step, least=0, most=None) % self.every:
            yield
            return
        self.discard()
        with self.observe():
            yield
        self.write(step)

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Observe the forward passes in a `with` block, for the next `write`. If the block raises, they are dropped."""
        with ExitStack() as stack:
            options: Any = {"entropy": True, "distance": True, "peak": True, "spans": SINK}
            seen = stack.enter_context(watch(self._model, where=self._where, keep=0, **options))
            yield
            try:
                stack.close()
            except ValueError as error:
                self._error = self._error or error  # `write` raises it on all ranks
        for name, watched in seen.items():
            watched.summary.warn_of_nan()
            totals = HeadTotals.of(watched.summary)
            self._totals[name] = self._totals[name].merged(totals) if name in self._totals else totals

    def write(self, step: int) -> None:
        """Write a line about the forward passes that were observed since the last line."""
        totals, error = self._totals, self._error
        self.discard()
        if not totals and error is None:
            error = ValueError(
                f"no attention of {self._kind} was observed in step {step}: it was not called, or it is compiled"
            )
        process_group = self._process_group or current_process_group()
        totals = over_ranks(totals, error, process_group)
        process_group.run_on_main(lambda: self._append(step, totals))

    def discard(self) -> None:
        """Discard the forward passes that were observed since the last line."""
        self._totals, self._error = {}, None

    def close(self) -> None:
        """Close the TensorBoard run if this log has opened it. Lines of JSON are complete without."""
        if self._closes_writer:
            self._writer.close()

    def _append(self, step: int, totals: dict[str, HeadTotals]) -> None:
        record = to_record(totals)
        append_json_line(self.path, {"step": step, **record})
        if self._writer is None:
            return
        scalars = {f"attention/{name}": value for name, value in record.items() if name != "modules"}
        for module, each in totals.items():
            means = mean_over_heads([each])
            scalars |= {f"attention_{name}/{module or self._kind}": value for name, value in means.items()}
        for tag, value in scalars.items():
            if value is not None:
                self._writer.add_scalar(tag, value, step)
        if self._closes_writer:
            self._writer.flush()

    def _is_main(self) -> bool:
        return is_main_process() if self._process_group is None else self._process_group.is_main

    def _open_writer(self, tensorboard: Any) -> tuple[Any, bool]:
        """Return a writer, and whether `close` closes it."""
        if not isinstance(check_tensorboard(tensorboard), str | os.PathLike):
            return tensorboard, False
        from torch.utils.tensorboard import SummaryWriter

        return (SummaryWriter(os.fspath(tensorboard)), True) if self._is_main() else (None, False)


def check_log_path(path: object) -> str | os.PathLike[str]:
    """Return `path` unchanged if a log can be written there; raise otherwise."""
    checked = Path(check_path("path", path))
    if checked.is_dir():
        raise IsADirectoryError(f"path is {str(checked)!r}, a folder; expected the name of a file")
    if checked.exists() and not is_pipe_or_device(checked):
        with checked.open("rb") as file:
            if file.read(1) not in (b"", b"{"):
                raise ValueError(
                    f"path is {str(checked)!r}, which has other contents than lines of JSON; expected a new file, or an"
                    " earlier log"
                )
    return checked


def check_tensorboard(tensorboard: object) -> object:
    """Return `tensorboard` unchanged if it is None, a writer, or a folder and TensorBoard is installed."""
    if isinstance(tensorboard, str | os.PathLike):
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError:
            raise ImportError(
                f"tensorboard={os.fspath(tensorboard)!r} needs the package tensorboard: pip install tensorboard"
            ) from None
    elif tensorboard is not None and not callable(getattr(tensorboard, "add_scalar", None)):
        raise TypeError(f"tensorboard is {describe(tensorboard)}; expected a folder, or a writer with add_scalar")
    return tensorboard
