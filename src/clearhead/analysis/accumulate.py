"""`HeadSums`: sums over texts of head statistics, which can be added, all-reduced and saved."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from clearhead.distributed.process_group import ProcessGroup
from clearhead.weights import serialization

FORMAT, VERSION = "clearhead.HeadSums", 1


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Sums of statistics over texts. Their size does not depend on the texts. Counts up to 2⁵³ are exact.

    Attributes:
        model: name of the model.
        heads: number of heads of each layer, by stack.
        sums: sums by name.
    """

    model: str
    heads: dict[str, list[int]]
    sums: dict[str, Float64[Tensor, ...]]

    @classmethod
    def empty(cls) -> HeadSums:
        """Return empty sums, the neutral element of addition."""
        return cls("", {}, {})

    def __add__(self, other: HeadSums) -> HeadSums:
        sums = dict(self.sums)
        for name, values in other.sums.items():
            sums[name] = sums[name] + values if name in sums else values
        return HeadSums(self.model or other.model, self.heads | other.heads, sums)

    def warn_of_nan(self, label: str) -> bool:
        """Warn if a sum is NaN, and return whether one is. Name the text, by its label, and its first such layer."""
        name = next((name for name, values in self.sums.items() if values.isnan().any()), None)
        if name is None:
            return False
        stack, _, layer = name.rpartition(".")[0].rpartition(".")
        if layer == "sums":  # one tensor has the heads of all layers
            parts = self.sums[name].split(self.heads[stack])
            layer = next(index for index, part in enumerate(parts) if part.isnan().any())
        warnings.warn(
            f"{label}: the statistics of layer {layer} of {stack!r} are NaN, so means over all texts are NaN too"
            " (indices count from 0)",
            stacklevel=3,
        )
        return True

    def all_reduce(self, process_group: ProcessGroup) -> HeadSums:
        """Return the sums over all processes, with one all-reduce.

        The names may differ between processes, because some may have no texts.
        """
        if process_group.world_size == 1:
            return self
        shapes_here = {name: tuple(values.shape) for name, values in self.sums.items()}
        contents = process_group.all_gather((self.model, self.heads, shapes_here))
        shapes = {name: shape for _, _, rank_shapes in contents for name, shape in sorted(rank_shapes.items())}
        parts = {name: self.sums.get(name, torch.zeros(shape, dtype=torch.float64)) for name, shape in shapes.items()}
        flat = torch.cat([values.flatten() for values in parts.values()] or [torch.zeros(0).double()])
        split = process_group.all_reduce(flat).split([values.numel() for values in parts.values()])
        heads = {name: counts for _, rank_heads, _ in contents for name, counts in rank_heads.items()}
        model = next((name for name, _, _ in contents if name), self.model)
        sums = {name: values.view(shape) for (name, shape), values in zip(shapes.items(), split, strict=True)}
        return HeadSums(model, heads, sums)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sums to one safetensors file."""
        header = {"format": FORMAT, "version": VERSION, "model": self.model, "heads": self.heads}
        serialization.write(path, self.sums, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadSums:
        """Read a file written by `save`. Refuse a file without a checksum, because it can be computed again."""
        sums, header = serialization.read(path, FORMAT, VERSION, "cpu", need_checksum=True)
        if not isinstance(header.get("model"), str) or not isinstance(header.get("heads"), dict):
            raise ValueError(f"{path}: saved by HeadSums.save, but without model or heads")
        return cls(header["model"], header["heads"], sums)
