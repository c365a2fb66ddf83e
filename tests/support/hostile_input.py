"""Hostile names, hostile arguments and damaged recordings, and a runner that tells an error from a traceback."""

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

# what a terminal, rich, HTML, LaTeX, Markdown, JSON or a spreadsheet acts on
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
    traceback: str  # "" unless the program failed in a way nobody planned


def typed(*arguments: object) -> Outcome:
    """Run one command in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    found = result.exception
    broken = "" if found is None or isinstance(found, SystemExit) else f"{type(found).__name__}: {found}"
    if "unexpected error" in result.stderr:
        broken = result.stderr
    return Outcome(result.exit_code, result.stdout, result.stderr, broken)


def controls(text: str) -> set[str]:
    """The characters of a command's output that a terminal would act on, line ends apart."""
    bidi = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    return {letter for letter in text if (letter < " " and letter != "\n") or "\x7f" <= letter <= "\x9f"} | (
        bidi & set(text)
    )


def damaged(path: Path, seed: int) -> str:
    """Write a recording with one to three things wrong in it; returns what was done."""
    draw = random.Random(seed)
    made = draw.choice((_plain, _decorated, _translated))()
    made.save(path)
    tensors, facts = serialization.read(path, FORMAT, VERSION, "cpu")
    said = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice((_change_tensor, _change_tensor, change_fact, change_fact, _change_name, _empty_axis))
        said.append(change(draw, tensors, facts))
    try:
        serialization.write(path, tensors, facts)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:  # a change that no file can hold
        said.append(f"not written: {error}")
    if draw.random() < 0.2:
        said.append(_change_bytes(draw, path))
    return "; ".join(said)


def _plain() -> Recording:
    return decoder(["<s>", *"abcdefgh"], special=(0,))


def _translated() -> Recording:
    return translation(["a", "b", "c"], ["x", "y"])


def _decorated() -> Recording:
    """With a bias, slopes, sinks, a dense mask and a start for each sequence."""
    query = torch.randn(1, 4, 7, 8)
    own = tokens("abcdefg", special=(0, 6))
    options = (
        {"mask": Causal(), "bias": torch.randn(7, 7), "sinks": torch.randn(4)},
        {"mask": torch.rand(7, 7) > 0.5, "softcap": 3.0},
        {"mask": Padding([5]) & Causal(), "bias": ALiBi([0.5, 0.25, 0.1, 0.05]), "query_start": torch.tensor([2])},
    )
    layers = [attention(query, query[:, :2], query[:, :2], return_weights=True, **own)[1] for own in options]
    return Recording("decorated", {"decoder": Stack(tuple(layers), own, own)})


def _change_tensor(draw: random.Random, tensors: dict, facts: dict) -> str:
    if not tensors:
        return "no tensor left"
    name = draw.choice(sorted(tensors))
    own = tensors[name]
    kinds = {
        "removed": lambda: None,
        "scalar": lambda: torch.zeros((), dtype=own.dtype),
        "empty": lambda: own.flatten()[:0],
        "flat": lambda: own.flatten(),
        "axis": lambda: own[None],
        "cut": lambda: own[..., :-1] if own.ndim else own[None],
        "doubled": lambda: torch.cat([own, own], dim=draw.randrange(own.ndim)) if own.ndim else own,
        "float8": lambda: own.float().to(torch.float8_e4m3fn),
        "float8 scale": lambda: own.float().to(torch.float8_e8m0fnu),
        "float64": lambda: own.double(),
        "float16": lambda: own.half(),
        "int64": lambda: own.long(),
        "int8": lambda: own.to(torch.int8),
        "bool": lambda: own.bool(),
        "complex": lambda: own.to(torch.complex64),
        "nan": lambda: _full(own, float("nan")),
        "inf": lambda: _full(own, float("inf")),
        "-inf": lambda: _full(own, float("-inf")),
        "largest": lambda: _full(own, _limits(own).max),
        "smallest": lambda: _full(own, _limits(own).min),
        "near the end": lambda: _full(own, _limits(own).max - draw.choice((1, 2, 8, 1000))),
        "zero": lambda: torch.zeros_like(own),
        "-1": lambda: _full(own, -1),
    }
    kind = draw.choice(sorted(kinds))
    try:
        changed = kinds[kind]()
    except (RuntimeError, TypeError, NotImplementedError, IndexError, OverflowError):  # this dtype has no such value
        return f"{name} as it was"
    if changed is None:
        del tensors[name]
    else:
        tensors[name] = changed
    return f"{name} {kind}"


def _full(own: torch.Tensor, value: float) -> torch.Tensor:
    return torch.full_like(own, value)


def _limits(own: torch.Tensor):
    return torch.finfo(own.dtype) if own.is_floating_point() else torch.iinfo(own.dtype)


def change_fact(draw: random.Random, tensors: dict, facts: dict) -> str:
    """One node of the metadata replaced, removed or repeated."""
    places = list(_places(facts, ()))
    where = draw.choice(places)
    parent = facts
    for key in where[:-1]:
        parent = parent[key]
    values = (
        None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x",
        "\ud800", "\x00", [], [[]], {}, [None], [1, 2], {"a": 1}, ["x"], [[[[[]]]]], *NAMES,
    )  # fmt: skip
    kind = draw.choice(("replaced", "replaced", "replaced", "removed", "repeated"))
    if kind == "removed":
        del parent[where[-1]]
    elif kind == "repeated" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[where[-1]]))
    else:
        parent[where[-1]] = value = copy.deepcopy(draw.choice(values))
        kind = f"is {str(value)[:30]!r}"
    return f"{'.'.join(map(str, where))} {kind}"


def _places(node, before):
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, below in items:
        if before or key not in ("format", "version"):
            yield (*before, key)
        yield from _places(below, (*before, key))


def _change_name(draw: random.Random, tensors: dict, facts: dict) -> str:
    """A hostile model, stack or token name in a file that is otherwise whole."""
    name, stacks = draw.choice(NAMES), facts.get("stacks")
    kind = draw.choice(("model", "stack", "token"))
    if kind == "model" or not isinstance(stacks, dict) or not stacks:
        facts["model"] = name
        return f"model {name[:20]!r}"
    old = draw.choice(sorted(stacks))
    if kind == "stack":
        facts["stacks"] = {name if own == old else own: about for own, about in stacks.items()}
        for key in [key for key in tensors if key.startswith(f"{old}.")]:
            tensors[name + key.removeprefix(old)] = tensors.pop(key)
        return f"stack {name[:20]!r}"
    for side in ("queries", "keys"):
        texts = stacks[old].get(side) if isinstance(stacks[old], dict) else None
        if isinstance(texts, dict) and isinstance(texts.get("texts"), list) and texts["texts"]:
            texts["texts"][-1] = name
    return f"token {name[:20]!r}"


def _empty_axis(draw: random.Random, tensors: dict, facts: dict) -> str:
    """No heads, no queries, no keys, no layers or no stacks, everything else consistent with it."""
    kind = draw.choice(("heads", "queries", "keys", "both", "layers", "stacks", "tokens"))
    stacks = facts.get("stacks")
    if kind == "stacks" or not isinstance(stacks, dict) or not stacks:
        facts["stacks"] = {}
        return "no stacks"
    stack = draw.choice(sorted(stacks))
    about = stacks[stack]
    if not isinstance(about, dict):
        return "stack as it was"
    if kind == "layers":
        about["layers"] = []
        return f"{stack} without layers"
    cut = {
        "heads": {"query": 1, "key": 1, "value": 1, "lse": 1, "slopes": 0, "sinks": 0},
        "queries": {"query": 2, "lse": 2, "ranges": 3},
        "keys": {"key": 2, "value": 2},
    }
    cut["both"] = cut["tokens"] = {**cut["keys"], **cut["queries"]}
    for name, own in tensors.items():
        axis = cut[kind].get(name.rsplit(".", 1)[-1])
        if name.startswith(f"{stack}.") and axis is not None and axis < own.ndim:
            tensors[name] = own.narrow(axis, 0, 0)
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
        place = draw.randrange(len(content) if kind == "flip" else min(3000, len(content)))
        content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"bytes: {kind}"
