"""Writes docs/api.md, the API by module: `python docs/api.py`. What it says is read from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import clearhead

PAGE = Path(__file__).parent / "api.md"
WIDTH = 110
MODULES = """
functional weights.matrix ops.masks ops.alibi nn nn.attention nn.block_diagonal nn.head nn.rope nn.rope_scaling
nn.sinusoidal nn.kv_cache nn.windowed_kv_cache torch_compat distributed distributed.tensor_parallel distributed.gather
distributed.layout distributed.context_parallel distributed.context_parallel_weights distributed.sharded_kv
distributed.cost_model recording.recording recording.protocol models analysis analysis.roles analysis.statistics
analysis.conllu analysis.corpus analysis.resumable analysis.accumulate distributed.process_group analysis.summary
huggingface huggingface.model huggingface.watching huggingface.ablation huggingface.modules huggingface.lazy_mask
translation translation.config translation.normalizer translation.tokenizer translation.translator
translation.training translation.callbacks translation.data.dataset translation.run_directory translation.model
translation.sharding translation.data.grammar.generate translation.heads translation.heads.probes
translation.heads.emergence translation.heads.ablation translation.heads.emergence_plot explain.tracing explain.steps
explain.example explain.toml_format explain.checking explain.audit explain.render.formats viewer.server.serve
viewer.report.export plot.figures ops.dispatch ops.statistics
"""
ONLY = {
    "ops.statistics": "AttentionStatistics PoolSpec StatisticsRequest TopK",
    "nn.head": "Head",
    "nn.rope": "Rotary",
    "ops.dispatch": "choose explain",
}
SHAPE = re.compile(r"""(?:jaxtyping\.)?(Float|Integer|Int|Bool)\[(?:torch\.)?Tensor, ["'] ?([^"']*)["']\]""")
NEXT = re.compile(r", (?=\*|\w+(?::| ?=))")  # where a signature's next parameter begins
INTRODUCTION = """# The API, by module

For looking up a name. Made by `python docs/api.py` from signatures and docstrings, of which it has the first lines; a
test keeps it up to date. How things are used: [index.md](index.md). `Float[batch heads q_len]` is a float tensor with
these axes; `#batch` may be 1 and broadcasts."""


class Text(str):
    __repr__ = str.__str__  # in a signature it stands without quotes


def annotation(given: object) -> object:
    if given is inspect.Signature.empty:
        return given
    given = getattr(given, "__forward_arg__", given)  # of a NamedTuple
    return Text(SHAPE.sub(r"\1[\2]", given if isinstance(given, str) else inspect.formatannotation(given)))


def signature(name: str, thing: object, wrapped: bool = True) -> str:
    found = inspect.signature(thing)  # pyright: ignore[reportArgumentType]
    parameters = []
    for one in found.parameters.values():
        default = Text(one.default.__name__) if inspect.isfunction(one.default) else one.default  # without an address
        if one.name not in ("self", "cls"):
            parameters.append(one.replace(annotation=annotation(one.annotation), default=default))
    inside, end = str(inspect.Signature(parameters))[1:-1], annotation(found.return_annotation)
    arrow = "" if isinstance(thing, type) or end is inspect.Signature.empty else f" -> {end}"
    if wrapped and len(name + inside + arrow) > WIDTH:
        inside = "\n    " + NEXT.sub(",\n    ", inside) + ",\n"
    return f"{name}({inside}){arrow}"


def first_line(thing: object) -> str:
    """Of a docstring; more where its first sentence is longer."""
    found = " ".join((thing.__doc__ or "").split("\n\n", 1)[0].split())
    return "" if re.fullmatch(r"\w+\(.*\)", found) else found  # such as a dataclass gives itself


def members(owner: type) -> Iterator[str]:
    """The public methods and properties that a class itself defines; another's form of one only if it says more."""
    for name, member in vars(owner).items():
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        said = f": {first_line(member)}" if member.__doc__ else ""
        hidden = name.startswith("_") or (not said and any(hasattr(base, name) for base in owner.__bases__))
        if isinstance(plain, property) and plain.fget and not hidden:
            yield f"- `{name}: {annotation(inspect.signature(plain.fget).return_annotation)}`{said}"
        elif isinstance(plain, FunctionType) and plain.__name__ == name and not hidden:
            yield f"- `{signature(name, plain, wrapped=False)}`{said}"


def section(module: ModuleType) -> Iterator[str]:
    name = module.__name__.removeprefix("clearhead.")
    yield f"## clearhead.{name}\n\n{first_line(module)}"
    if offered := getattr(module, "__all__", ()):
        yield f"Can be imported from here: {', '.join(f'`{own}`' for own in offered)}."
    for own, thing in vars(module).items():
        here = isinstance(thing, type | FunctionType) and (thing.__module__, thing.__name__) == (module.__name__, own)
        if here and not own.startswith("_") and own in ONLY.get(name, own).split():
            kind, listed = ("class ", members(thing)) if isinstance(thing, type) else ("", ())
            yield f"```text\n{kind}{signature(own, thing)}\n```\n\n{first_line(thing)}".rstrip()
            yield "\n".join(listed)


def page() -> str:
    homes = {name: getattr(clearhead, name).__module__ for name in clearhead.__all__}
    modules = dict.fromkeys([*(f"clearhead.{name}" for name in MODULES.split()), *homes.values()])
    top = (f"- [`{n}`](#{h.replace('.', '')}): {first_line(getattr(clearhead, n))}" for n, h in homes.items())
    sections = [part for name in modules for part in section(importlib.import_module(name)) if part]
    return "\n\n".join([INTRODUCTION, "## clearhead", "\n".join(top), *sections]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
