"""One-time links and cookies that decide who may see the viewer's page."""

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
GOING_AWAY = 1001  # RFC 6455: close code of a server that goes down
# The cookie is SameSite=Strict, and a browser does not send it along a redirect that another site or a file started.
# A navigation that this page starts is same-origin. It keeps the fragment, which names the head to show.
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
    hint=" If it was not you who used it, stop the viewer: somebody else has seen the page.",
)


class Access(AuthProvider):
    """One-time codes, each exchanged for a cookie that scripts cannot read and other sites cannot use.

    A WebSocket must come from a page of the same origin.
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
        """Make an unused code worthless."""
        self._codes.pop(code, None)

    def redeem(self, candidate: str) -> bool:
        """Use up a code; False if there is no such code."""
        for code in list(self._codes):  # a copy: other threads issue codes
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
                    self.finish(_WELCOME_PAGE)  # a link that is opened again where it was used first
                elif access.redeem(code):
                    # named by port: two viewers on one machine are one site to a browser
                    name = _cookie_name(self.request)
                    self.set_cookie(name, access._secret, path="/", httponly=True, samesite="Strict")
                    self.finish(_WELCOME_PAGE)
                else:
                    _refuse(self, _SPENT_PAGE if code in access._spent else _MISSING_PAGE)

        return LoginHandler

    def close_sockets(self) -> None:
        """Tell all pages that it ends."""
        for socket in list(self._sockets):
            socket.close(GOING_AWAY)

    def _has_cookie(self, handler: RequestHandler) -> bool:
        cookie = handler.get_cookie(_cookie_name(handler.request), "") or ""
        return hmac.compare_digest(cookie.encode(), self._secret.encode())

    async def _user(self, handler: RequestHandler) -> str | None:
        """Called before the page and every WebSocket."""
        if isinstance(handler, WebSocketHandler):
            if handler.request.headers.get("Origin", "").lower() != f"http://{handler.request.host.lower()}":
                raise HTTPError(403, reason="Origin is not this page")
            if not self._has_cookie(handler):
                raise HTTPError(403, reason="No cookie of this viewer")
            self._sockets.add(handler)
            return "reader"
        _check_navigation(handler)
        if self._has_cookie(handler):
            return "reader"
        _refuse(handler, _MISSING_PAGE)
        return None


def _check_navigation(handler: RequestHandler) -> None:
    """Refuse frames and scripts.

    To a browser, other ports of this machine are the same site, so the cookie alone does not keep their pages out.
    """
    headers = handler.request.headers
    if (
        headers.get("Sec-Fetch-Mode", "navigate") != "navigate"
        or headers.get("Sec-Fetch-Dest", "document") != "document"
    ):
        raise HTTPError(403, reason="The page can only be opened as a page")


def _refuse(handler: RequestHandler, page: str) -> None:
    handler.set_status(403)
    handler.finish(page)


def _cookie_name(request: HTTPServerRequest) -> str:
    return f"clearhead-{port_of(request)}"
