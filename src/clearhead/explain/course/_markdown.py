"""Markdown of course pages: text, formulas, links between pages, and the parts in fences."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token

from clearhead._utils.extras import needs_extra
from clearhead.explain.course._parts import READERS, LivePart, Part, Question, Widget, read_part

with needs_extra("explain", "the course"):
    from latex2mathml.converter import convert
    from markupsafe import Markup

CODE_LANGUAGES = ("", "text", "python", "toml", "console")
_DISPLAYED = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)
_INLINE = re.compile(r"\$(?=\S)([^$\n]+?)(?<=\S)\$")


@dataclass
class Page:
    """A parsed page: its title, text, parts and links."""

    name: str
    title: str = ""
    tokens: list[Token] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)  # in the order of the page
    anchors: set[str] = field(default_factory=set)
    links: list[tuple[int, str, str]] = field(default_factory=list)  # line, page or file, anchor

    @property
    def lives(self) -> list[LivePart]:
        return [part for part in self.parts if isinstance(part, LivePart)]

    @property
    def widgets(self) -> list[Widget]:
        return [part for part in self.parts if isinstance(part, Widget)]

    @property
    def questions(self) -> list[Question]:
        return [part for part in self.parts if isinstance(part, Question)]

    def error(self, line: int, reason: str) -> ValueError:
        return ValueError(f"{self.name}.md, line {line}: {reason}")


def parse_page(name: str, text: str) -> Page:
    """Parse a page.

    Raises:
        ValueError: the title is missing, or a fence or link is wrong. The message names the page and the line.
    """
    page = Page(name)
    page.tokens = _parser().parse(text)
    first = page.tokens[:2]
    if len(first) < 2 or first[0].type != "heading_open" or first[0].tag != "h1":
        raise page.error(1, "expected a title, # Title")
    page.title = first[1].content
    page.tokens = page.tokens[3:]  # the template writes the title
    for index, token in enumerate(page.tokens):
        line = (token.map or [0])[0] + 1
        if token.type == "heading_open":
            if token.tag == "h1":
                raise page.error(line, "a second title; expected one, and ## for sections")
            anchor = re.sub(r"[^\w]+", "-", page.tokens[index + 1].content.lower()).strip("-")
            token.attrSet("id", anchor)
            page.anchors.add(anchor)
        elif token.type == "fence":
            _read_fence(page, token, line)
        _read_links(page, [token], line)
    names = [part.name for part in (*page.lives, *page.widgets)]
    for part in names:
        if names.count(part) > 1:
            raise page.error(1, f"two parts have the name {part!r}; expected different names")
    for question in page.questions:
        if question.goal and question.goal.part not in names:
            raise page.error(1, f"question: there is no part {question.goal.part!r}; expected one of {names}")
    return page


def body_html(page: Page, render_part: Callable[[Part], str]) -> Markup:
    """Return the HTML of a page below its title."""
    parser = _parser()
    return Markup(parser.renderer.render(page.tokens, parser.options, {"render_part": render_part}))


def inline_html(text: str) -> Markup:
    """Return the HTML of one line of Markdown."""
    parser = _parser()
    tokens = parser.parseInline(text)
    for link in _links(tokens):
        _point_to_file(link)
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def check_links(page: Page, pages: Collection[Page], files: Collection[str]) -> None:
    """Raise if a link of a page leads to a page, anchor or file that does not exist."""
    by_name = {other.name: other for other in pages}
    for line, target, anchor in page.links:
        if target in files:
            continue
        if target not in by_name:
            raise page.error(line, f"link to {target}.md, which does not exist")
        if anchor and anchor not in by_name[target].anchors:
            raise page.error(line, f"link to {target}.md#{anchor}, but that page has no such heading")


def _read_fence(page: Page, token: Token, line: int) -> None:
    kind = token.info.strip()
    if kind in CODE_LANGUAGES:
        return
    if kind not in READERS:
        expected = ", ".join((*READERS, *filter(None, CODE_LANGUAGES)))
        raise page.error(line, f"fence is {kind!r}; expected {expected}")
    try:
        part = read_part(kind, token.content)
    except ValueError as error:
        raise page.error(line, str(error)) from None
    token.meta["part"] = part
    page.parts.append(part)
    if isinstance(part, Question):  # its texts are rendered by the template, with `inline_html`
        for text in part.texts:
            _read_links(page, _parser().parseInline(text), line)


def _read_links(page: Page, tokens: Sequence[Token], line: int) -> None:
    """Add the links in some tokens to those of the page, and point them to files."""
    for link in _links(tokens):
        try:
            linked = _point_to_file(link)
        except ValueError as error:
            raise page.error(line, str(error)) from None
        if linked is not None:
            target, anchor = linked
            page.links.append((line, target or page.name, anchor))


def _links(tokens: Sequence[Token]) -> list[Token]:
    return [child for token in tokens for child in token.children or () if child.type == "link_open"]


def _point_to_file(link: Token) -> tuple[str, str] | None:
    """Turn a link to a page into the address of its file.

    Returns the page or file, empty for the page of the link, and the anchor; None for a link to a website.
    """
    address = str(link.attrs["href"])
    if address.startswith("https://"):
        link.attrSet("rel", "noreferrer")
        return None
    path, _, anchor = address.partition("#")
    if path.endswith(".md"):
        path = path.removesuffix(".md")
        link.attrSet("href", f"{path}.html" + (f"#{anchor}" if anchor else ""))
    elif path and not path.endswith(".html"):
        raise ValueError(f"link to {address!r}; expected a page such as 03-one-head.md, or https://")
    return path, anchor


class _Renderer(RendererHTML):
    """Renderer of formulas, parts and tables; the methods are named after the types of tokens."""

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        part = tokens[idx].meta.get("part")
        if part is not None:
            return env["render_part"](part)
        code = super().fence(tokens, idx, options, env)
        return code.replace("<pre>", '<pre tabindex="0" role="group" aria-label="Code">', 1)  # it may scroll

    def math(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        display = tokens[idx].meta["display"]
        return f'<span class="math {display}">{convert(tokens[idx].content, display=display)}</span>'

    def table_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return "</table></div>\n"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
    parser.inline.ruler.before("escape", "math", _math_rule)
    return parser


def _math_rule(state: Any, silent: bool) -> bool:
    """Read `$…$` and `$$…$$`: a rule of markdown-it-py."""
    for pattern, display in ((_DISPLAYED, "block"), (_INLINE, "inline")):
        if formula := pattern.match(state.src, state.pos):
            if not silent:
                token = state.push("math", "", 0)
                token.content, token.meta = formula[1], {"display": display}
            state.pos = formula.end()
            return True
    return False
