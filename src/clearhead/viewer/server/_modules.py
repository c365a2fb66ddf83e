"""Scripts and the Japanese font of the live page."""

from __future__ import annotations

from tornado.web import HTTPError, RequestHandler

from clearhead._utils.fonts import FONT_FILE, font_subset
from clearhead.viewer._templates import scripts
from clearhead.viewer.server._auth import Access


class ModuleHandler(RequestHandler):
    """Module of the page, sent from memory. A page loads 60 of them before its first lines, 3 ms each from files."""

    def get(self, name: str) -> None:
        code = scripts().get(name)
        if code is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.finish(code)


class FontHandler(RequestHandler):
    """Japanese font, which a browser loads if the page needs it, or its glyphs for the text of a picture."""

    def initialize(self, access: Access) -> None:
        self.access = access

    def get(self) -> None:
        text = self.get_query_argument("text", None, strip=False)
        if text is not None:
            self.access.check_download(self)  # other users of this machine could keep the server busy
        self.set_header("Content-Type", "font/ttf" if text is None else "font/woff")
        self.finish(FONT_FILE.read_bytes() if text is None else font_subset(text))
