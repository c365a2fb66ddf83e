"""`view`: a page on this machine that shows a model's attention on a text."""

from __future__ import annotations

import asyncio
import errno
import getpass
import logging
import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from concurrent.futures import Future

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.server.server import Server
from tornado.ioloop import IOLoop

from clearhead.checks import whole_number
from clearhead.models import Loaded
from clearhead.recording import Recording
from clearhead.roles import Roles
from clearhead.transformer.translate import Translator
from clearhead.viewer.access import ENTRANCE, LOCAL, Access
from clearhead.viewer.explorer import Explorer
from clearhead.viewer.texts import Texts

PORT = 5006
TRIED = 100  # ports after the one that was asked for
MESSAGE = 2**20  # bytes of the largest message that a page may send


class Viewer:
    """A page being served, in a thread of its own until `close` is called."""

    def __init__(self, show: Callable[[Document], None], port: int) -> None:
        self._access = Access()
        self._stop: Callable[[], None] = lambda: None
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._serve, args=(show, port, started), daemon=True)
        self._thread.start()
        self.port = started.result()

    @property
    def url(self) -> str:
        """The address to open: its token opens the page."""
        return f"http://127.0.0.1:{self.port}{ENTRANCE}?token={self._access.token}"

    @property
    def forwarding(self) -> str:
        """What to type on another machine before opening the address there."""
        return f"ssh -L {self.port}:127.0.0.1:{self.port} {getpass.getuser()}@{socket.gethostname()}"

    def wait(self) -> None:
        """Until it is closed, or Ctrl-C."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop serving. Pages that are open stay as they are."""
        self._stop()
        self._thread.join()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve(self, show: Callable[[Document], None], port: int, started: Future[int]) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            server, chosen = _bound(Application(FunctionHandler(show)), self._access, port)
        except BaseException as error:
            started.set_exception(error)
            loop.close()
            return
        server.start()
        own = IOLoop.current()
        self._stop = lambda: own.add_callback(own.stop)
        started.set_result(chosen)
        own.start()
        server.stop()
        own.close()


def view(
    shown: Recording | Loaded | Translator | str | os.PathLike[str] = "en-ja",
    text: str | list[str] | None = None,
    *,
    roles: Roles | None = None,
    port: int = PORT,
    browser: bool = True,
    wait: bool = True,
) -> Viewer:
    """Serve a page on this machine that shows every head, from the whole matrix to one cell.

    Args:
        shown: a recording; or a model, by name or as `models.load` gives it, to record.
        text: what the model reads, or several texts to choose from; a sentence of our own where none is given.
        roles: what `clearhead roles --output` found, for labels such as "induction" that no single text shows.
        port: the port to serve on; if it is in use, the next that is free.
        browser: open the page in a browser.
        wait: until Ctrl-C. Otherwise it is served until `close` is called on what comes back.
    """
    texts = Texts(shown, text, roles)

    def show(document: Document) -> None:
        Explorer(document, texts)

    viewer = Viewer(show, whole_number("port", port))
    if browser:
        webbrowser.open(viewer.url)
    if wait:
        viewer.wait()
    return viewer


def _bound(application: Application, access: Access, port: int) -> tuple[Server, int]:
    """A server on the first free port from `port` on."""
    if port > 65_535:
        raise ValueError(f"port is {port}; expected at most 65535")
    logging.getLogger("tornado.access").setLevel(logging.ERROR)  # what was refused is told to whoever asked
    for chosen in range(port, min(port + TRIED, 65_535) + 1):
        try:
            server = Server(
                {"/": application},
                address="127.0.0.1",
                port=chosen,
                auth_provider=access,
                allow_websocket_origin=[f"{host}:{chosen}" for host in LOCAL],
                use_index=False,
                websocket_max_message_size=MESSAGE,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return server, chosen
    raise OSError(f"port is {port}; it and the {TRIED} after it are in use")
