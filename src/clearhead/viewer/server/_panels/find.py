"""Answers to questions about the text: where it contains some words, and what one token attends to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clearhead.viewer._payloads import Payload
from clearhead.viewer._search import search_payload
from clearhead.viewer._token_links import strongest_links, token_picture
from clearhead.viewer.server._page_state import Request, parse_cell
from clearhead.viewer.server._panels.panel import Panel
from clearhead.viewer.server._tasks import Steps


class FindPanel(Panel):
    """Search of the text, and strongest links and picture of one token. All are on request.

    `{kind: "search", axis, text}` sets `search`. `{kind: "links", query?, hide?, min_distance?}` sets `links`; the
    default query is the last token. `{kind: "picture", query?, key?, hide?}` sets `picture`; the default query
    is the cursor's, or the last token.
    """

    @property
    def handlers(self) -> dict[str, Callable[[Request], None]]:
        return {
            "search": self._search,
            "links": self._show_links,
            "picture": self._show_picture,
        }

    def _search(self, request: Request) -> None:
        name, stack = self.shown.address[0], self.shown.stack
        axis, text = request["axis"], str(request["text"])

        def steps() -> Steps:
            payload = {"stack": name, **search_payload(stack, axis, text)}
            yield lambda: self.state.update(search=payload)

        self.tasks.start("search", steps())

    def _show_links(self, request: Request) -> None:
        shown = self.shown
        query = None if request.get("query") is None else parse_cell(request["query"], 0, shown.shape)[0]
        _, distance = parse_cell(0, request.get("min_distance") or 0, shown.shape)
        hide = bool(request.get("hide", True))
        links = strongest_links(shown.cache, shown.address[0], query, hide=hide, min_distance=distance)
        self._start("links", links, background=False)  # thumbnails of a long text take minutes; a row does not wait

    def _show_picture(self, request: Request) -> None:
        shown = self.shown
        q_len, _ = shown.shape
        default = q_len - 1 if shown.cursor is None else shown.cursor[0]
        asked = default if request.get("query") is None else request["query"]
        query, key = parse_cell(asked, request.get("key") or 0, shown.shape)
        hide = bool(request.get("hide", True))
        self._start(
            "picture",
            token_picture(shown.cache, shown.address[0], query, key, hide=hide, value_weighted=shown.weighted),
        )

    def _start(self, answer: str, payloads: Iterator[Payload | None], *, background: bool = True) -> None:
        """Start a task that computes one layer per step, and set a property of the page to its last result."""

        def steps() -> Steps:
            for payload in payloads:
                yield None if payload is None else lambda payload=payload: self.state.update(**{answer: payload})

        self.tasks.start(answer, steps(), background=background)
