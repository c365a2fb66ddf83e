"""Who may see the page: whoever was given its first address, on this machine. Everyone else is refused."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakSet

from bokeh.server.auth_provider import AuthProvider
from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, RequestHandler
from tornado.websocket import WebSocketHandler

from clearhead.viewer.gate import port_of

ENTRANCE = "/enter"
GOING_AWAY = 1001  # as RFC 6455 numbers the reasons for closing a socket
_REFUSED = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>clearhead: not this address</title>"
    "<main><h1>This address is not enough</h1>"
    "<p>Open the one that <code>clearhead view</code> printed: it has a token in it.</p></main>"
)


class Access(AuthProvider):
    """A random token in the first address is exchanged for a cookie that scripts cannot read and other sites not use.

    A WebSocket has to come from a page of the same origin.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self._secret = secrets.token_urlsafe(32)
        self._sockets: WeakSet[WebSocketHandler] = WeakSet()
        super().__init__()

    @property
    def get_user_async(self) -> Callable[..., Awaitable[Any]]:
        return self._user

    @property
    def login_url(self) -> str:
        return ENTRANCE

    @property
    def login_handler(self) -> type[RequestHandler]:
        access = self

        class Entrance(RequestHandler):
            def get(self) -> None:
                if not hmac.compare_digest(self.get_query_argument("token", "").encode(), access.token.encode()):
                    _refuse(self)
                    return
                # named by port: two viewers on one machine are one site to a browser
                name = _cookie_name(self.request)
                self.set_cookie(name, access._secret, path="/", httponly=True, samesite="Strict")
                self.redirect("/")

        return Entrance

    def close_sockets(self) -> None:
        """Tell all pages that it ends."""
        for socket in list(self._sockets):
            socket.close(GOING_AWAY)

    async def _user(self, handler: RequestHandler) -> str | None:
        """Called before the page and every WebSocket."""
        request = handler.request
        socket = isinstance(handler, WebSocketHandler)
        if not socket:
            _check_whole_page(handler)
        if socket and request.headers.get("Origin", "").lower() != f"http://{request.host.lower()}":
            raise HTTPError(403, reason="Origin is not this page")
        own = handler.get_cookie(_cookie_name(request), "") or ""
        if hmac.compare_digest(own.encode(), self._secret.encode()):
            if isinstance(handler, WebSocketHandler):
                self._sockets.add(handler)
            return "reader"
        if socket:
            raise HTTPError(403, reason="No cookie of this viewer")
        _refuse(handler)
        return None


def _check_whole_page(handler: RequestHandler) -> None:
    """Refuse frames and scripts.

    To a browser, other ports of this machine are the same site, so the cookie alone does not keep their pages out.
    """
    headers = handler.request.headers
    if (
        headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
        or headers.get("Sec-Fetch-Dest", "document") != "document"
    ):
        raise HTTPError(403, reason="The page can only be opened as a page")


def _refuse(handler: RequestHandler) -> None:
    handler.set_status(403)
    handler.finish(_REFUSED)


def _cookie_name(request: HTTPServerRequest) -> str:
    return f"clearhead-{port_of(request)}"
