"""`HeadSums`: sums over texts of what a model's heads do, which can be added up, kept in a file, and shared."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from clearhead.distributed.process_group import ProcessGroup
from clearhead.weights import serialization

FORMAT, VERSION = "clearhead.HeadSums", 1


@dataclass(frozen=True, eq=False)
class HeadSums:
    """Sums by name. Their size does not depend on the texts, and counts up to 2⁵³ are exact."""

    model: str
    heads: dict[str, list[int]]  # by stack: how many each layer has
    sums: dict[str, Float64[Tensor, "*shape"]]

    def __add__(self, other: HeadSums) -> HeadSums:
        sums = dict(self.sums)
        for name, own in other.sums.items():
            sums[name] = sums[name] + own if name in sums else own
        return HeadSums(self.model or other.model, self.heads | other.heads, sums)

    def all_reduce(self, process_group: ProcessGroup) -> HeadSums:
        """Of all processes, by one all-reduce. They need not have the same names: some may have read nothing."""
        if process_group.world_size == 1:
            return self
        own = (self.model, self.heads, {name: tuple(one.shape) for name, one in self.sums.items()})
        every = process_group.all_gather(own)
        shapes = {name: shape for _, _, found in every for name, shape in sorted(found.items())}
        parts = {name: self.sums.get(name, torch.zeros(shape, dtype=torch.float64)) for name, shape in shapes.items()}
        whole = process_group.all_reduce(
            torch.cat([one.flatten() for one in parts.values()] or [torch.zeros(0).double()])
        )
        split = whole.split([one.numel() for one in parts.values()])
        heads = {name: counts for _, found, _ in every for name, counts in found.items()}
        model = next((name for name, _, _ in every if name), self.model)
        sums = {name: flat.view(shape) for (name, shape), flat in zip(shapes.items(), split, strict=True)}
        return HeadSums(model, heads, sums)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file."""
        about = {"format": FORMAT, "version": VERSION, "model": self.model, "heads": self.heads}
        serialization.write(path, self.sums, about)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadSums:
        """Read a file written by `save`; one without a checksum is refused, because it can be made again."""
        sums, facts = serialization.read(path, FORMAT, VERSION, "cpu", need_checksum=True)
        if not isinstance(facts.get("model"), str) or not isinstance(facts.get("heads"), dict):
            raise ValueError(f"{path}: saved by HeadSums.save, but without model or heads")
        return cls(facts["model"], facts["heads"], sums)


def nothing() -> HeadSums:
    """Of no text."""
    return HeadSums("", {}, {})
