"""A lazy matrix as one safetensors file: never pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead.biases import ALiBi
from clearhead.files import replacing
from clearhead.masks import Fixed, Lowered
from clearhead.problem import Problem

FORMAT, VERSION = "clearhead.AttentionWeights", 1


def save(path: str | os.PathLike[str], problem: Problem, lse: Tensor) -> None:
    """Everything the matrix follows from, and lse."""
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
    # clones: the file format refuses tensors that share memory, as query and key may
    kept = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items() if t is not None}
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "scale": problem.scale,
        "softcap": problem.softcap,
        "mask": None if problem.mask is None else repr(problem.mask),
    }
    with replacing(path) as temporary:
        save_file(kept, temporary, {"clearhead": json.dumps(facts)})


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> tuple[Problem, Tensor]:
    """What `save` wrote: the problem and lse. Anything else is refused in one line."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            facts = json.loads((file.metadata() or {}).get("clearhead", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if facts.get("format") != FORMAT:
        raise ValueError(f"{path}: a safetensors file, but not saved by AttentionWeights.save")
    if facts.get("version", 0) > VERSION:
        raise ValueError(f"{path}: format version {facts['version']}, but this clearhead reads up to {VERSION}")
    missing = {"query", "key", "lse", "query_start", "scale", "softcap", "mask"} - {*tensors, *facts}
    if missing:
        raise ValueError(f"{path}: saved by AttentionWeights.save, but without {', '.join(sorted(missing))}")
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
