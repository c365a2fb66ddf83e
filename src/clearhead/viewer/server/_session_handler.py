"""Bokeh application handler that creates and closes page sessions."""

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
    """Handler that creates one `PageSession` for each page and closes it with the page."""

    def __init__(self, texts: Texts) -> None:
        super().__init__()
        self._texts = texts
        self._sessions: dict[str, PageSession] = {}

    def modify_document(self, doc: Document) -> None:
        context = doc.session_context
        assert context is not None
        doc.destroy = partial(_destroy, doc)  # Bokeh creates the document, so it cannot be a subclass
        self._sessions[context.id] = PageSession(doc, self._texts)

    async def on_session_destroyed(self, session_context: SessionContext) -> None:
        page_session = self._sessions.pop(session_context.id, None)
        if page_session is not None:
            page_session.close()
        await asyncio.sleep(0)  # yields to the event loop: Bokeh discards all expired sessions in one loop


def _destroy(document: Document, session: Any) -> None:
    """Destroy a document without the full garbage collection that `Document.destroy` ends with.

    That collection traverses every object of the process, including torch's, and takes 0.1 to 0.3 seconds for each
    closed page. It is not needed: destroying the models has already released their data, and Python's automatic
    collections free the rest. `gc.freeze` leaves no objects for the collection to traverse.
    """
    gc.freeze()
    try:
        Document.destroy(document, session)
    finally:
        gc.unfreeze()
