"""Bokeh application handler that starts and ends the sessions of pages."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from typing import Any

from bokeh.application.application import SessionContext
from bokeh.application.handlers.handler import Handler
from bokeh.document import Document

from clearhead.viewer.server._page_session import PageSession
from clearhead.viewer.server._texts import Texts


class SessionHandler(Handler):
    """Bokeh's hooks for the start and end of a session: one `PageSession` for each page."""

    def __init__(self, texts: Texts) -> None:
        super().__init__()
        self._texts = texts
        self._sessions: dict[str, PageSession] = {}

    def modify_document(self, doc: Document) -> None:
        context = doc.session_context
        assert context is not None
        doc.destroy = partial(_destroy, doc)  # Bokeh creates the document itself, so a subclass cannot be used
        self._sessions[context.id] = PageSession(doc, self._texts)

    async def on_session_destroyed(self, session_context: SessionContext) -> None:
        page_session = self._sessions.pop(session_context.id, None)
        if page_session is not None:
            page_session.close()
        await asyncio.sleep(0)  # Bokeh discards one session after another; other requests are served in between


def _destroy(document: Document, session: Any) -> None:
    """Destroy a document without the full garbage collection that `Document.destroy` ends with.

    That collection traverses every object of the process, torch's included, and takes 0.1 to 0.3 seconds for each
    page that was left. It is not needed: destroying the models has already released their data, and Python's own
    collections find what remains. `gc.freeze` leaves nothing for the collection to traverse.
    """
    gc.freeze()
    try:
        Document.destroy(document, session)
    finally:
        gc.unfreeze()
