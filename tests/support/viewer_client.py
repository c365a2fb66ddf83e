"""HTTP and WebSocket clients of the viewer."""

import urllib.error
import urllib.request

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments):
        return None


def fetch(url, **headers):
    """Return the status, headers and text of a response, without following redirects."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request) as answer:
            return answer.status, answer.headers, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def home(viewer):
    return f"http://127.0.0.1:{viewer.port}/"


def cookie(viewer):
    return fetch(viewer.url)[1]["Set-Cookie"].split(";")[0]


def token_in(text):
    start = text.index('"token":"') + len('"token":"')
    return text[start : text.index('"', start)]


def connect(viewer, token, headers):
    request = HTTPRequest(f"ws://127.0.0.1:{viewer.port}/ws", headers=headers)
    return websocket_connect(request, subprotocols=["bokeh", token])


async def close(socket):
    """Close a socket and wait until the server has closed it too."""
    socket.close()
    while await socket.read_message() is not None:
        pass


def page_token(viewer):
    return token_in(fetch(home(viewer), Cookie=cookie(viewer))[2])
