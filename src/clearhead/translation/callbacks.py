"""Callbacks of `train`, for progress bars and logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingCallbacks:
    """Functions that `train` calls.

    Under torchrun, every process calls `on_step`; only the main process calls `on_validation`.

    Args:
        on_message: called with a line of text, such as "resumed at step 40".
        on_step: called every ten steps with the step, the total number of steps, the mean loss and tokens per second.
        on_validation: called after each validation with its metrics, in the format of `metrics.jsonl`.
    """

    on_message: Callable[[str], None] = lambda line: None
    on_step: Callable[[int, int, float, float], None] = lambda step, steps, loss, tokens_per_second: None
    on_validation: Callable[[dict[str, Any]], None] = lambda metrics: None
