"""Names of the course's pages and its files. Does not import torch, because `clearhead learn` opens a stored course."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from clearhead.explain._built_in import BUILT_IN

FOLDER = resources.files("clearhead.explain.course")
INDEX = "index.html"
# name of each page, and its description in the index
PAGES = {
    "01-words": "A table of rows, and why the order needs positions.",
    "02-likeness": "Two arrows to turn: length, angle and cosine.",
    "03-one-head": "Queries ask, keys answer, and values are passed on.",
    "04-scaling": "Wide rows give large scores, softmax saturates, and learning stops.",
    "05-masks": "Which tokens a query may read, and how a decoder writes.",
    "06-many-heads": "Slices and projections, 512 = 8 × 64, and what the heads cost.",
    "07-output": "The heads are put side by side, and W_O mixes them.",
    "08-transformer": "The whole model in one picture, with cross-attention.",
    "09-training": "Random weights, a loss, and steps downhill.",
    "10-film": "One head, filmed from random weights to a role.",
    "11-all-at-once": "A loop over heads against one product, timed on your machine.",
    "12-reading": "Papers and books, with years and links.",
}


def page_file(name: str) -> str:
    """Return the file name of a page."""
    return f"{name}.html"


def example_file(name: str) -> str:
    """Return the file name of the live page of a built-in example."""
    return f"example-{name}.html"


def find_file(name: str) -> str:
    """Return the file that a learner asks for: a page by number or name, or the live page of a built-in example.

    Raises:
        ValueError: there is no such page.
    """
    for page in PAGES:
        position, _, short = page.partition("-")
        if name.lower() in (page, page_file(page), position, str(int(position)), short):
            return page_file(page)
    if name in BUILT_IN:
        return example_file(name)
    listed = ", ".join(f"{int(page[:2])} ({page[3:]})" for page in PAGES)
    raise ValueError(
        f"PAGE is {name[:40]!r}; expected a page of the course, {listed}, or a built-in example, {', '.join(BUILT_IN)}"
    )


def source_hash() -> str:
    """Return a hash of all files that the course is made of. Another hash means another course."""
    digest = hashlib.sha256()
    for path, name in sorted(_files(resources.files("clearhead.explain"), ""), key=lambda entry: entry[1]):
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[Traversable, str]]:
    for path in folder.iterdir():
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _files(path, f"{prefix}{path.name}/")
        else:
            yield path, prefix + path.name
