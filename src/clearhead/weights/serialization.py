"""Storage of lazy matrices in safetensors files, without pickle."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clearhead._utils import checksums
from clearhead._utils.files import is_pipe_or_device, replacing, resolve_target
from clearhead._utils.suffixes import check_suffix
from clearhead._utils.tensor_checks import FLOAT_DTYPES
from clearhead._utils.text import one_line
from clearhead.ops.arguments import check_scale, check_softcap
from clearhead.ops.call import PARTS, TENSORS, AttentionCall

FORMAT, VERSION = "clearhead.AttentionWeights", 1
Facts = dict[str, Any]
# parts of a call that are not stored, and parts whose name in the file differs from that in `PARTS`
_LEFT_OUT = {"seed", "dropout"}
_NAMES = {"tensor_bias": "bias"}
_DTYPES = {"ranges": torch.int32, "query_start": torch.int64, "dense": torch.bool}  # all others have a float dtype
_TENSORS = {_NAMES.get(name, name): PARTS[name] for name in TENSORS if name not in _LEFT_OUT}


def save(path: str | os.PathLike[str], call: AttentionCall, lse: Tensor, normalized: bool = True) -> None:
    """Write a call and its log-sum-exp to a file."""
    tensors, facts = pack(call, lse, normalized)
    write(path, tensors, {"format": FORMAT, "version": VERSION, **facts})


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> tuple[AttentionCall, Tensor, bool]:
    """Return the arguments of `save`; any other file raises a one-line error."""
    tensors, facts = read(path, FORMAT, VERSION, device)
    try:
        return unpack(tensors, facts)
    except KeyError as error:
        raise ValueError(f"{path}: saved by AttentionWeights.save, but without {error.args[0]}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: saved by AttentionWeights.save, but damaged ({one_line(error)})") from None


def pack(call: AttentionCall, lse: Tensor, normalized: bool = True) -> tuple[dict[str, Tensor], Facts]:
    """Return a matrix as tensors and JSON metadata; `normalized` if `lse` is the log-sum-exp of the call."""
    parts = {name: part for name, part in call.parts().items() if name not in _LEFT_OUT}
    parts["query_start"] = torch.as_tensor(parts["query_start"])
    tensors = {_NAMES.get(name, name): part for name, part in parts.items() if isinstance(part, Tensor)}
    facts: Facts = {name: part for name, part in parts.items() if not PARTS[name].is_tensor}
    facts |= {"mask": None if call.mask is None else repr(call.mask)} | ({} if normalized else {"normalized": False})
    return tensors | {"lse": lse}, facts


def unpack(tensors: dict[str, Tensor], facts: Facts) -> tuple[AttentionCall, Tensor, bool]:
    """Rebuild the arguments of `pack` from its results.

    Raises:
        KeyError: if a tensor or a metadata entry is missing.
        ValueError: if one has an unexpected type, dtype, shape or value.
    """
    missing = {"query", "key", "lse", "query_start", "scale", "softcap", "mask"} - {*tensors, *facts}
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    _check_facts(facts)
    _check_dtypes(tensors)
    _check_shapes(tensors)
    if facts["mask"] is not None and tensors["key"].shape[-1] and not {"ranges", "dense"} & {*tensors}:
        raise KeyError("ranges, dense")  # a mask is stored as ranges or dense, unless folded into the scores
    start = tensors["query_start"]
    parts: dict[str, Any] = {name: (tensors | facts).get(_NAMES.get(name, name)) for name in PARTS}
    parts |= {"query_start": start if start.ndim else int(start), "dropout": 0.0, "seed": None}
    return AttentionCall.from_parts(parts, facts["mask"]), tensors["lse"], facts.get("normalized", True) is True


def _check_facts(facts: Facts) -> None:
    """Raise if the metadata has values that no call can have; the file may be damaged or crafted."""
    for name, kinds, expected in (
        ("scale", (int, float), "a number"),
        ("softcap", (int, float, type(None)), "a number or null"),
        ("mask", (str, type(None)), "a string or null"),
    ):
        if not isinstance(facts[name], kinds) or isinstance(facts[name], bool):
            raise ValueError(f"{name} is {facts[name]!r}; expected {expected}")
    check_scale(facts["scale"], key_dim=1)
    check_softcap(facts["softcap"])


def _check_dtypes(tensors: dict[str, Tensor]) -> None:
    for name in (name for name in _TENSORS if name in tensors):
        expected, dtype = _DTYPES.get(name), tensors[name].dtype
        if dtype != expected if expected else dtype not in FLOAT_DTYPES:
            raise ValueError(f"{name} has dtype {dtype}; expected {expected or ', '.join(map(str, FLOAT_DTYPES))}")
    exact = torch.float64 if tensors["query"].dtype == torch.float64 else torch.float32
    if tensors["lse"].dtype != exact:
        raise ValueError(f"lse has dtype {tensors['lse'].dtype}; expected {exact}")
    for name in {"key", "value"} & {*tensors}:
        if tensors[name].dtype != tensors["query"].dtype:
            dtype, expected = tensors[name].dtype, tensors["query"].dtype
            raise ValueError(f"{name} has dtype {dtype}; expected that of query, {expected}")


def _check_shapes(tensors: dict[str, Tensor]) -> None:
    """Raise if the tensors are not parts of one matrix."""
    query, key = tensors["query"], tensors["key"]
    if query.ndim != 4 or key.ndim != 4:
        raise ValueError(f"query is {tuple(query.shape)}, key {tuple(key.shape)}; expected 4 axes each")
    sizes = dict(zip((*PARTS["query"].axes, *PARTS["key"].axes[1:3]), (*query.shape, *key.shape[1:3]), strict=True))
    if sizes["kv_heads"] == 0 or sizes["heads"] % sizes["kv_heads"]:
        raise ValueError(f"{sizes['heads']} heads share {sizes['kv_heads']} key heads; expected a multiple")
    if "value" in tensors and tensors["value"].ndim == 4:
        sizes["value_dim"] = tensors["value"].shape[3]
    axes = {name: part.axes for name, part in _TENSORS.items()} | {"lse": PARTS["query"].axes[:3]}
    for name in (name for name in axes if name in tensors and name not in ("query_start", "ranges")):
        shape, expected = tensors[name].shape, tuple(sizes.get(axis, -1) for axis in axes[name])
        if name in _TENSORS and _TENSORS[name].broadcasts:
            sizes_fit = all(size in (1, full) for size, full in zip(shape[::-1], expected[::-1], strict=False))
            if len(shape) > len(expected) or not sizes_fit:
                raise ValueError(f"{name} is {tuple(shape)}; expected a shape that broadcasts to {expected}")
        elif shape != expected:
            raise ValueError(f"{name} is {tuple(shape)}; expected {expected}")
    _check_positions(tensors, sizes["batch"], sizes["q_len"], sizes["kv_len"])


def _check_positions(tensors: dict[str, Tensor], batch: int, q_len: int, kv_len: int) -> None:
    start, ranges = tensors["query_start"], tensors.get("ranges")
    if start.shape not in ((), (batch,)):
        raise ValueError(f"query_start is {tuple(start.shape)}; expected () or ({batch},)")
    if bool((start < -(2**31)).any() or (start >= 2**31).any()):
        raise ValueError("query_start is out of range; expected positions between −2³¹ and 2³¹")
    if ranges is None:
        return
    if ranges.ndim != 4 or ranges.shape[1:] not in ((2, 1, q_len), (2, batch, q_len)):
        raise ValueError(f"ranges is {tuple(ranges.shape)}; expected (ranges, 2, {batch} or 1, {q_len})")
    first, last = ranges.unbind(dim=1)
    if bool((first < 0).any() or (last > kv_len).any() or (first > last).any()):
        raise ValueError(f"ranges has keys outside 0 to {kv_len}, or ends before it begins")


def write(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], facts: Facts, *, backup: Path | None = None
) -> None:
    """Write tensors and metadata to one safetensors file with a checksum (`clearhead._utils.checksums`).

    Args:
        path: the file to write, atomically.
        tensors: tensors by name.
        facts: JSON metadata.
        backup: path to which an existing file at `path` is moved.
    """
    check_suffix("path", path, "safetensors")
    if is_pipe_or_device(resolve_target(path)):
        raise ValueError(f"{path}: a pipe or a device; expected the name of a file")
    with replacing(path, backup=backup) as temporary:
        try:
            save_file(_unshared(tensors), temporary, {"clearhead": json.dumps(checksums.blank(facts))})
        except SafetensorError as error:  # raised for a full disk, among others
            reason = re.sub(r" at path .*", "", str(error))  # the path is that of the temporary file
            raise OSError(f"{path}: cannot be written ({reason})") from None
        checksums.seal(temporary)


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors of which no two share memory, which safetensors rejects."""
    result, seen = {}, set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        memory = plain.untyped_storage().data_ptr()
        result[name] = plain.clone() if memory in seen else plain
        seen.add(memory)
    return result


def read(
    path: str | os.PathLike[str],
    expected: str,
    version: int,
    device: torch.device | str,
    *,
    need_checksum: bool = False,
) -> tuple[dict[str, Tensor], Facts]:
    """Read tensors and metadata from a file of the expected format.

    Args:
        path: the file to read.
        expected: name of the format.
        version: latest supported version of the format.
        device: device of the tensors.
        need_checksum: raise an error for a file without a checksum, as earlier versions wrote them. Default: warn.

    Raises:
        ValueError: in one line, if the file has another format, is incomplete or does not match its checksum.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path}: a folder; expected a file")
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    with _opened(path, "cpu") as file:
        facts = json.loads((file.metadata() or {}).get("clearhead", "{}"))
    has_checksum = isinstance(facts, dict) and checksums.is_announced(facts)
    if has_checksum and not checksums.matches(path):
        raise ValueError(f"{path}: damaged (its contents do not match its checksum)")
    if not isinstance(facts, dict) or facts.get("format") != expected:
        raise ValueError(f"{path}: a safetensors file, but not saved by {expected.removeprefix('clearhead.')}.save")
    stored_version = facts.get("version")
    if type(stored_version) is not int or not 0 < stored_version <= version:  # True would count as 1
        raise ValueError(f"{path}: format version {stored_version!r}, but this clearhead reads 1 to {version}")
    if not has_checksum:
        message = f"{path}: carries no checksum"
        if need_checksum:
            raise ValueError(message)
        warnings.warn(f"{message} (an earlier clearhead wrote it), so damage is not detected", stacklevel=3)
    with _opened(path, device) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors, checksums.without_checksum(facts)


@contextmanager
def _opened(path: str | os.PathLike[str], device: torch.device | str) -> Iterator[Any]:
    """Open a safetensors file; any failure to read it raises a ValueError."""
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            yield file
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a complete safetensors file ({one_line(error)})") from None
