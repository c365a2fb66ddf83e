"""Wrong calls of the public API: each argument of each callable is replaced by invalid values.

A call with one replaced argument must work, or clearhead must raise an error that names the argument.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import clearhead

SOURCE = Path(clearhead.__file__).parent
OURS = (TypeError, ValueError, RuntimeError, IndexError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
BINDING = ("unexpected keyword argument", "required positional argument", "required keyword-only argument")


@dataclass(frozen=True)
class Call:
    """Callable with valid arguments, which are created again for each call."""

    name: str
    function: Callable[..., object]
    arguments: Callable[[], dict[str, Any]]
    aliases: dict[str, tuple[str, ...]] = field(default_factory=dict)  # other names of an argument in messages
    skipped: tuple[str, ...] = ()  # arguments that are not replaced


class Subclass(Tensor):
    """Tensor subclass of a user."""


VALUES: dict[str, Callable[[], object]] = {
    "None": lambda: None,
    "str": lambda: "x",
    "bytes": lambda: b"x",
    "empty list": list,
    "list": lambda: [1.5],
    "list of str": lambda: ["x"],
    "ragged list": lambda: [[1], [1, 2]],
    "long list": lambda: [1] * 999,
    "dict": lambda: {"x": 1},
    "set": lambda: {1},
    "generator": lambda: (n for n in range(3)),
    "tuple": lambda: (1, 2, 3, 4, 5),
    "slice": lambda: slice(None, None, -1),
    "type": lambda: int,
    "function": lambda: len,
    "object": object,
    "int": lambda: 7,
    "zero": lambda: 0,
    "negative": lambda: -3,
    "huge": lambda: 2**62,
    "enormous": lambda: 10**400,
    "bool": lambda: True,
    "float": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "complex": lambda: 1j,
    "fraction": lambda: Fraction(1, 3),
    "decimal": lambda: Decimal("0.5"),
    "numpy int": lambda: np.int64(2),
    "numpy float": lambda: np.float32(0.5),
    "numpy bool": lambda: np.bool_(True),
    "numpy array": lambda: np.ones((2, 3)),
    "numpy objects": lambda: np.array(["x", None], dtype=object),
    "0-dim tensor": lambda: torch.tensor(1),
    "float tensor": lambda: torch.ones(2, 3),
    "int tensor": lambda: torch.ones(3, dtype=torch.int64),
    "empty tensor": lambda: torch.empty(0),
    "meta tensor": lambda: torch.ones(2, device="meta"),
    "module": lambda: nn.Linear(2, 2),
    "device": lambda: torch.device("cpu"),
    "dtype": lambda: torch.int64,
}


def _dtype(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.detach().to(dtype)


def _longer(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.cat([tensor, tensor.narrow(axis, 0, 1)], dim=axis)


def _empty(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.narrow(axis, 0, 0)


def _filled(number: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: torch.full_like(tensor, number)


def _inference(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint64),
    *(torch.complex64, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
TENSORS: dict[str, Callable[[Tensor], object]] = {
    **{str(dtype): _dtype(dtype) for dtype in DTYPES},
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "axis more": lambda t: t[None],
    "axis less": lambda t: t[0],
    "two axes more": lambda t: t[None, None],
    **{f"axis {axis} longer": _longer(axis) for axis in range(4)},
    **{f"axis {axis} empty": _empty(axis) for axis in range(4)},
    "flat": lambda t: t.flatten(),
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "hybrid sparse": lambda t: t.to_sparse(1),
    "csr": lambda t: t.to_sparse_csr(),
    "nested": lambda t: torch.nested.nested_tensor(list(t)),
    "jagged": lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged),
    "mkldnn": lambda t: t.to_mkldnn(),
    "requires grad": lambda t: t.detach().clone().requires_grad_(),
    "parameter": lambda t: nn.Parameter(t.detach().clone()),
    "subclass": lambda t: t.as_subclass(Subclass),
    "transposed": lambda t: t.mT.contiguous().mT,
    "expanded": lambda t: t[:1].expand(t.shape),
    "inference": _inference,
    "list": lambda t: t.tolist(),
    "numpy": lambda t: t.detach().numpy(),
    "nan": _filled(float("nan")),
    "inf": _filled(float("inf")),
    "-inf": _filled(float("-inf")),
    "negative": _filled(-1),
}


def wrong_calls(call: Call) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each wrong call, with one argument replaced or unknown: the argument, the mutation, all arguments."""
    for argument, value in call.arguments().items():
        if argument in call.skipped:
            continue
        for name, make in VALUES.items():
            yield argument, name, {**call.arguments(), argument: make()}
        for name, change in TENSORS.items() if isinstance(value, Tensor) else ():
            arguments = call.arguments()
            try:
                changed = change(arguments[argument])
            except (RuntimeError, IndexError, TypeError, NotImplementedError):
                continue  # torch cannot make such a tensor of this one
            yield argument, f"tensor, {name}", {**arguments, argument: changed}
    yield "no_such_argument", "unknown", {**call.arguments(), "no_such_argument": 1}


def fault(call: Call, argument: str, arguments: dict[str, Any]) -> str | None:
    """Return the defect of a wrong call, or None if it works or raises a helpful error."""
    try:
        call.function(**arguments)
    except Exception as error:
        return _fault_of(error, (argument, *call.aliases.get(argument, ())))
    return None


def _fault_of(error: Exception, names: tuple[str, ...]) -> str | None:
    shown = f"{type(error).__name__}: {str(error)[:200]}"
    if isinstance(error, TypeError) and any(words in str(error) for words in BINDING):
        return None if names[0] in str(error) else f"does not name {names[0]}: {shown}"
    if not isinstance(error, OURS):
        return f"unexpected type of error: {shown}"
    last = error.__traceback__
    assert last is not None
    while last.tb_next is not None:
        last = last.tb_next
    if not _raised_by_us(last):
        file = last.tb_frame.f_code.co_filename
        return f"raised by {Path(file).name}:{last.tb_lineno}: {shown}"
    if not any(name in str(error) for name in names):
        return f"does not name {names[0]}: {shown}"
    return None


def _raised_by_us(last: TracebackType) -> bool:
    """Return whether the innermost frame is a `raise` in clearhead. Errors of torch's C++ code have no frame."""
    code = last.tb_frame.f_code
    inside = Path(code.co_filename).is_relative_to(SOURCE)
    return inside and dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
