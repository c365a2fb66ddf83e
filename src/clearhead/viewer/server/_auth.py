"""Authentication by one-time links and cookies for the local viewer."""

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

from clearhead.viewer.server._request_filter import port_of

LOGIN_PATH = "/enter"
GOING_AWAY = 1001  # RFC 6455: close code of a server that shuts down
# Browsers do not send a SameSite=Strict cookie on redirects that another site or a file started. A navigation started
# by this page is same-origin, and it keeps the fragment, which contains the head to show.
_WELCOME_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>clearhead</title>"
    '<script>location.replace("/" + location.hash)</script>'
)
_REFUSAL_TEMPLATE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>clearhead: {title}</title>"
    "<main><h1>{title}</h1>"
    "<p>A link opens the page once, in one browser. Open the newest link that <code>clearhead view</code> printed in"
    " its terminal: it prints another one after each use. In Python, <code>viewer.url</code> is the newest link."
    "{hint}</p></main>"
)
_MISSING_PAGE = _REFUSAL_TEMPLATE.format(title="This address needs a link", hint="")
_SPENT_PAGE = _REFUSAL_TEMPLATE.format(
    title="This link was already used",
    hint=" If you did not use it, stop the viewer: someone else has seen the page.",
)


class Access(AuthProvider):
    """One-time codes, each exchanged for a cookie that scripts cannot read and other sites cannot use.

    WebSockets must come from a page of the same origin.
    """

    def __init__(self) -> None:
        self._codes: dict[str, Callable[[], None]] = {}
        self._spent: set[str] = set()
        self._secret = secrets.token_urlsafe(32)
        self._sockets: WeakSet[WebSocketHandler] = WeakSet()
        super().__init__()

    def issue(self, used: Callable[[], None]) -> str:
        """Return a new code. `used` is called in the server's thread when the code is redeemed."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = used
        return code

    def revoke(self, code: str) -> None:
        """Invalidate an unused code."""
        self._codes.pop(code, None)

    def redeem(self, candidate: str) -> bool:
        """Redeem a code and return whether it was valid."""
        for code in list(self._codes):  # copied, because other threads issue codes
            if hmac.compare_digest(code.encode(), candidate.encode()):
                used = self._codes.pop(code, None)
                if used is not None:
                    self._spent.add(code)
                    used()
                    return True
        return False

    @property
    def get_user_async(self) -> Callable[..., Awaitable[Any]]:
        return self._user

    @property
    def login_url(self) -> str:
        return LOGIN_PATH

    @property
    def login_handler(self) -> type[RequestHandler]:
        access = self

        class LoginHandler(RequestHandler):
            def get(self) -> None:
                _check_navigation(self)
                code = self.get_query_argument("code", "", strip=False)
                if access._has_cookie(self):
                    self.finish(_WELCOME_PAGE)  # the browser that used the link opens it again
                elif access.redeem(code):
                    # cookies ignore ports, so the name has the port to separate two viewers on one machine
                    name = _cookie_name(self.request)
                    self.set_cookie(name, access._secret, path="/", httponly=True, samesite="Strict")
                    self.finish(_WELCOME_PAGE)
                else:
                    _refuse(self, _SPENT_PAGE if code in access._spent else _MISSING_PAGE)

        return LoginHandler

    def check_download(self, handler: RequestHandler) -> None:
        """Raise 403 unless a request for a file has the cookie and was started by this page or by the user."""
        if handler.request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise HTTPError(403, reason="Other pages cannot load this file")
        if not self._has_cookie(handler):
            raise HTTPError(403, reason="Cookie of this viewer is missing")

    def close_sockets(self) -> None:
        """Close the WebSockets of all pages because the server shuts down."""
        for socket in list(self._sockets):
            socket.close(GOING_AWAY)

    def _has_cookie(self, handler: RequestHandler) -> bool:
        cookie = handler.get_cookie(_cookie_name(handler.request), "") or ""
        return hmac.compare_digest(cookie.encode(), self._secret.encode())

    async def _user(self, handler: RequestHandler) -> str | None:
        """Authenticate a request for the page or a WebSocket."""
        if isinstance(handler, WebSocketHandler):
            if handler.request.headers.get("Origin", "").lower() != f"http://{handler.request.host.lower()}":
                raise HTTPError(403, reason="Origin is not this page")
            if not self._has_cookie(handler):
                raise HTTPError(403, reason="Cookie of this viewer is missing")
            self._sockets.add(handler)
            return "reader"
        _check_navigation(handler)
        if self._has_cookie(handler):
            return "reader"
        _refuse(handler, _MISSING_PAGE)
        return None


def _check_navigation(handler: RequestHandler) -> None:
    """Raise 403 for requests from frames and scripts.

    Browsers treat other ports of this machine as the same site, so the cookie alone does not exclude their pages.
    """
    headers = handler.request.headers
    if (
        headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
        or headers.get("Sec-Fetch-Dest", "document") != "document"
    ):
        raise HTTPError(403, reason="Frames and scripts cannot load this page")


def _refuse(handler: RequestHandler, page: str) -> None:
    handler.set_status(403)
    handler.finish(page)


def _cookie_name(request: HTTPServerRequest) -> str:
    return f"clearhead-{port_of(request)}"
