"""Tests of access to the page: links, cookies, hosts, origins, ports, redirect files, concurrent clients."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import stat
import time
import urllib.parse

import pytest
from bokeh.util.token import get_token_payload
from tornado.websocket import WebSocketClosedError

from clearhead import view
from clearhead.viewer.server import _ports
from clearhead.viewer.server._ports import bind
from clearhead.viewer.server.serve import DEFAULT_PORT, MAX_MESSAGE_BYTES
from support.recordings import decoder
from support.viewer_client import close, connect, cookie, fetch, home, page_token, token_in


@pytest.fixture(scope="module")
def viewer():
    with view(decoder("abcdefghij"), browser=False, wait=False) as viewer:
        yield viewer


def until(condition):
    """Wait until a condition holds, which the server's thread changes."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_link_sets_a_cookie_and_redirects_without_the_code(viewer):
    url = viewer.url
    status, headers, text = fetch(url)
    assert status == 200
    assert 'location.replace("/" + location.hash)' in text
    name, *attributes = headers["Set-Cookie"].split("; ")
    assert name.startswith(f"clearhead-{viewer.port}=")
    assert set(attributes) == {"HttpOnly", "Path=/", "SameSite=Strict"}
    assert url.rpartition("=")[2] not in headers["Set-Cookie"]
    status, _, text = fetch(home(viewer), Cookie=name)
    assert status == 200
    assert "<main>" in text


def test_link_works_once_and_is_replaced(viewer):
    url = viewer.url
    assert viewer.url == url
    first_cookie = cookie(viewer)
    assert viewer.url != url
    status, headers, text = fetch(url)
    assert status == 403
    assert "Set-Cookie" not in headers
    assert "This link was already used" in text
    assert fetch(url, Cookie=first_cookie)[0] == 200  # same browser
    assert fetch(viewer.url)[0] == 200


def test_opening_a_link_with_a_cookie_does_not_use_it_up(viewer):
    first_cookie, url = cookie(viewer), viewer.url
    assert fetch(url, Cookie=first_cookie)[0] == 200
    assert viewer.url == url


@pytest.mark.parametrize("path", ["", "enter", "enter?code=", "enter?code=wrong", "?code=wrong", "enter?token=wrong"])
def test_refuses_requests_without_a_valid_code_and_explains(viewer, path):
    status, headers, text = fetch(home(viewer) + path)
    assert status == 403
    assert "Set-Cookie" not in headers
    assert "This address needs a link" in text
    assert "clearhead view" in text


@pytest.mark.parametrize("added", ["%00", "%20", "x"])
def test_refuses_a_code_with_a_suffix(viewer, added):
    assert fetch(viewer.url + added)[0] == 403


HARDENED = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 200),
        ("enter?code=wrong", 403),
        ("static/js/bokeh.min.js", 200),
        ("static/js/none.js", 404),
        ("modules/state.js", 200),
        ("modules/none.js", 404),
        ("font", 200),
        ("font?text=a", 403),
        ("none", 404),
    ],
)
def test_every_response_has_security_headers(viewer, path, status):
    got, headers, _ = fetch(home(viewer) + path, Cookie=cookie(viewer) if not path else "")
    assert got == status
    expected = HARDENED | ({"Cache-Control": "private, max-age=86400"} if path == "font" else {})
    assert {name: headers.get_all(name) for name in expected} == {name: [value] for name, value in expected.items()}
    policy = headers["Content-Security-Policy"]
    for directive in ("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"):
        assert directive in policy


def test_only_the_whole_font_is_cached(viewer):
    for path in ("font?text=あ", "font?", "modules/state.js", ""):
        status, headers, _ = fetch(home(viewer) + urllib.parse.quote(path, safe="/?="), Cookie=cookie(viewer))
        assert (status, headers["Cache-Control"]) == (200, "no-store")


def test_login_and_refusals_have_security_headers(viewer):
    for headers in (fetch(viewer.url)[1], fetch(home(viewer), Host="evil.example")[1]):
        assert {name: headers[name] for name in HARDENED} == HARDENED


@pytest.mark.parametrize(
    "path",
    [
        "static/js/%00",
        "static/js/bokeh.min.js%00",
        "static/",
        "static/js/",
        "favicon.ico",
        "static/../enter",
        "modules/",
        "modules/page.css",
        "modules/payloads.d.ts",
        "modules/../server/serve.py",
    ],
)
def test_unused_paths_are_not_found(viewer, path, caplog):
    assert fetch(home(viewer) + path)[0] == 404
    assert caplog.records == []


def test_page_omits_the_secret_and_other_endpoints_are_not_found(viewer):
    page_cookie = cookie(viewer)
    _, headers, text = fetch(home(viewer), Cookie=page_cookie, X_Private="something")
    payload = get_token_payload(token_in(text))
    assert payload["cookies"] == payload["headers"] == {}
    assert page_cookie.partition("=")[2] not in text + str(payload)
    assert headers["X-Frame-Options"] == "DENY"
    for path in ("autoload.js?bokeh-autoload-element=x", "metadata"):
        assert fetch(home(viewer) + path, Cookie=page_cookie, Origin="http://127.0.0.1:1")[0] == 404


@pytest.mark.parametrize(
    ("mode", "destination", "status"),
    [("navigate", "document", 200), ("cors", "empty", 403), ("no-cors", "script", 403), ("navigate", "iframe", 403)],
)
def test_refuses_scripts_and_frames_of_other_local_pages(viewer, mode, destination, status):
    headers = {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": destination}
    assert fetch(home(viewer), Cookie=cookie(viewer), **headers)[0] == status


def test_refuses_the_cookie_of_another_viewer(viewer):
    with view(decoder("abc"), browser=False, wait=False) as other:
        assert other.port != viewer.port
        value = cookie(other).split("=")[1]
        assert fetch(home(viewer), Cookie=f"clearhead-{viewer.port}={value}")[0] == 403
        # browsers send the cookies of both viewers
        assert fetch(home(viewer), Cookie=f"{cookie(other)}; {cookie(viewer)}")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:{port}", "localhost:1", "127.0.0.1", "[::1]:{port}"]
)
@pytest.mark.parametrize("path", ["", "enter"])
def test_refuses_other_host_names(viewer, host, path):
    url = viewer.url if path else home(viewer)
    status, headers, _ = fetch(url, Host=host.format(port=viewer.port), Cookie=cookie(viewer))
    assert status == 403
    assert "Set-Cookie" not in headers


def test_accepts_localhost_as_host(viewer):
    assert fetch(home(viewer), Host=f"localhost:{viewer.port}", Cookie=cookie(viewer))[0] == 200


def test_listens_on_127_0_0_1_only(viewer):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", viewer.port), timeout=5)


@pytest.mark.parametrize(
    ("origin", "with_cookie", "opens"),
    [
        ("http://127.0.0.1:{port}", True, True),
        ("http://127.0.0.1:{port}", False, False),
        ("http://evil.example", True, False),
        ("http://127.0.0.1:1", True, False),
        ("https://127.0.0.1:{port}", True, False),
        ("http://127.0.0.1:{port}/..@evil.example", True, False),
        ("http://localhost:{port}", True, False),  # another origin than the page's
        ("null", True, False),
        (None, True, False),
    ],
)
def test_websockets_require_the_origin_and_the_cookie(viewer, origin, with_cookie, opens):
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "x" * 22 + "==", "Sec-WebSocket-Protocol": f"bokeh, {page_token(viewer)}"}
    headers |= {} if origin is None else {"Origin": origin.format(port=viewer.port)}
    headers |= {"Cookie": cookie(viewer)} if with_cookie else {}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", viewer.port)) as connection:
        connection.request("GET", "/ws", headers=headers)
        assert connection.getresponse().status == (101 if opens else 403)


@pytest.mark.slow
def test_serves_fifty_clients_at_once(viewer):
    tokens = [page_token(viewer) for _ in range(50)]
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

    async def run_all():
        return await asyncio.gather(*(one(token) for token in tokens))

    for first, pulled in asyncio.run(run_all()):
        assert "ACK" in first
        assert any(part and "PULL-DOC-REPLY" in part for part in pulled)
    assert fetch(home(viewer), Cookie=cookie(viewer))[0] == 200


def test_too_long_message_closes_only_its_socket(viewer):
    token, headers = page_token(viewer), {"Origin": f"http://127.0.0.1:{viewer.port}", "Cookie": cookie(viewer)}

    async def attempt():
        socket = await connect(viewer, token, headers)
        await socket.read_message()
        with contextlib.suppress(WebSocketClosedError):
            await socket.write_message("x" * 2 * MAX_MESSAGE_BYTES)
        await close(socket)

    asyncio.run(attempt())
    assert fetch(home(viewer), Cookie=cookie(viewer))[0] == 200


def test_port_in_use_is_skipped():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with view(decoder("abc"), port=port, browser=False, wait=False) as viewer:
            assert port < viewer.port <= port + 100
            assert fetch(viewer.url)[0] == 200


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"port": 0}, ValueError, "port is 0; expected a whole number of at least 1"),
        ({"port": 70_000}, ValueError, "port is 70000; expected at most 65535"),
        ({"port": "http"}, TypeError, "port is 'http'; expected a whole number"),
        ({"text": "x"}, ValueError, "text is given, but a recording already contains its text"),
    ],
)
def test_rejects_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        view(decoder("abc"), browser=False, wait=False, **arguments)


def test_default_port_and_ssh_forwarding_command(viewer):
    assert viewer.port >= DEFAULT_PORT
    assert viewer.forwarding.startswith(f"ssh -L {viewer.port}:127.0.0.1:{viewer.port} ")


def test_search_for_a_free_port_skips_the_ports_that_browsers_block(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(_ports, "BLOCKED_PORTS", frozenset(range(port + 1, port + 5)))
        with bind(port) as bound:
            assert bound.getsockname()[1] >= port + 5
        for blocked in (port + 1, port + 4):
            with pytest.raises(ValueError, match=f"port is {blocked}, which browsers refuse to open; expected another"):
                bind(blocked)


@pytest.fixture
def home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def opened(monkeypatch):
    """Addresses passed to `webbrowser.open`."""
    addresses = []
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or True)
    return addresses


def test_browser_opens_only_if_requested(home_folder, opened):
    with view(decoder("abc"), browser=False, wait=False):
        assert opened == []
    with view(decoder("abc"), wait=False):
        assert len(opened) == 1


def test_browser_gets_its_link_from_a_private_file(home_folder, opened):
    with view(decoder("abc"), wait=False) as viewer:
        (page,) = home_folder.iterdir()
        assert opened == [page.as_uri()]
        assert "code" not in opened[0]
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        link = re.search(r"url=([^\"]+)", page.read_text())[1]
        printed = viewer.url
        assert link != printed
        assert fetch(link)[0] == 200
        assert list(home_folder.iterdir()) == []  # removed after use
        assert fetch(link)[0] == 403
        assert viewer.url == printed


def test_redirect_file_is_removed_on_close(home_folder, opened):
    with view(decoder("abc"), wait=False):
        assert len(list(home_folder.iterdir())) == 1
    assert list(home_folder.iterdir()) == []


def test_redirect_file_is_removed_if_a_signal_arrives_while_it_is_written(home_folder, opened, monkeypatch):
    def interrupted(path, url):
        path.write_text(url)
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.viewer.server.serve.write_redirect_file", interrupted)
    with view(decoder("abc"), browser=False, wait=False) as viewer:
        with pytest.raises(KeyboardInterrupt):
            viewer.open()
        assert len(list(home_folder.iterdir())) == 1
    assert list(home_folder.iterdir()) == []


def test_redirect_file_is_removed_after_its_lifetime(home_folder, opened, monkeypatch):
    monkeypatch.setattr("clearhead.viewer.server.serve.LINK_LIFETIME_S", 0.01)
    with view(decoder("abc"), wait=False):
        (page,) = home_folder.iterdir()
        link = re.search(r"url=([^\"]+)", page.read_text())[1]
        until(lambda: not page.exists())
        assert fetch(link)[0] == 403


def test_redirect_file_is_removed_without_a_browser(home_folder, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    with view(decoder("abc"), wait=False) as viewer:
        assert list(home_folder.iterdir()) == []
        assert not viewer.open()


def test_redirect_file_falls_back_to_the_temporary_folder(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with view(decoder("abc"), wait=False):
        (page,) = tmp_path.iterdir()
        assert opened == [page.as_uri()]


def test_browser_is_not_opened_without_a_writable_folder(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with view(decoder("abc"), wait=False) as viewer:
        assert opened == []
        assert fetch(viewer.url)[0] == 200


def test_idle_connections_are_closed(monkeypatch):
    monkeypatch.setattr("clearhead.viewer.server.serve.IDLE_TIMEOUT_S", 0.05)
    with (
        view(decoder("abc"), browser=False, wait=False) as viewer,
        socket.create_connection(("127.0.0.1", viewer.port), timeout=60) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert connection.recv(1) == b""
