"""Hostile HTTP requests and WebSockets against the viewer: refused without a traceback, and the server survives.

Only 127.0.0.1 is contacted. Requests are sent as raw bytes, because HTTP clients refuse to send most of them.
"""

import asyncio
import json
import re
import socket

import pytest
from tornado.websocket import WebSocketClosedError

from clearhead import view
from clearhead.viewer.server.serve import MAX_MESSAGE_BYTES
from support.recordings import decoder
from support.viewer_client import close, connect, cookie, fetch, home, page_token

pytestmark = pytest.mark.attack
LONG = "x" * 70_000


class Target:
    """Viewer under attack, with the secrets that an attacker could have obtained."""

    def __init__(self, viewer, other):
        self.viewer, self.port = viewer, viewer.port
        self.host = f"127.0.0.1:{viewer.port}"
        spent = viewer.url
        self.cookie = cookie(viewer)
        self.secret = self.cookie.partition("=")[2]
        self.values = {
            "port": str(viewer.port),
            "host": self.host,
            "cookie": self.cookie,
            "secret": self.secret,
            "token": page_token(viewer),
            "spent": spent.rpartition("=")[2],
            "other": other.url.rpartition("=")[2],
            "other_secret": cookie(other).partition("=")[2],
        }

    def fill(self, text):
        """Fill in the known values. `code` is a valid, unused code."""
        return text.format(**self.values, code=self.viewer.url.rpartition("=")[2])

    def send(self, data, until=lambda answer: False):
        """Send raw bytes and return all bytes until the server closes the connection, or `until` is true of them."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            try:
                connection.sendall(data)
                while not until(answer) and (chunk := connection.recv(65_536)):
                    answer += chunk
            except (BrokenPipeError, ConnectionResetError):  # refused before the request was complete
                pass
        return answer

    def request(self, line, *headers, **options):
        lines = [line, *headers, "Connection: close"]
        return self.send("\r\n".join([*map(self.fill, lines), "", ""]).encode("utf-8", "surrogateescape"), **options)

    def upgrade(self, *headers):
        """Request a WebSocket and return one response: the server keeps the connection of a refused one open."""
        return self.request("GET /ws HTTP/1.1", *headers, *UPGRADE, until=is_complete)


def is_complete(answer):
    """Return whether the bytes are at least one whole response."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head.lower())
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


@pytest.fixture(scope="module")
def target():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clearhead.viewer.server.serve.IDLE_TIMEOUT_S", 2.0)
        with (
            view(decoder("abcdef"), browser=False, wait=False) as viewer,
            view(decoder("abc"), browser=False, wait=False) as other,
        ):
            target = Target(viewer, other)
            yield target
            status, _, text = fetch(home(viewer), Cookie=target.cookie)
            assert status == 200
            assert "data-root-id" in text


def assert_refused(target, answer, caplog):
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert b"data-root-id" not in answer
    assert b"set-cookie" not in head
    assert not head.startswith((b"http/1.1 101", b"http/1.1 5"))
    assert target.secret.encode() not in answer
    assert [record for record in caplog.records if record.exc_info] == []


HOST, COOKIE = "Host: {host}", "Cookie: {cookie}"
METHODS = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "PROPFIND", "get", "X" * 300]
HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.0.0.1:{port}0",
    "127.0.0.1:{port}@evil.example",
    "evil.example@127.0.0.1:{port}",
    "127.0.0.1:{port}.",
    "localhost.:{port}",
    "0.0.0.0:{port}",
    "[::1]:{port}",
    "127.1:{port}",
    "2130706433:{port}",
    "127.0.0.1:{port},evil.example",
    "127.0.0.1:{port} evil.example",
    "",
]
CODES = [
    "",
    "wrong",
    "{spent}",
    "{other}",
    "{secret}",
    "{code}x",
    "{code}%00",
    "{code}%20",
    "{code}%0d%0a",
    "%20{code}",
    "{code:.31}",
    "{code:.1}",
    "{code}&code=wrong",
    "%ff%fe",
    "%c0%ae",
    LONG,
]
COOKIES = [
    "",
    "clearhead-{port}=",
    "clearhead-{port}=wrong",
    "clearhead-{port}={other_secret}",
    "clearhead-{port}={secret:.10}",
    "clearhead-{port}={secret}x",
    "clearhead-{port}={code}",
    "clearhead-1={secret}",
    "Clearhead-{port}={secret}",
    "clearhead={secret}",
    "session={secret}",
    "={secret}",
    "{secret}",
    "clearhead-{port}%3d{secret}",
    "clearhead-{port}=\u00e9",
    "clearhead-{port}=" + LONG[:50_000],
    ";" * 5_000,
]
PATHS = [
    "//",
    "/./",
    "/..",
    "//evil.example/",
    "/static/../../../../etc/passwd",
    "/static/js/../../../../../etc/passwd",
    "/static/js/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/static/js/%2e%2e/%2e%2e/setup.py",
    "/static/js/..%5c..%5cx.js",
    "/static/js/%252e%252e%252fx.js",
    "/static/js/%c0%ae%c0%ae/x.js",
    "/static/js/%00",
    "/modules/../server/_auth.py",
    "/modules/..%2fserver%2f_auth.py",
    "/modules/%2e%2e/_auth.js",
    "/modules/state.js%00",
    "/static/js/bokeh.min.js%00.js",
    "/static/js/%ff.js",
    "/static/js/%0d%0aSet-Cookie:%20x=1.js",
    "/static/js/" + LONG[:5_000] + ".js",
    "/static/extensions/x/y.js",
    "/static//etc/passwd",
    "/%2e%2e/enter",
    "/enter/",
    "/ENTER",
    "/enter;x",
    "/ws/",
    "/metadata",
    "/autoload.js?bokeh-autoload-element=x",
    "/favicon.ico",
    "/" + LONG,
    "/?bokeh-session-id=x",
    "/?bokeh-token=x",
    "/#",
    "*",
    "http://evil.example/",
    "/\u00e9",
    "/?x=%0d%0aSet-Cookie:%20x=1",
]
HEADERS = [
    "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-Host: {host}",
    "X-Real-Ip: 127.0.0.1",
    "Authorization: Bearer {code}",
    "Authorization: token {secret}",
    "X-Original-URL: /enter?code={code}",
    "Referer: http://{host}/enter?code={code}",
    "Bokeh-Session-Id: x",
    "Upgrade: h2c",
    "Range: bytes=0-",
    "Expect: 100-continue",
    "Content-Length: -1",
    "Content-Length: 99999999999",
    "Transfer-Encoding: chunked\r\nContent-Length: 4",
    "Transfer-Encoding: xchunked",
    "X: " + LONG,
    "X: a\r\n folded",
    "X\x00: 1",
    "X: \x00",
    "no colon",
    ": no name",
    "\r\n".join(f"X-{index}: 1" for index in range(3_000)),
    "Host: evil.example",
]
FETCHES = [
    ("cors", "empty"),
    ("no-cors", "script"),
    ("no-cors", "image"),
    ("navigate", "iframe"),
    ("navigate", "embed"),
]
MALFORMED = [
    b"\x00\xff\x00\xff",
    b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\n\n",
    b"GET  /  HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: ",  # incomplete
    b"A" * 200_000,
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", ["/", "/enter?code={code}"])
def test_refuses_other_methods(target, caplog, method, path):
    """The cookie and code are valid for GET; the code is not used up."""
    url = target.viewer.url
    assert_refused(target, target.request(f"{method} {path} HTTP/1.1", HOST, COOKIE), caplog)
    assert target.viewer.url == url


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("path", ["/", "/enter?code={code}"])
def test_refuses_other_hosts(target, caplog, host, path):
    url = target.viewer.url
    assert_refused(target, target.request(f"GET {path} HTTP/1.1", f"Host: {host}", COOKIE), caplog)
    assert target.viewer.url == url


@pytest.mark.parametrize("code", CODES)
def test_refuses_wrong_codes(target, caplog, code):
    assert_refused(target, target.request(f"GET /enter?code={code} HTTP/1.1", HOST), caplog)


@pytest.mark.parametrize("value", COOKIES)
def test_refuses_wrong_cookies(target, caplog, value):
    assert_refused(target, target.request("GET / HTTP/1.1", HOST, f"Cookie: {value}"), caplog)


@pytest.mark.parametrize("path", PATHS)
def test_refuses_hostile_paths(target, caplog, path):
    answer = target.request(f"GET {path} HTTP/1.1", HOST)
    assert_refused(target, answer, caplog)
    assert b"root:" not in answer
    assert b"Location:" not in answer


@pytest.mark.parametrize("header", HEADERS)
def test_refuses_hostile_headers(target, caplog, header):
    assert_refused(target, target.request("GET / HTTP/1.1", HOST, header), caplog)


@pytest.mark.parametrize(("mode", "destination"), FETCHES)
@pytest.mark.parametrize("path", ["/", "/enter?code={code}"])
def test_refuses_fetches_of_other_pages(target, caplog, mode, destination, path):
    headers = [f"Sec-Fetch-Mode: {mode}", f"Sec-Fetch-Dest: {destination}", "Sec-Fetch-Site: same-site"]
    assert_refused(target, target.request(f"GET {path} HTTP/1.1", HOST, COOKIE, *headers), caplog)


@pytest.mark.parametrize("data", MALFORMED)
def test_refuses_malformed_requests(target, caplog, data):
    assert_refused(target, target.send(data), caplog)


# -- WebSockets ----------------------------------------------------------------------------------------------------

ORIGINS = [
    None,
    "",
    "null",
    "file://",
    "http://evil.example",
    "http://evil.example:{port}",
    "http://127.0.0.1",
    "http://127.0.0.1:1",
    "http://127.0.0.1:{port}0",
    "https://127.0.0.1:{port}",
    "ws://127.0.0.1:{port}",
    "http://localhost:{port}",
    "http://[::1]:{port}",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@evil.example",
    "https://127.0.0.1:{port}/..@evil",
    "http://evil.example/http://127.0.0.1:{port}",
    "127.0.0.1:{port}",
]
UPGRADE = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {'x' * 22}=="]
MESSAGES = {
    "empty": "",
    "not JSON": "not JSON",
    "a number": "1",
    "a list": "[]",
    "no type": "{}",
    "unknown type": json.dumps({"msgid": "1", "msgtype": "NOTHING"}),
    "type of another kind": json.dumps({"msgid": "1", "msgtype": ["PATCH-DOC"]}),
    "deeply nested": "[" * 100_000,
    "binary": b"\x00\xff",
    "surrogate": '"\\ud800"',
    "infinite": "1e999999",
    "too long": "x" * 2 * MAX_MESSAGE_BYTES,
}
PATCHES = [
    None,
    [],
    {},
    {"events": None},
    {"events": [{"kind": "nothing"}]},
    {"events": [{"kind": "ModelChanged", "model": {"id": "none"}, "attr": "ask", "new": 1}]},
    {"events": [{"kind": "RootAdded", "model": {"type": "object", "name": "os.system", "id": "x"}}]},
    {"events": [{"kind": "MessageSent", "msg_type": "bokeh_event", "msg_data": {"type": "event", "name": "x"}}]},
]


@pytest.mark.parametrize("origin", ORIGINS)
def test_refuses_websockets_of_other_origins(target, caplog, origin):
    headers = [HOST, COOKIE, "Sec-WebSocket-Protocol: bokeh, {token}"]
    headers += [] if origin is None else [f"Origin: {origin}"]
    assert_refused(target, target.upgrade(*headers), caplog)


@pytest.mark.parametrize("value", COOKIES)
def test_refuses_websockets_without_the_cookie(target, caplog, value):
    headers = [HOST, "Origin: http://{host}", f"Cookie: {value}", "Sec-WebSocket-Protocol: bokeh, x"]
    assert_refused(target, target.upgrade(*headers), caplog)


def attempt(target, *messages):
    """Send messages over an authenticated socket, close it, and check that the page is still served."""
    token = page_token(target.viewer)

    async def talk():
        headers = {"Origin": f"http://{target.host}", "Cookie": target.cookie}
        socket = await connect(target.viewer, token, headers)
        assert "ACK" in await socket.read_message()
        try:
            for message in messages:
                await socket.write_message(message, binary=isinstance(message, bytes))
        except WebSocketClosedError:
            pass
        await close(socket)

    asyncio.run(talk())
    assert fetch(home(target.viewer), Cookie=target.cookie)[0] == 200


@pytest.mark.parametrize("name", MESSAGES)
def test_malformed_messages_close_only_their_socket(target, name):
    attempt(target, MESSAGES[name])


@pytest.mark.parametrize("content", PATCHES)
def test_malformed_patches_close_only_their_socket(target, content):
    attempt(target, json.dumps({"msgid": "1", "msgtype": "PATCH-DOC"}), "{}", json.dumps(content))
