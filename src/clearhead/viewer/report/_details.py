"""Details that a report carries besides its data: title, date, command, note of the author, view to open on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qs

from clearhead._utils.checks import describe
from clearhead._utils.text import printable, visible_text
from clearhead.recording import Recording, is_self_attention
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._token_links import strongest_links

MAX_LETTERS = {"title": 200, "note": 10_000, "command": 2_000, "view": 2_000}
MAX_TEXT_LETTERS = 20_000  # of the input and of the output
END_QUERIES = 8  # queries at the end of a text that are always stored
LINKED_QUERIES = 8  # queries at the keys of the strongest links that are always stored


@dataclass(frozen=True)
class ReportDetails:
    """Details of a report.

    Attributes:
        title: title of the page; "" for the name of the model.
        note: note of the author; "" for none.
        command: command that wrote the report; "" for none.
        view: URL fragment of the view to open on, such as "head=cross.2.5&cell=4-2"; "" for the clearest head.
    """

    title: str = ""
    note: str = ""
    command: str = ""
    view: str = ""

    @classmethod
    def checked(cls, **given: str | None) -> ReportDetails:
        """Return the details. Raise if one of them is not a string or is too long."""
        details = {}
        for name, text in given.items():
            if text is not None and not isinstance(text, str):
                raise TypeError(f"{name} is {describe(text)}; expected a string")
            if text is not None and len(text) > MAX_LETTERS[name]:
                raise ValueError(f"{name} has {len(text):,} characters; expected at most {MAX_LETTERS[name]:,}")
            details[name] = text or ""
        details["view"] = details["view"].removeprefix("#")
        if not re.fullmatch(r"([!-%'-<>-~]+=[!-%'-~]*(&|$))*", details["view"]):
            raise ValueError(f"view is {details['view']!r}; expected a URL fragment, such as 'head=cross.2.5&cell=4-2'")
        return cls(**details)

    @property
    def head(self) -> str | None:
        """Name of the head that the view shows; None if it names none."""
        return parse_qs(self.view).get("head", [None])[0]

    def cursor(self, recording: Recording) -> tuple[str, int] | None:
        """Return the stack and the query that the view selects, or None if it selects no cell of the recording."""
        name = (self.head or "").rsplit(".", 2)[0]
        cell = re.fullmatch(r"(\d{1,9})-\d{1,9}", parse_qs(self.view).get("cell", [""])[0])
        if cell is None or name not in recording.stacks:
            return None
        return name, min(int(cell[1]), len(recording[name].queries) - 1)

    def template_variables(self, recording: Recording) -> dict[str, str]:
        """Return the texts that the page shows. All of them are untrusted."""
        return {
            "heading": visible_text(self.title) if self.title else "",
            "note": printable(self.note),
            "command": visible_text(self.command) if self.command else "",
            "date": f"{creation_time():%Y-%m-%d %H:%M} UTC",
            "input": _bounded(recording.input),
            "output": _bounded(recording.output),
        }


def creation_time() -> datetime:
    """Return the present time, or that of SOURCE_DATE_EPOCH, which makes a report reproducible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(epoch), UTC) if re.fullmatch(r"\d{1,11}", epoch) else datetime.now(UTC)


def focused_queries(cache: RecordingCache, name: str, cursor: tuple[str, int] | None) -> list[int]:
    """Return the queries of a stack that a report always stores.

    They are the last tokens, the cursor's query, and in self-attention the sink tokens and the tokens that the last
    query and the cursor's query attend to most.
    """
    stack = cache.recording[name]
    q_len = len(stack.queries)
    centers = {q_len - 1} | ({cursor[1]} if cursor is not None and cursor[0] == name else set())
    chosen = set(range(max(0, q_len - END_QUERIES), q_len)) | centers
    if is_self_attention(name, stack):
        chosen |= set(cache.hidden_keys(name)[:LINKED_QUERIES])
        for query in centers:
            *_, payload = strongest_links(cache, name, query, limit=LINKED_QUERIES)
            chosen |= {link["key"] for link in (payload or {"links": []})["links"]}
    return sorted(chosen)


def _bounded(text: str | None) -> str:
    shown = printable((text or "")[:MAX_TEXT_LETTERS])
    missing = len(text or "") - MAX_TEXT_LETTERS
    return f"{shown} … ({missing:,} more characters)" if missing > 0 else shown
