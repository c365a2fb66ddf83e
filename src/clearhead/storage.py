"""A lazy matrix, or many, as one safetensors file: never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.biases import ALiBi
from clearhead.files import replacing
from clearhead.masks import Fixed, Lowered
from clearhead.problem import Problem

FORMAT, VERSION = "clearhead.AttentionWeights", 1
Facts = dict[str, Any]


def save(path: str | os.PathLike[str], problem: Problem, lse: Tensor) -> None:
    """Everything the matrix follows from, and lse."""
    tensors, facts = pack(problem, lse)
    write(path, tensors, {"format": FORMAT, "version": VERSION, **facts})


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> tuple[Problem, Tensor]:
    """What `save` wrote: the problem and lse. Anything else is refused in one line."""
    tensors, facts = read(path, FORMAT, VERSION, device)
    try:
        return unpack(tensors, facts)
    except KeyError as error:
        raise ValueError(f"{path}: saved by AttentionWeights.save, but without {error.args[0]}") from None


def pack(problem: Problem, lse: Tensor) -> tuple[dict[str, Tensor], Facts]:
    """A matrix as tensors and what else it takes."""
    lowered = problem.lower()
    tensors = {
        "query": problem.query,
        "key": problem.key,
        "value": problem.value,
        "lse": lse,
        "bias": problem.tensor_bias,
        "slopes": problem.slopes,
        "sinks": problem.sinks,
        "ranges": lowered.ranges,
        "dense": lowered.dense,
        "query_start": torch.as_tensor(problem.query_start),
    }
    facts = {
        "scale": problem.scale,
        "softcap": problem.softcap,
        "mask": None if problem.mask is None else repr(problem.mask),
    }
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}, facts


def unpack(tensors: dict[str, Tensor], facts: Facts) -> tuple[Problem, Tensor]:
    """What was packed; a KeyError names what is not there."""
    missing = {"query", "key", "lse", "query_start", "scale", "softcap", "mask"} - {*tensors, *facts}
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    start, slopes = tensors["query_start"], tensors.get("slopes")
    lowered = Lowered(tensors.get("ranges"), tensors.get("dense"))
    problem = Problem(
        tensors["query"],
        tensors["key"],
        tensors.get("value"),
        mask=None if facts["mask"] is None else Fixed(lowered, facts["mask"]),
        bias=tensors.get("bias") if slopes is None else ALiBi(slopes),
        scale=facts["scale"],
        softcap=facts["softcap"],
        sinks=tensors.get("sinks"),
        dropout=0.0,
        query_start=start if start.ndim else int(start),
        seed=None,
    )
    return problem, tensors["lse"]


def write(path: str | os.PathLike[str], tensors: dict[str, Tensor], facts: Facts) -> None:
    # clones: the file format refuses tensors that share memory, as query and key may
    kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(kept, temporary, {"clearhead": json.dumps(facts)})
        except SafetensorError as error:  # its name for a full disk
            raise OSError(f"{path}: cannot be written ({error})") from None


def read(
    path: str | os.PathLike[str], expected: str, version: int, device: torch.device | str
) -> tuple[dict[str, Tensor], Facts]:
    """Tensors and facts of a file of the expected format; another, or half a file, is refused in one line."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            facts = json.loads((file.metadata() or {}).get("clearhead", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if facts.get("format") != expected:
        raise ValueError(f"{path}: a safetensors file, but not saved by {expected.removeprefix('clearhead.')}.save")
    if facts.get("version", 0) > version:
        raise ValueError(f"{path}: format version {facts['version']}, but this clearhead reads up to {version}")
    return tensors, facts
