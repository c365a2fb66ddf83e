"""`view`: serve a local page that shows a model's attention on a text."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import socket
import threading
from concurrent.futures import Future
from pathlib import Path

import torch
from bokeh.application import Application
from bokeh.server.server import BaseServer
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from clearhead._utils.browsers import is_remote, open_window
from clearhead._utils.checks import check_int
from clearhead._utils.progress import StageProgress, check_progress
from clearhead.analysis import Roles
from clearhead.recording import Recording
from clearhead.viewer._templates import FONT_PATH, MODULES_PATH
from clearhead.viewer.server._auth import LOGIN_PATH, Access
from clearhead.viewer.server._downloads import EXPLAIN_PATH, REPORT_PATH, Downloads, ExplainHandler, ReportHandler
from clearhead.viewer.server._modules import FontHandler, ModuleHandler
from clearhead.viewer.server._ports import bind
from clearhead.viewer.server._redirect_file import redirect_paths, write_redirect_file
from clearhead.viewer.server._request_filter import LOCAL_HOSTS, FilteredTornado
from clearhead.viewer.server._session_handler import SessionHandler
from clearhead.viewer.server._texts import Source, Texts
from clearhead.watching.seen import Seen

DEFAULT_PORT = 5006
CLOSE_GRACE_S = 0.1  # seconds to wait so that close messages reach the pages
MAX_MESSAGE_BYTES = 2**20  # largest message or address from a page
IDLE_TIMEOUT_S = 60.0  # seconds to wait for a complete request
LINK_LIFETIME_S = 120.0  # seconds until the link passed to a browser expires
_FORWARDING = "From another machine, first run there:"
_FORWARDING_OVER_SSH = "You are connected over SSH. First run on your own machine, then open the link there:"


class Viewer:
    """Running viewer: serves its page in a background thread until `close()` is called.

    `with view(model, wait=False) as viewer:` closes the viewer at the end of the block.
    """

    def __init__(self, texts: Texts, bound: socket.socket) -> None:
        # any local user could otherwise write arbitrary text into the log
        for name in ("tornado.access", "tornado.general"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._texts, self._access = texts, Access()
        self._code = self._access.issue(self._renew)
        self._prints = False
        self._handed_over: dict[str, Path] = {}  # codes and the redirect files that contain them
        self.port = bound.getsockname()[1]
        self._loop: Future[IOLoop] = Future()
        self._thread = threading.Thread(target=self._serve, args=(bound,), daemon=True)
        self._thread.start()
        self._loop.result()  # raises if the server could not start

    @property
    def url(self) -> str:
        """Link to open. Each link works once, in one browser; after that, `url` is a new link."""
        return self._link(self._code)

    @property
    def forwarding(self) -> str:
        """Command to run on another machine, so that the link opens there."""
        return f"ssh -L {self.port}:127.0.0.1:{self.port} {getpass.getuser()}@{socket.gethostname()}"

    def open(self) -> bool:
        """Open the page in a browser. Return False if no browser could be started."""
        code = self._access.issue(lambda: self._withdraw(code))
        for page in redirect_paths():
            self._handed_over[code] = page  # first, so that `close` removes the file whenever a signal arrives
            if write_redirect_file(page, self._link(code)):
                break
            self._withdraw_file(code)
        else:
            self._access.revoke(code)
            return False
        loop = self._loop.result()
        # scheduled first, because a text-mode browser that BROWSER names blocks until it exits
        loop.add_callback(loop.call_later, LINK_LIFETIME_S, self._withdraw, code)
        opened = open_window(page.as_uri())
        if not opened:
            self._withdraw(code)
        return opened

    def show(self, *, browser: bool = True) -> None:
        """Print the link, and a new link each time one is used; open the page in a browser.

        Args:
            browser: open the page, and print a line if no browser could be started.
        """
        self._prints = True
        print(f"Open  {self.url}")
        print(f"{_FORWARDING_OVER_SSH if is_remote() else _FORWARDING}  {self.forwarding}")
        print("Press Ctrl-C to stop.", flush=True)
        if browser and not self.open() and not is_remote():
            print("No browser could be started on this machine. Open the link in one.", flush=True)

    def wait(self) -> None:
        """Serve until `close` is called, or until Ctrl-C."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop serving. Open pages keep their current content."""
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
            with contextlib.suppress(OSError):  # the terminal is closed, but the server continues
                print(f"The link was used. For another browser:  {self.url}", flush=True)

    def _withdraw(self, code: str) -> None:
        """Revoke a code that was passed to a browser, and remove its redirect file."""
        self._access.revoke(code)
        self._withdraw_file(code)

    def _withdraw_file(self, code: str) -> None:
        page = self._handed_over.pop(code, None)
        if page is not None:
            with contextlib.suppress(OSError):  # a folder that is not accessible
                page.unlink(missing_ok=True)

    def _serve(self, bound: socket.socket) -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        loop = IOLoop.current()
        try:
            server, http = _server(self._texts, self._access, bound)
            server.start()
        except BaseException as error:
            bound.close()
            loop.close()
            self._loop.set_exception(error)
            return
        self._loop.set_result(loop)
        loop.start()
        server.stop()

        async def close_connections() -> None:  # otherwise browsers keep waiting for a response
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
    compare: Recording | Seen | str | os.PathLike[str] | None = None,
    port: int = DEFAULT_PORT,
    browser: bool = True,
    wait: bool = True,
    progress: StageProgress | None = None,
) -> Viewer:
    """Serve a local page that shows every head of a model, from the whole matrix to single cells.

        view("en-ja", "The old dog barked.")

    Args:
        model: a model name or path, or a model loaded by `models.load`; or a recording or its path (.safetensors);
            or the result of `watch`.
        text: a text to run the model on, or a list of texts to choose from (default: a built-in example).
        device: device to load the model or recording to, if `model` is a name or path.
        dtype: dtype to load the model in, if `model` is a name or path.
        download: allow the download of a model that is not cached.
        roles: labels from `clearhead.analysis.head_roles`, such as "induction", that a single text cannot show.
        compare: a recording, or its path, whose heads are drawn next to those of `model`, with their differences.
        port: the port to serve on; if it is in use, the next free port is used. Ports that browsers refuse to open,
            such as 5060, raise an error.
        browser: open the page in a browser.
        wait: print the link and serve until Ctrl-C. If False, return at once and serve until `close()` is called.
        progress: called with the stage of loading and running the model, the steps done and their total, 0 if it is
            unknown.

    Returns:
        The running viewer. Its `url` is the link to the page.
    """
    check_progress(progress)
    bound = bind(check_int("port", port))  # first, because loading a model takes time
    try:
        options = {"device": device, "dtype": dtype, "download": download, "progress": progress}
        texts = Texts(model, text, roles, compare=compare, **options)
        viewer = Viewer(texts, bound)
    except BaseException:
        bound.close()
        raise
    if wait:
        viewer.show(browser=browser)
        viewer.wait()
    elif browser:
        viewer.open()
    return viewer


def _server(texts: Texts, access: Access, bound: socket.socket) -> tuple[BaseServer, HTTPServer]:
    downloads = Downloads(texts, access)
    port = bound.getsockname()[1]
    tornado = FilteredTornado(
        {"/": Application(SessionHandler(texts))},
        auth_provider=access,
        extra_patterns=[
            (rf"{MODULES_PATH}(.*)", ModuleHandler),
            (FONT_PATH, FontHandler, {"access": access}),
            (REPORT_PATH, ReportHandler, {"downloads": downloads}),
            (EXPLAIN_PATH, ExplainHandler, {"downloads": downloads}),
        ],
        extra_websocket_origins=[f"{host}:{port}" for host in LOCAL_HOSTS],
        use_index=False,
        include_cookies=[],  # Bokeh would embed them in the page's HTML
        include_headers=[],
        websocket_max_message_size_bytes=MAX_MESSAGE_BYTES,
    )
    http = HTTPServer(
        tornado,
        idle_connection_timeout=IDLE_TIMEOUT_S,
        body_timeout=IDLE_TIMEOUT_S,
        max_header_size=MAX_MESSAGE_BYTES,  # addresses of downloads contain a typed text: 9 bytes per Japanese letter
        max_body_size=MAX_MESSAGE_BYTES,
    )
    http.add_socket(bound)
    return BaseServer(IOLoop.current(), tornado, http), http
