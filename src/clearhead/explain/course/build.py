"""Builder of the course: self-contained HTML pages from Markdown, live calculations and scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from clearhead._utils.checks import check_path
from clearhead._utils.extras import needs_extra
from clearhead._utils.files import write_text
from clearhead._utils.fonts import embed_font
from clearhead.explain._built_in import BUILT_IN
from clearhead.explain.course._answers import NamedMatrix, check_question, named_matrices
from clearhead.explain.course._markdown import Page, body_html, check_links, inline_html, parse_page
from clearhead.explain.course._modules import has_static, import_map, live_styles, read_static
from clearhead.explain.course._parts import LivePart, Part, Question, Widget
from clearhead.explain.course._templates import TEMPLATES
from clearhead.explain.course.catalog import FOLDER, INDEX, PAGES, example_file, page_file
from clearhead.explain.live.page import live_config
from clearhead.explain.render import render
from clearhead.explain.steps import STEP_NAMES, Trace
from clearhead.explain.toml_format import load, parse

with needs_extra("explain", "the course"):
    from markupsafe import Markup

TEMPLATES.filters["markdown"] = inline_html
START_MODULE, INDEX_MODULE, LIVE_MODULE = "course.js", "course_index.js", "mount_live.js"


def build_course(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the pages of the course and the live pages of the built-in examples; return their paths.

    The folder is created if it does not exist. Each file is written atomically, and index.html comes last.

    Raises:
        ValueError: a page is wrong. Nothing is written then.
    """
    target = Path(check_path("folder", folder))
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"folder is {target}, a file; expected the name of a folder")
    written = dict(course_files())
    target.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        write_text(target / name, text)
    return [target / name for name in written]


def course_files(pages: Traversable = FOLDER / "pages") -> Iterator[tuple[str, str]]:
    """Yield the name and the HTML of every file of the course; index.html comes last."""
    parsed = read_pages(pages)
    for page in parsed:
        yield page_file(page.name), embed_font(page_html(page, parsed))
    for name in BUILT_IN:
        example = load(name)
        yield example_file(name), render(example.trace(), "html", title=example.title)
    yield INDEX, _index_html(parsed)


def read_pages(folder: Traversable) -> list[Page]:
    """Parse the pages of a folder in the order of the course.

    Raises:
        ValueError: a page is missing or wrong.
    """
    for name in PAGES:
        if not (folder / f"{name}.md").is_file():
            raise ValueError(f"there is no page {name}.md")
    return [parse_page(name, (folder / f"{name}.md").read_text(encoding="utf-8")) for name in PAGES]


def page_html(page: Page, pages: list[Page]) -> str:
    """Return the HTML of a page.

    Raises:
        ValueError: an example, a script or a linked page does not exist, or an answer is wrong.
    """
    check_links(page, pages, [INDEX, *(example_file(name) for name in BUILT_IN)])
    traces = {live.name: _trace_of(page, live) for live in page.lives}
    for question in page.questions:
        try:
            check_question(question, _matrices(page, question, traces))
        except ValueError as error:
            raise page.error(1, f"{error} ({question.ask[:60]})") from None
    modules = [START_MODULE, *([LIVE_MODULE] if page.lives else []), *(f"{each.module}.js" for each in page.widgets)]
    position = pages.index(page)
    try:
        scripts = import_map(modules)
    except ValueError as error:
        raise page.error(1, str(error)) from None
    return TEMPLATES.get_template("page.html").render(
        page=page,
        position=int(page.name[:2]),
        count=len(PAGES),
        body=body_html(page, lambda part: _part_html(page, part)),
        previous=pages[position - 1] if position else None,
        following=pages[position + 1] if position + 1 < len(pages) else None,
        pages=_contents(pages),
        styles=_styles(page),
        import_map=scripts,
    )


def _index_html(pages: list[Page]) -> str:
    return TEMPLATES.get_template("index.html").render(
        pages=_contents(pages),
        examples=[(example_file(name), load(name).title, about) for name, about in BUILT_IN.items()],
        import_map=import_map([INDEX_MODULE]),
    )


def _contents(pages: list[Page]) -> list[dict[str, Any]]:
    """Return one entry for each page: its file, title, summary and the ids of its questions."""
    return [
        {
            "name": page.name,
            "file": page_file(page.name),
            "title": page.title,
            "about": PAGES[page.name],
            "questions": [question.id for question in page.questions],
        }
        for page in pages
    ]


def _part_html(page: Page, part: Part) -> str:
    """Return the HTML of a part, into which its script draws."""
    if isinstance(part, Question):
        position = page.questions.index(part) + 1
        return TEMPLATES.get_template("question.html").render(question=part, position=position, data=_data(part))
    kind, module = ("widget", f"{part.module}.js") if isinstance(part, Widget) else ("live", LIVE_MODULE)
    config = dict(part.options)
    if part.example:
        live = _live_config(page, part.example)
        config = {**live, **config} if isinstance(part, LivePart) else {"layer": live["layer"], **config}
    if "data" in config:
        config["data"] = _read_data(page, str(config["data"]))
    return TEMPLATES.get_template("part.html").render(kind=kind, part=part, module=f"clearhead/{module}", config=config)


def _read_data(page: Page, name: str) -> Any:
    """Return the content of a JSON file in data/."""
    file = FOLDER / "data" / name
    if not file.is_file():
        raise page.error(1, f"widget: there is no file {name} in the folder data")
    return json.loads(file.read_text(encoding="utf-8"))


def _data(question: Question) -> dict[str, Any]:
    """Return what question.js needs to check an answer."""
    data: dict[str, Any] = {"id": question.id, "kind": question.kind}
    if question.goal:
        data["goals"] = [asdict(goal) for goal in (question.goal, *question.also)]
    elif question.choices:
        data["right"] = question.right
    else:
        data |= {"answer": question.answer, "tolerance": question.tolerance}
    return data


def _live_config(page: Page, example: str) -> dict[str, Any]:
    config = live_config(_example(page, example), example)
    if isinstance(config, str):
        raise page.error(1, f"example {example!r} cannot be live: {config}")
    if example not in BUILT_IN:  # there is no text that the numbers are printed in
        config["origins"] = dict.fromkeys(config["origins"], "chosen for this page")
    return config


def _matrices(page: Page, question: Question, traces: Mapping[str, Trace]) -> dict[str, NamedMatrix]:
    """Return the matrices that a question is checked with."""
    if question.example:
        return named_matrices(_example(page, question.example))
    name = question.goal.part if question.goal else question.live
    if name in traces:
        return named_matrices(traces[name])
    if question.live:
        raise ValueError(f"question: there is no live part {question.live!r}")
    return named_matrices(next(iter(traces.values()))) if traces else {}


def _trace_of(page: Page, live: LivePart) -> Trace:
    trace = _example(page, live.example)
    for step in live.options.get("steps", ()):
        if step not in STEP_NAMES:
            raise page.error(1, f"live: steps has {step!r}; expected some of {', '.join(STEP_NAMES)}")
    for head in live.options.get("heads", ()):
        if type(head) is not int or not 1 <= head <= trace.heads:
            raise page.error(1, f"live: heads has {head!r}; expected whole numbers from 1 to {trace.heads}")
    return trace


def _example(page: Page, name: str) -> Trace:
    try:
        return _load_trace(name)
    except ValueError as error:
        raise page.error(1, str(error)) from None


@cache
def _load_trace(name: str) -> Trace:
    if name in BUILT_IN:
        return load(name).trace()
    file = FOLDER / "layers" / f"{name}.toml"
    if not file.is_file():
        layers = sorted(path.name.removesuffix(".toml") for path in (FOLDER / "layers").iterdir())
        raise ValueError(f"example is {name!r}; expected one of {', '.join((*BUILT_IN, *layers))}")
    return parse(file.read_text(encoding="utf-8"), name).trace()


def _styles(page: Page) -> list[Markup]:
    """Return the style sheets of the live parts and widgets of a page."""
    names = [*(live_styles() if page.lives else ()), *sorted({f"{widget.module}.css" for widget in page.widgets})]
    return [Markup(read_static(name).decode()) for name in names if has_static(name)]
