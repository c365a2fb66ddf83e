"""MkDocs hook: the options of every command, as typer documents them, and the course in the website's navigation."""

import re
import subprocess
import sys

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section

from clearhead.explain.course.build import course_files, read_pages
from clearhead.explain.course.catalog import FOLDER, PAGES, page_file

COMMANDS, COURSE = "<!-- commands -->", "<!-- course -->"


def on_files(files: Files, *, config: MkDocsConfig, **_: object) -> Files:
    """Add the HTML files of the course, so that links to them are checked. `course_files` checks the links in them."""
    for name, text in course_files():
        files.append(File.generated(config, f"course/{name}", content=text))
    return files


def on_nav(nav: Navigation, **_: object) -> Navigation:
    """Add the pages of the course to its section, after the overview. They are whole HTML files, so they are links."""
    (section,) = (item for item in nav.items if isinstance(item, Section) and item.title == "Course")
    links = [
        Link(f"{int(page.name[:2])}. {page.title}", f"course/{page_file(page.name)}")
        for page in read_pages(FOLDER / "pages")
    ]
    for link in links:
        link.parent = section
    section.children[1:1] = links
    return nav


def on_page_markdown(markdown: str, **_: object) -> str:
    for marker, content in ((COMMANDS, _commands), (COURSE, _course)):
        if marker in markdown:
            markdown = markdown.replace(marker, content())
    return markdown


def _commands() -> str:
    call = [sys.executable, "-m", "typer", "clearhead.cli", "utils", "docs", "--name", "clearhead"]
    pages = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    commands = pages[pages.index("\n## ") :]  # without the general help, which the page has already
    commands = re.sub(r"^\* `--help`.*\n", "", commands, flags=re.MULTILINE)
    return re.sub(r"^## ", "### ", commands, flags=re.MULTILINE)


def _course() -> str:
    rows = [
        f"| {int(page.name[:2])} | [{page.title}](../course/{page_file(page.name)}) | {PAGES[page.name]} |"
        for page in read_pages(FOLDER / "pages")
    ]
    return "\n".join(["| | page | content |", "|---|---|---|", *rows])
