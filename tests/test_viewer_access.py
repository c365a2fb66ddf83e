"""Who may see the page, what is served where, and many at once."""

import asyncio
import contextlib
import http.client
import json
import socket
import urllib.error
import urllib.request

import pytest
from bokeh.util.token import get_token_payload
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClosedError, websocket_connect

from clearhead import view
from clearhead.viewer.serving import MESSAGE, PORT
from recordings import decoder


@pytest.fixture(scope="module")
def viewer():
    with view(decoder("abcdefghij"), browser=False, wait=False) as found:
        yield found


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments):
        return None


def fetch(url, **headers):
    """Status, headers and text, without following a redirect."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.build_opener(_Stay).open(request) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def home(viewer):
    return f"http://127.0.0.1:{viewer.port}/"


def cookie(viewer):
    return fetch(viewer.url)[1]["Set-Cookie"].split(";")[0]


def test_the_first_address_becomes_a_cookie_and_an_address_without_the_token(viewer):
    status, headers, _ = fetch(viewer.url)
    assert (status, headers["Location"]) == (302, "/")
    name, *attributes = headers["Set-Cookie"].split("; ")
    assert name.startswith(f"clearhead-{viewer.port}=")
    assert set(attributes) == {"HttpOnly", "Path=/", "SameSite=Strict"}
    assert viewer.url.rpartition("=")[2] not in headers["Set-Cookie"]
    status, _, text = fetch(home(viewer), Cookie=cookie(viewer))
    assert status == 200
    assert "<main>" in text


@pytest.mark.parametrize("path", ["", "enter", "enter?token=", "enter?token=wrong", "?token=wrong"])
def test_others_are_refused_and_told_what_to_do(viewer, path):
    status, headers, text = fetch(home(viewer) + path)
    assert status == 403
    assert "Set-Cookie" not in headers
    assert "clearhead view" in text


HARDENED = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@pytest.mark.parametrize(
    ("path", "status"),
    [("", 200), ("enter?token=wrong", 403), ("static/js/bokeh.min.js", 200), ("static/js/none.js", 404), ("none", 404)],
)
def test_every_answer_has_security_headers(viewer, path, status):
    got, headers, _ = fetch(home(viewer) + path, Cookie=cookie(viewer) if not path else "")
    assert got == status
    assert {name: headers.get_all(name) for name in HARDENED} == {name: [value] for name, value in HARDENED.items()}
    policy = headers["Content-Security-Policy"]
    for directive in ("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
        assert directive in policy


def test_answers_before_the_page_have_security_headers_too(viewer):
    for headers in (fetch(viewer.url)[1], fetch(home(viewer), Host="evil.example")[1]):
        assert {name: headers[name] for name in HARDENED} == HARDENED


@pytest.mark.parametrize(
    "path", ["static/js/%00", "static/js/bokeh.min.js%00", "static/", "static/js/", "favicon.ico", "static/../enter"]
)
def test_paths_that_the_page_does_not_use_do_not_exist(viewer, path, caplog):
    assert fetch(home(viewer) + path)[0] == 404
    assert caplog.records == []


def test_the_secret_is_nowhere_in_the_page_and_other_addresses_are_for_nobody(viewer):
    own = cookie(viewer)
    _, headers, text = fetch(home(viewer), Cookie=own, X_Private="something")
    payload = get_token_payload(_token(text))
    assert payload["cookies"] == payload["headers"] == {}
    assert own.partition("=")[2] not in text + str(payload)
    assert headers["X-Frame-Options"] == "DENY"
    for path in ("autoload.js?bokeh-autoload-element=x", "metadata"):
        assert fetch(home(viewer) + path, Cookie=own, Origin="http://127.0.0.1:1")[0] == 404


@pytest.mark.parametrize(
    ("mode", "destination", "status"),
    [("navigate", "document", 200), ("cors", "empty", 403), ("no-cors", "script", 403), ("navigate", "iframe", 403)],
)
def test_other_pages_of_this_machine_cannot_read_or_frame_it(viewer, mode, destination, status):
    headers = {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": destination}
    assert fetch(home(viewer), Cookie=cookie(viewer), **headers)[0] == status


def test_a_cookie_of_another_viewer_is_of_no_use(viewer):
    with view(decoder("abc"), browser=False, wait=False) as other:
        assert other.port != viewer.port
        value = cookie(other).split("=")[1]
        assert fetch(home(viewer), Cookie=f"clearhead-{viewer.port}={value}")[0] == 403
        # a browser sends both
        assert fetch(home(viewer), Cookie=f"{cookie(other)}; {cookie(viewer)}")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:{port}", "localhost:1", "127.0.0.1", "[::1]:{port}"]
)
@pytest.mark.parametrize("path", ["", "enter"])
def test_a_name_that_was_made_to_point_here_is_refused(viewer, host, path):
    url = viewer.url if path else home(viewer)
    status, headers, _ = fetch(url, Host=host.format(port=viewer.port), Cookie=cookie(viewer))
    assert status == 403
    assert "Set-Cookie" not in headers


def test_by_the_name_of_localhost_too(viewer):
    assert fetch(home(viewer), Host=f"localhost:{viewer.port}", Cookie=cookie(viewer))[0] == 200


def test_it_listens_at_one_address_of_this_machine_only(viewer):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", viewer.port), timeout=5)


def _token(text):
    start = text.index('"token":"') + len('"token":"')
    return text[start : text.index('"', start)]


def connect(viewer, token, headers):
    request = HTTPRequest(f"ws://127.0.0.1:{viewer.port}/ws", headers=headers)
    return websocket_connect(request, subprotocols=["bokeh", token])


async def close(socket):
    """And wait for the other side to close it too."""
    socket.close()
    while await socket.read_message() is not None:
        pass


def _token_of_page(viewer):
    return _token(fetch(home(viewer), Cookie=cookie(viewer))[2])


@pytest.mark.parametrize(
    ("origin", "with_cookie", "opens"),
    [
        ("http://127.0.0.1:{port}", True, True),
        ("http://127.0.0.1:{port}", False, False),
        ("http://evil.example", True, False),
        ("http://127.0.0.1:1", True, False),
        ("https://127.0.0.1:{port}", True, False),
        ("http://127.0.0.1:{port}/..@evil.example", True, False),
        ("http://localhost:{port}", True, False),  # not where this page came from
        ("null", True, False),
        (None, True, False),
    ],
)
def test_sockets_are_for_the_page_itself(viewer, origin, with_cookie, opens):
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "x" * 22 + "==", "Sec-WebSocket-Protocol": f"bokeh, {_token_of_page(viewer)}"}
    headers |= {} if origin is None else {"Origin": origin.format(port=viewer.port)}
    headers |= {"Cookie": cookie(viewer)} if with_cookie else {}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", viewer.port)) as connection:
        connection.request("GET", "/ws", headers=headers)
        assert connection.getresponse().status == (101 if opens else 403)


def test_fifty_at_once(viewer):
    tokens = [_token_of_page(viewer) for _ in range(50)]
    headers = {"Origin": f"http://127.0.0.1:{viewer.port}", "Cookie": cookie(viewer)}

    async def one(token):
        socket = await connect(viewer, token, headers)
        first = await socket.read_message()
        await socket.write_message(json.dumps({"msgid": "1", "msgtype": "PULL-DOC-REQ"}))
        await socket.write_message("{}")
        await socket.write_message("{}")
        pulled = [await socket.read_message() for _ in range(3)]
        await close(socket)
        return first, pulled

    async def all_of_them():
        return await asyncio.gather(*(one(token) for token in tokens))

    for first, pulled in asyncio.run(all_of_them()):
        assert "ACK" in first
        assert any(part and "PULL-DOC-REPLY" in part for part in pulled)
    assert fetch(home(viewer), Cookie=cookie(viewer))[0] == 200


def test_a_message_that_is_too_long_ends_only_its_own_socket(viewer):
    token, headers = _token_of_page(viewer), {"Origin": f"http://127.0.0.1:{viewer.port}", "Cookie": cookie(viewer)}

    async def attempt():
        socket = await connect(viewer, token, headers)
        await socket.read_message()
        with contextlib.suppress(WebSocketClosedError):
            await socket.write_message("x" * 2 * MESSAGE)
        await close(socket)

    asyncio.run(attempt())
    assert fetch(home(viewer), Cookie=cookie(viewer))[0] == 200


def test_a_port_in_use_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with view(decoder("abc"), port=port, browser=False, wait=False) as found:
            assert port < found.port <= port + 100
            assert fetch(found.url)[0] == 302


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"port": 0}, ValueError, "port is 0; expected a whole number of at least 1"),
        ({"port": 70_000}, ValueError, "port is 70000; expected at most 65535"),
        ({"port": "http"}, TypeError, "port is 'http'; expected a whole number"),
        ({"text": "x"}, ValueError, "text is given, but a recording is of its own text"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        view(decoder("abc"), browser=False, wait=False, **arguments)


def test_the_default_port_and_how_to_reach_it_from_elsewhere(viewer):
    assert viewer.port >= PORT
    assert viewer.forwarding.startswith(f"ssh -L {viewer.port}:127.0.0.1:{viewer.port} ")


def test_a_browser_is_opened_only_where_one_is_wanted(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with view(decoder("abc"), browser=False, wait=False):
        assert opened == []
    with view(decoder("abc"), wait=False) as found:
        assert opened == [found.url]


def test_a_connection_without_a_request_is_closed(monkeypatch):
    monkeypatch.setattr("clearhead.viewer.serving.IDLE", 0.05)
    with (
        view(decoder("abc"), browser=False, wait=False) as found,
        socket.create_connection(("127.0.0.1", found.port), timeout=60) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert connection.recv(1) == b""
