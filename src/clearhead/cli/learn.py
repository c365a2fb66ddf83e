"""Command `learn`: write the course and open it in a browser."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

import clearhead
from clearhead._utils.browsers import open_window
from clearhead._utils.text import printable
from clearhead.cli.errors import print_stderr
from clearhead.explain.course.catalog import INDEX, PAGES, find_file, source_hash

PAGE_HELP = (
    f"Page to open: a number from 1 to {len(PAGES)}, a name such as one-head, or a built-in example such as song, whose"
    " live page opens (default: the contents)."
)


def learn(
    page: Annotated[str | None, typer.Argument(metavar="PAGE", help=PAGE_HELP)] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the pages to this folder (default: the user's cache).", metavar="FOLDER"),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a course on attention: short pages with numbers to change and questions that check the answers.

    The pages are self-contained HTML files that work offline. The command writes them and prints the path.
    """
    name = INDEX if page is None else find_file(page)
    folder = _stored_course(name) if output is None else _write(output)
    path = (folder / name).absolute()
    print(printable(str(path)))
    if browser and not open_window(path.as_uri()):
        print_stderr(f"No browser could be started. Open this file in one:  {path.as_uri()}")
    elif browser and output is None:
        print_stderr("If the browser cannot read the file:  clearhead learn --output attention-course")


def _write(folder: Path) -> Path:
    from clearhead.explain.course.build import build_course  # first, so that a missing extra is a one-line error

    print_stderr("writing the pages ...")
    build_course(folder)
    return folder


def _stored_course(name: str) -> Path:
    """Return the folder of this version's course in the cache, with the file `name`.

    The course is written once, and again if index.html, which is written last, or `name` is missing. Courses of other
    versions are then removed.
    """
    folder = cache_folder() / f"course-{clearhead.__version__}-{source_hash()}"
    if (folder / INDEX).is_file() and (folder / name).is_file():
        return folder
    _write(folder)
    for other in folder.parent.glob("course-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)  # another process may remove it, too
    return folder


def cache_folder() -> Path:
    """Return the folder for files that can be written again."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "clearhead"
