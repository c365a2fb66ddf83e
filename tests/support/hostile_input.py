"""Hostile names and arguments, damaged recordings, and a command runner that distinguishes errors from tracebacks."""

import copy
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from typer.testing import CliRunner

from clearhead import ALiBi, Causal, Padding, Recording, attention
from clearhead.cli import app
from clearhead.recording.recording import FORMAT, VERSION, Stack
from clearhead.weights import serialization
from support.recordings import decoder, tokens, translation

# text that a terminal, rich, HTML, LaTeX, Markdown, JSON or a spreadsheet interprets
NAMES = (
    "\x1b]0;title\x07\x1b[2J",
    "\x9b31m\x90q",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "my[/model]",
    "llama[v2]",
    "[bold red]x[/]",
    ":smile: \\[x]",
    "right\u202eleft\u2066x\u2069",
    "line\nbreak\r\ttab\x00nul\x7f",
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)> '",
    "\\input{/etc/passwd} $x$ %&_#^~{}",
    "| a | *b* [c](javascript:x) `d` <b>",
    "=HYPERLINK(1)",
    "{{ 7 * 7 }} ${7} %s {0}",
    "\u2028\u2029\ufeff\u200b\u0085",
    "e\u0301 👩\u200d👩\u200d👧 日本",
    "",
    " ",
    "x" * 5000,
)

# values for any option or argument
ARGUMENTS = (
    "", " ", "-", "--", "-x", "--nope", "\udcff", "a\udcffb", "\x1b[2J", "my[/model]", "👩\u200d👩\u200d👧", "日本",
    "0", "-1", "1", "3", "1e999", "nan", "٣", "9" * 30, "9" * 5000, "x" * 3000, "0-9999999999", "0-" + "9" * 5000,
    "5-1", "0,,1", ",", "/dev/null", "/dev/zero", "/", ".", "/nowhere/x", "x" * 300 + ".safetensors",
    "none.safetensors", "cpu", "cuda:99", "meta", "en-ja", "song", "float8", "a,b,c", "é.toml", "nested.toml",
    "nested.json",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str
    traceback: str  # of an unexpected error; empty otherwise


def run_cli(*arguments: object) -> Outcome:
    """Run one command in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    error = result.exception
    traceback = "" if error is None or isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    if "unexpected error" in result.stderr:
        traceback = result.stderr
    return Outcome(result.exit_code, result.stdout, result.stderr, traceback)


def controls(text: str) -> set[str]:
    """Return the control characters in a command's output, except line breaks."""
    bidi = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    return {letter for letter in text if (letter < " " and letter != "\n") or "\x7f" <= letter <= "\x9f"} | (
        bidi & set(text)
    )


def damaged(path: Path, seed: int) -> str:
    """Write a recording with one to three defects; return a description of them."""
    draw = random.Random(seed)
    recording = draw.choice((_plain, _decorated, _translated))()
    recording.save(path)
    tensors, metadata = serialization.read(path, FORMAT, VERSION, "cpu")
    changes = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice(
            (_change_tensor, _change_tensor, change_metadata, change_metadata, _change_name, _empty_axis)
        )
        changes.append(change(draw, tensors, metadata))
    try:
        serialization.write(path, tensors, metadata)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:  # the file format cannot store the change
        changes.append(f"not written: {error}")
    if draw.random() < 0.2:
        changes.append(_change_bytes(draw, path))
    return "; ".join(changes)


def _plain() -> Recording:
    return decoder(["<s>", *"abcdefgh"], special=(0,))


def _translated() -> Recording:
    return translation(["a", "b", "c"], ["x", "y"])


def _decorated() -> Recording:
    """Return a recording with a bias, slopes, sinks, a dense mask and a query start per sequence."""
    query = torch.randn(1, 4, 7, 8)
    axis = tokens("abcdefg", special=(0, 6))
    options = (
        {"mask": Causal(), "bias": torch.randn(7, 7), "sinks": torch.randn(4)},
        {"mask": torch.rand(7, 7) > 0.5, "softcap": 3.0},
        {"mask": Padding([5]) & Causal(), "bias": ALiBi([0.5, 0.25, 0.1, 0.05]), "query_start": torch.tensor([2])},
    )
    layers = [attention(query, query[:, :2], query[:, :2], return_weights=True, **kwargs)[1] for kwargs in options]
    return Recording("decorated", {"decoder": Stack(tuple(layers), axis, axis)})


def _change_tensor(draw: random.Random, tensors: dict, metadata: dict) -> str:
    if not tensors:
        return "no tensor left"
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    kinds = {
        "removed": lambda: None,
        "scalar": lambda: torch.zeros((), dtype=tensor.dtype),
        "empty": lambda: tensor.flatten()[:0],
        "flat": lambda: tensor.flatten(),
        "axis": lambda: tensor[None],
        "cut": lambda: tensor[..., :-1] if tensor.ndim else tensor[None],
        "doubled": lambda: torch.cat([tensor, tensor], dim=draw.randrange(tensor.ndim)) if tensor.ndim else tensor,
        "float8": lambda: tensor.float().to(torch.float8_e4m3fn),
        "float8 scale": lambda: tensor.float().to(torch.float8_e8m0fnu),
        "float64": lambda: tensor.double(),
        "float16": lambda: tensor.half(),
        "int64": lambda: tensor.long(),
        "int8": lambda: tensor.to(torch.int8),
        "bool": lambda: tensor.bool(),
        "complex": lambda: tensor.to(torch.complex64),
        "nan": lambda: _full(tensor, float("nan")),
        "inf": lambda: _full(tensor, float("inf")),
        "-inf": lambda: _full(tensor, float("-inf")),
        "largest": lambda: _full(tensor, _limits(tensor).max),
        "smallest": lambda: _full(tensor, _limits(tensor).min),
        "near the end": lambda: _full(tensor, _limits(tensor).max - draw.choice((1, 2, 8, 1000))),
        "zero": lambda: torch.zeros_like(tensor),
        "-1": lambda: _full(tensor, -1),
    }
    kind = draw.choice(sorted(kinds))
    try:
        changed = kinds[kind]()
    except (
        RuntimeError,
        TypeError,
        NotImplementedError,
        IndexError,
        OverflowError,
    ):  # the dtype does not support the change
        return f"{name} unchanged"
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    return f"{name} {kind}"


def _full(tensor: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full_like(tensor, value)


def _limits(tensor: torch.Tensor):
    return torch.finfo(tensor.dtype) if tensor.is_floating_point() else torch.iinfo(tensor.dtype)


def change_metadata(draw: random.Random, tensors: dict, metadata: dict) -> str:
    """Replace, remove or repeat one node of the metadata."""
    paths = list(_paths(metadata, ()))
    path = draw.choice(paths)
    parent = metadata
    for key in path[:-1]:
        parent = parent[key]
    values = (
        None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x",
        "\ud800", "\x00", [], [[]], {}, [None], [1, 2], {"a": 1}, ["x"], [[[[[]]]]], *NAMES,
    )  # fmt: skip
    kind = draw.choice(("replaced", "replaced", "replaced", "removed", "repeated"))
    if kind == "removed":
        del parent[path[-1]]
    elif kind == "repeated" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[path[-1]]))
    else:
        parent[path[-1]] = value = copy.deepcopy(draw.choice(values))
        kind = f"is {str(value)[:30]!r}"
    return f"{'.'.join(map(str, path))} {kind}"


def _paths(node, prefix):
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        if prefix or key not in ("format", "version"):
            yield (*prefix, key)
        yield from _paths(child, (*prefix, key))


def _change_name(draw: random.Random, tensors: dict, metadata: dict) -> str:
    """Change the name of the model, of a stack or of a token to a hostile name."""
    name, stacks = draw.choice(NAMES), metadata.get("stacks")
    kind = draw.choice(("model", "stack", "token"))
    if kind == "model" or not isinstance(stacks, dict) or not stacks:
        metadata["model"] = name
        return f"model {name[:20]!r}"
    old = draw.choice(sorted(stacks))
    if kind == "stack":
        metadata["stacks"] = {name if key == old else key: about for key, about in stacks.items()}
        for key in [key for key in tensors if key.startswith(f"{old}.")]:
            tensors[name + key.removeprefix(old)] = tensors.pop(key)
        return f"stack {name[:20]!r}"
    for side in ("queries", "keys"):
        texts = stacks[old].get(side) if isinstance(stacks[old], dict) else None
        if isinstance(texts, dict) and isinstance(texts.get("texts"), list) and texts["texts"]:
            texts["texts"][-1] = name
    return f"token {name[:20]!r}"


def _empty_axis(draw: random.Random, tensors: dict, metadata: dict) -> str:
    """Remove all heads, queries, keys, layers, stacks or tokens, and keep the rest consistent."""
    kind = draw.choice(("heads", "queries", "keys", "both", "layers", "stacks", "tokens"))
    stacks = metadata.get("stacks")
    if kind == "stacks" or not isinstance(stacks, dict) or not stacks:
        metadata["stacks"] = {}
        return "no stacks"
    stack = draw.choice(sorted(stacks))
    about = stacks[stack]
    if not isinstance(about, dict):
        return "stack unchanged"
    if kind == "layers":
        about["layers"] = []
        return f"{stack} without layers"
    axes = {
        "heads": {"query": 1, "key": 1, "value": 1, "lse": 1, "slopes": 0, "sinks": 0},
        "queries": {"query": 2, "lse": 2, "ranges": 3},
        "keys": {"key": 2, "value": 2},
    }
    axes["both"] = axes["tokens"] = {**axes["keys"], **axes["queries"]}
    for name, tensor in tensors.items():
        axis = axes[kind].get(name.rsplit(".", 1)[-1])
        if name.startswith(f"{stack}.") and axis is not None and axis < tensor.ndim:
            tensors[name] = tensor.narrow(axis, 0, 0)
    for side in {"queries": ("queries",), "keys": ("keys",), "heads": ()}.get(kind, ("queries", "keys")):
        about[side] = {"texts": [], "special": [], "words": []}
    return f"{stack} without {kind}"


def _change_bytes(draw: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "flip header", "cut", "more", "empty"))
    if kind == "cut":
        del content[draw.randrange(len(content)) :]
    elif kind == "more":
        content += draw.randbytes(9)
    elif kind == "empty":
        content.clear()
    elif content:
        offset = draw.randrange(len(content) if kind == "flip" else min(3000, len(content)))
        content[offset] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"bytes: {kind}"
