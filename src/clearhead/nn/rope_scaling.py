"""Context scaling of rotary frequencies, for texts longer than in training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.checks import check_float


@dataclass(frozen=True)
class RopeScaling:
    """Base class of the context scalings of `Rotary`."""

    factor: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            expected = "a finite number above 0"
            if check_float(f"{type(self).__name__}: {name}", value, expected) <= 0:
                raise ValueError(f"{type(self).__name__}: {name} is {value}; expected {expected}")

    def scale_frequencies(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        """Return the frequencies of all pairs of columns, in radians per position, after scaling."""
        raise NotImplementedError

    @property
    def attention_factor(self) -> float:
        """Factor of rotated queries and keys."""
        return 1.0


@dataclass(frozen=True)
class LinearScaling(RopeScaling):
    """Linear scaling: every position is divided by `factor` (Chen et al. 2023)."""

    def scale_frequencies(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3(RopeScaling):
    """Llama 3.1 scaling: divide low frequencies by `factor`, keep high frequencies, interpolate between them.

    A frequency is low if it makes at most `low_freq_factor` rotations over `original_length` positions, and high if it
    makes at least `high_freq_factor`.
    """

    original_length: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"Llama3: low_freq_factor is {self.low_freq_factor} and high_freq_factor {self.high_freq_factor};"
                " expected low_freq_factor below high_freq_factor"
            )

    def scale_frequencies(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        rotations = frequencies * self.original_length / (2 * math.pi)
        smooth = ((rotations - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0.0, 1.0)
        return frequencies * (smooth + (1.0 - smooth) / self.factor)


@dataclass(frozen=True)
class YaRN(RopeScaling):
    """YaRN (Peng et al. 2023): a linear ramp over the pairs, and an attention factor that sharpens the softmax.

    The ramp starts at the pair that makes `beta_fast` rotations over `original_length` positions, whose frequency is
    unchanged. It ends at the pair that makes `beta_slow` rotations, whose frequency is divided by `factor`.
    """

    original_length: int = 4096
    beta_slow: float = 1.0
    beta_fast: float = 32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta_slow < self.beta_fast:
            raise ValueError(
                f"YaRN: beta_slow is {self.beta_slow} and beta_fast {self.beta_fast};"
                " expected beta_slow below beta_fast"
            )

    def scale_frequencies(self, frequencies: Float[Tensor, " pairs"], base: float) -> Float[Tensor, " pairs"]:
        pairs = frequencies.shape[0]

        def pair_with(rotations: float) -> float:
            return pairs * math.log(self.original_length / (rotations * 2 * math.pi)) / math.log(base)

        first = max(math.floor(pair_with(self.beta_fast)), 0)
        last = min(math.ceil(pair_with(self.beta_slow)), 2 * pairs - 1)
        indices = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        ramp = ((indices - first) / max(last - first, 1e-3)).clamp(0.0, 1.0)
        return frequencies * (1.0 - ramp + ramp / self.factor)

    @property
    def attention_factor(self) -> float:
        """Factor 0.1 · ln(factor) + 1 of rotated queries and keys; 1 if `factor` is at most 1."""
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0
