"""Files that the page offers: the report on the text that it shows, and the calculation of one row."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from tornado.web import HTTPError, RequestHandler

from clearhead.viewer._explain_page import explain_page
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._statistics_table import head_id
from clearhead.viewer.report._details import ReportDetails
from clearhead.viewer.report.export import finish_report, fit_to_size, sampling_plans, summarize_layers
from clearhead.viewer.server._auth import Access
from clearhead.viewer.server._page_state import parse_address
from clearhead.viewer.server._texts import Texts

REPORT_PATH, EXPLAIN_PATH = "/report.html", "/explain.html"
MAX_DOWNLOADS = 2  # computed at a time; each one keeps the layers of its text in memory
_DONE: Any = object()


class Downloads:
    """Files computed for all pages of a viewer, with a bound on their number."""

    def __init__(self, texts: Texts, access: Access) -> None:
        self.texts, self.access = texts, access
        self.active = 0


class DownloadHandler(RequestHandler):
    """Request for a file. Every long step runs in the worker thread, so that pages are answered in between."""

    def initialize(self, downloads: Downloads) -> None:
        self.downloads = downloads
        self.is_closed = False

    def prepare(self) -> None:
        self.downloads.access.check_download(self)

    def on_connection_close(self) -> None:
        self.is_closed = True

    def argument(self, name: str) -> str | None:
        """Return a parameter of the address, or None if it is missing."""
        return self.get_query_argument(name, None, strip=False)

    async def cache(self) -> RecordingCache:
        """Return the recording of the text that the address names. Runs the model if needed."""
        names = ("text", "given")
        request = {name: value for name in names if (value := self.argument(name)) is not None}
        texts = self.downloads.texts
        text = texts.chosen(request)
        recorded = texts.cached(text) or await self.in_worker(texts.recorded, text)
        return recorded.cache

    async def in_worker(self, function: Any, *arguments: Any) -> Any:
        """Return the result of a function that runs in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.downloads.texts.worker, function, *arguments)

    async def get(self) -> None:
        if self.downloads.active >= MAX_DOWNLOADS:
            raise HTTPError(429, reason="Other files are being written")
        self.downloads.active += 1
        try:
            await self.respond()
        except (TypeError, ValueError, OverflowError, ImportError, RuntimeError) as error:
            self.set_status(400)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(" ".join(str(error).split())[:500])
        finally:
            self.downloads.active -= 1

    async def respond(self) -> None:
        """Compute the file and send it."""
        raise NotImplementedError


class ReportHandler(DownloadHandler):
    """Report on a text, the same file as `clearhead view --output` writes."""

    async def respond(self) -> None:
        details = ReportDetails.checked(**{name: self.argument(name) for name in ("title", "note", "view")})
        cache = await self.cache()
        plans = await self.in_worker(sampling_plans, cache, details)
        steps, layers = summarize_layers(cache, plans), {}
        while (step := await self.in_worker(next, steps, _DONE)) is not _DONE:
            if self.is_closed:
                return
            address, layer = step
            layers[address] = layer
        data = await self.in_worker(fit_to_size, cache, plans, layers)
        self.set_header("Content-Disposition", 'attachment; filename="clearhead-report.html"')
        self.finish(finish_report(cache, data, details).html)


class ExplainHandler(DownloadHandler):
    """Page with every step of the calculation of one cell, as `clearhead explain` shows it."""

    async def respond(self) -> None:
        cache = await self.cache()
        head, cell = self.argument("head") or "", re.fullmatch(r"(\d{1,9})-(\d{1,9})", self.argument("cell") or "")
        if cell is None:
            raise ValueError("cell is missing or wrong; expected a query and a key, such as 4-2")
        address = parse_address(cache.recording, head)
        if head_id(address) != head:
            raise ValueError("head is missing or unknown; expected a name such as decoder.3.5")
        self.finish(await self.in_worker(explain_page, cache, address, int(cell[1]), int(cell[2])))
