"""Names of models, which recordings and everything made from them show."""

from __future__ import annotations

import re

# a path, but not a hub id, which has one slash: it is absolute, begins with a dot, or has two slashes or a backslash
_PATH = re.compile(r"[/~]|[A-Za-z]:[/\\]|\.{1,2}$|\.[^/]*/|[^/]*/[^/]*/|.*\\", re.DOTALL)
_CACHED = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+)")  # a model's folder in the cache of Hugging Face
# names of folders and files that say nothing about the model
_GENERIC = re.compile(
    r"(ggml-)?(models?|checkpoints?|snapshots|weights|output|best|last|final|main)([.-]([fq]|bf)\d\w*)?"
    r"|checkpoints?[-_]\d+|(step|epoch)[-_]?\d+|\d+_Transformer|[0-9a-f]{40}",
    re.IGNORECASE,
)
_HOMES = ("home", "Users")  # folders whose folders are named after people


def model_name(name: str, default: str = "model") -> str:
    """Return the name of a model without the folders of its path and without ".gguf". Other names are unchanged.

    The name is that of the last folder or file, or that of the folder above if the last one is named as in all models.

    Args:
        name: a path, a hub id or another name.
        default: name for a path that contains none.

    Examples:
        >>> model_name("/data/llama-finetuned/model")
        'llama-finetuned'
        >>> model_name("sentence-transformers/all-MiniLM-L6-v2")
        'sentence-transformers/all-MiniLM-L6-v2'
    """
    name = name.removesuffix(".gguf")
    if not _PATH.match(name):
        return name
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".", "..", "~")]
    for part in reversed(parts):
        if cached := _CACHED.fullmatch(part):
            return f"{cached['owner']}/{cached['name']}"
    if len(parts) < 3 or parts[-3] in _HOMES:  # the folder above is a home folder, or lies at the top of the disk
        parts = parts[-1:]
    return next((part for part in reversed(parts[-2:]) if not _GENERIC.fullmatch(part)), default)
