"""`view`: a page on this machine that shows a model's attention on a text."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import getpass
import logging
import socket
import threading
import webbrowser
from concurrent.futures import Future
from pathlib import Path

import torch
from bokeh.application import Application
from bokeh.server.server import BaseServer
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from clearhead._utils.checks import check_int
from clearhead.analysis import Roles
from clearhead.viewer.server._auth import LOGIN_PATH, Access
from clearhead.viewer.server._redirect_file import write_redirect_file
from clearhead.viewer.server._request_filter import LOCAL_HOSTS, FilteredTornado
from clearhead.viewer.server._session_handler import SessionHandler
from clearhead.viewer.server._texts import Source, Texts

DEFAULT_PORT = 5006
MAX_PORT_ATTEMPTS = 100  # after the first
CLOSE_GRACE_S = 0.1  # in which pages are told that the server ends
MAX_MESSAGE_BYTES = 2**20  # that a page may send
IDLE_TIMEOUT_S = 60.0  # until a connection that sends no complete request is closed
LINK_LIFETIME_S = 120.0  # of a link that a browser is started with


class Viewer:
    """A page being served, in a thread of its own until `close` is called."""

    def __init__(self, texts: Texts, bound: socket.socket) -> None:
        for name in (
            "tornado.access",
            "tornado.general",
        ):  # requests that are refused, as anybody on the machine writes them
            logging.getLogger(name).setLevel(logging.ERROR)
        self._texts, self._access = texts, Access()
        self._code = self._access.issue(self._renew)
        self._prints = False
        self._handed_over: dict[str, Path] = {}  # codes and the files that hold them
        self.port = bound.getsockname()[1]
        self._loop: Future[IOLoop] = Future()
        self._thread = threading.Thread(target=self._serve, args=(bound,), daemon=True)
        self._thread.start()
        self._loop.result()  # what goes wrong at the start goes wrong here

    @property
    def url(self) -> str:
        """The link to open. It opens the page once, in one browser; after that this is a new link."""
        return self._link(self._code)

    @property
    def forwarding(self) -> str:
        """What to type on another machine before opening the address there."""
        return f"ssh -L {self.port}:127.0.0.1:{self.port} {getpass.getuser()}@{socket.gethostname()}"

    def open(self) -> bool:
        """Open the page in a browser; False if there is none."""
        code = self._access.issue(lambda: self._withdraw(code))
        page = write_redirect_file(self._link(code))
        if page is None:
            self._access.revoke(code)
            return False
        self._handed_over[code] = page
        loop = self._loop.result()
        loop.add_callback(
            loop.call_later, LINK_LIFETIME_S, self._withdraw, code
        )  # first: a browser in the terminal is waited for
        opened = webbrowser.open(page.as_uri())
        if not opened:
            self._withdraw(code)
        return opened

    def print_link(self) -> None:
        """Print the link, and a new one whenever the last was used."""
        self._prints = True
        print(f"Open  {self.url}")
        print(f"From another machine first:  {self.forwarding}")
        print("Ctrl-C stops it.", flush=True)

    def wait(self) -> None:
        """Serve until `close` is called, or until Ctrl-C."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop serving. Pages that are open stay as they are."""
        loop = self._loop.result()
        if self._thread.is_alive():
            loop.add_callback(loop.stop)
            self._thread.join()
        for code in list(self._handed_over):
            self._withdraw(code)
        self._texts.worker.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _link(self, code: str) -> str:
        return f"http://127.0.0.1:{self.port}{LOGIN_PATH}?code={code}"

    def _renew(self) -> None:
        """Replace the link that was just used."""
        self._code = self._access.issue(self._renew)
        if self._prints:
            with contextlib.suppress(OSError):  # the terminal is gone; the page is still to be served
                print(f"That link was used. For another browser:  {self.url}", flush=True)

    def _withdraw(self, code: str) -> None:
        """Revoke a code that was handed to a browser, and remove its file."""
        self._access.revoke(code)
        page = self._handed_over.pop(code, None)
        if page is not None:
            page.unlink(missing_ok=True)

    def _serve(self, bound: socket.socket) -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        loop = IOLoop.current()
        try:
            server, http = _server(Application(SessionHandler(self._texts)), self._access, bound)
            server.start()
        except BaseException as error:
            bound.close()
            loop.close()
            self._loop.set_exception(error)
            return
        self._loop.set_result(loop)
        loop.start()
        server.stop()

        async def close_connections() -> None:  # or browsers would go on waiting for an answer
            self._access.close_sockets()
            await asyncio.sleep(CLOSE_GRACE_S)
            await http.close_all_connections()

        loop.run_sync(close_connections)
        loop.close()


def view(
    model: Source = "en-ja",
    text: str | list[str] | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    download: bool = False,
    roles: Roles | None = None,
    port: int = DEFAULT_PORT,
    browser: bool = True,
    wait: bool = True,
) -> Viewer:
    """Serve a page on this machine that shows every head, from the whole matrix to one cell.

    Args:
        model: a model, by name or as `models.load` returns it; or a recording, or its path (.safetensors).
        text: a text to run the model on, or several to choose from (default: an example of ours).
        device, dtype, download: as `models.load` takes them, for a model by name; `device` also for a recording's path.
        roles: what `clearhead roles --output` found, for labels such as "induction" that no single text shows.
        port: the port to serve on; if it is in use, the next that is free.
        browser: open the page in a browser.
        wait: print the link and serve until Ctrl-C. Otherwise return at once, and serve until `close` is called on
            the viewer that is returned; its `url` is the link.
    """
    bound = _bind(check_int("port", port))  # first, for a model may take its time to load
    try:
        viewer = Viewer(Texts(model, text, roles, device=device, dtype=dtype, download=download), bound)
    except BaseException:
        bound.close()
        raise
    if wait:
        viewer.print_link()
    if browser:
        viewer.open()
    if wait:
        viewer.wait()
    return viewer


def _server(application: Application, access: Access, bound: socket.socket) -> tuple[BaseServer, HTTPServer]:
    port = bound.getsockname()[1]
    tornado = FilteredTornado(
        {"/": application},
        auth_provider=access,
        extra_websocket_origins=[f"{host}:{port}" for host in LOCAL_HOSTS],
        use_index=False,
        include_cookies=[],  # which Bokeh would write into the page's own text
        include_headers=[],
        websocket_max_message_size_bytes=MAX_MESSAGE_BYTES,
    )
    http = HTTPServer(
        tornado, idle_connection_timeout=IDLE_TIMEOUT_S, body_timeout=IDLE_TIMEOUT_S, max_body_size=MAX_MESSAGE_BYTES
    )
    http.add_socket(bound)
    return BaseServer(IOLoop.current(), tornado, http), http


def _bind(port: int) -> socket.socket:
    """Return a socket on the first free port from `port` on, of this machine only."""
    if port > 65_535:
        raise ValueError(f"port is {port}; expected at most 65535")
    for candidate in range(port, min(port + MAX_PORT_ATTEMPTS, 65_535) + 1):
        try:
            bound = socket.create_server(("127.0.0.1", candidate))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(f"port is {port}: {error.strerror}") from None
        else:
            bound.setblocking(False)
            return bound
    raise OSError(f"port is {port}; it and the {MAX_PORT_ATTEMPTS} after it are in use")
