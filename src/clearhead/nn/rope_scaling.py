"""Context scaling: rotary frequencies slowed down, so that a model reads texts longer than those it was trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_float


@dataclass(frozen=True)
class Stretch:
    """Every position divided by `factor` (Chen et al. 2023), and what all context scalings share."""

    factor: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            expected = "a finite number above 0"
            if check_float(f"{type(self).__name__}: {name}", value, expected) <= 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected {expected}")

    def scaled(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        """The frequencies of all pairs of columns, in radians per position, after scaling."""
        return frequencies / self.factor

    @property
    def amplitude(self) -> float:
        """What turned queries and keys are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class _ByTurns(Stretch):
    """How much a pair of columns is slowed depends on how often it turns over `original_length` positions."""

    original_length: int
    slow_turns: float
    fast_turns: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.slow_turns < self.fast_turns:
            turns = f"slow_turns is {self.slow_turns} and fast_turns {self.fast_turns}"
            raise ValueError(f"{type(self).__name__}: {turns}; expected fewer slow than fast ones")


@dataclass(frozen=True)
class Llama3(_ByTurns):
    """Llama 3.1: slow pairs are divided by `factor`, fast ones kept, those between blended.

    Over `original_length` positions a slow pair turns at most `slow_turns` times, a fast one at least `fast_turns`.
    """

    original_length: int = 8192
    slow_turns: float = 1.0
    fast_turns: float = 4.0

    def scaled(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        turns = frequencies * self.original_length / (2 * math.pi)
        kept = ((turns - self.slow_turns) / (self.fast_turns - self.slow_turns)).clamp(0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True)
class YaRN(_ByTurns):
    """YaRN (Peng et al. 2023): a ramp over the pairs' numbers, and a factor on queries and keys that sharpens softmax.

    The ramp runs from the pair that turns `fast_turns` times over `original_length` positions to the one that turns
    `slow_turns` times.
    """

    original_length: int = 4096
    slow_turns: float = 1.0
    fast_turns: float = 32.0

    def scaled(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        pairs = frequencies.shape[0]

        def pair_turning(times: float) -> float:
            return pairs * math.log(self.original_length / (times * 2 * math.pi)) / math.log(base)

        first = max(math.floor(pair_turning(self.fast_turns)), 0)
        last = min(math.ceil(pair_turning(self.slow_turns)), 2 * pairs - 1)
        numbers = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        slowed = ((numbers - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
        return frequencies * (1.0 - slowed + slowed / self.factor)

    @property
    def amplitude(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0
