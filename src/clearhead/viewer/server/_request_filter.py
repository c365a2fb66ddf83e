"""Checks and security headers for every request to the viewer, applied before Bokeh handles it."""

from __future__ import annotations

import re
from typing import Any

from bokeh.resources import Resources
from bokeh.server.tornado import BokehTornado
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import HTTPError, OutputTransform, RequestHandler

from clearhead.viewer._templates import FONT_PATH

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost"})
# Bokeh also serves metadata, embedding scripts and an icon, which the page does not use.
_ALLOWED_PATHS = re.compile(r"/|/enter|/ws|/font|/static/js/[a-z.-]+\.js|/modules/[a-z_]+\.js|/(report|explain)\.html")
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; connect-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " font-src 'self' data:; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FONT_CACHING = "private, max-age=86400"  # 2 MB for each page with Japanese text, the same on every machine


class FilteredTornado(BokehTornado):
    """Bokeh's web application, restricted to local host names and to the page's paths."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, transforms=[_AddSecurityHeaders], **options)

    def resources(self, absolute_url: str | bool | None = None) -> Resources:
        """Return the scripts of the page: Bokeh without its widgets, tables, WebGL and MathJax, 2.7 MB less to load."""
        return super().resources(absolute_url).clone(components=["bokeh"])

    def find_handler(self, request: HTTPServerRequest, **options: Any):
        if request.host.lower() not in {f"{host}:{port_of(request)}" for host in LOCAL_HOSTS}:
            # DNS rebinding: another site's host name can resolve to this machine
            return self._refusal(request, 403, "Host is not this machine")
        if not _ALLOWED_PATHS.fullmatch(request.path):
            return self._refusal(request, 404, "Not Found")
        return super().find_handler(request, **options)

    def _refusal(self, request: HTTPServerRequest, status: int, reason: str):
        return self.get_handler_delegate(request, _Refusal, {"status": status, "reason": reason})


def port_of(request: HTTPServerRequest) -> int:
    """Return the port that the client connected to, regardless of the Host header."""
    return request.connection.stream.socket.getsockname()[1]  # pyright: ignore


class _Refusal(RequestHandler):
    def initialize(self, status: int, reason: str) -> None:
        self._status, self._why = status, reason

    def prepare(self) -> None:
        raise HTTPError(self._status, reason=self._why)


class _AddSecurityHeaders(OutputTransform):
    """Security headers of every response, including errors and static files. Only the whole font may be cached."""

    def __init__(self, request: HTTPServerRequest) -> None:
        super().__init__(request)
        self._is_font = request.uri == FONT_PATH  # the query of a subset has the user's text

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        headers.update(_SECURITY_HEADERS)
        if self._is_font and status_code < 400:
            headers["Cache-Control"] = _FONT_CACHING
        return status_code, headers, chunk
