"""Browser of this machine, and whether its user is connected over SSH."""

from __future__ import annotations

import os
import webbrowser


def open_window(address: str) -> bool:
    """Open an address in a browser. Return False if no browser could be started.

    A browser that runs in the terminal is started only if the variable BROWSER names it: it cannot show the pages, and
    would block the terminal.
    """
    return not _is_text_mode() and webbrowser.open(address)


def is_remote() -> bool:
    """Return whether the user is connected to this machine over SSH."""
    return "SSH_CONNECTION" in os.environ


def _is_text_mode() -> bool:
    try:
        browser = webbrowser.get()
    except webbrowser.Error:  # there is no browser
        return False
    # not its subclass BackgroundBrowser, which opens windows
    return type(browser) in (webbrowser.GenericBrowser, webbrowser.Elinks) and "BROWSER" not in os.environ
