"""Private file that redirects a browser to a one-time link, so that the link is not on a command line.

Every user of a machine can read the arguments of all processes. As in Jupyter, the browser therefore opens a file that
only its owner can read. The file is in the home folder and not hidden: browsers packaged as a snap, as on Ubuntu, can
read neither /tmp nor hidden files.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from clearhead._utils.temporaries import host_id, is_alive

FILE_PREFIX = "clearhead-view-"
REDIRECT_PAGE = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>clearhead</title>"
    '<meta http-equiv=refresh content="0;url={url}"><p><a href="{url}">Open clearhead</a></p>\n'
)


def redirect_paths() -> Iterator[Path]:
    """Yield the path of a new redirect file in the home folder, then one in the temporary folder."""
    for folder in (Path(os.path.expanduser("~")), Path(tempfile.gettempdir())):
        _remove_stale(folder)
        yield folder / f"{FILE_PREFIX}{host_id()}-{os.getpid()}-{secrets.token_hex(4)}.html"


def write_redirect_file(path: Path, url: str) -> bool:
    """Write a page that redirects to `url`, with mode 0600. Return False if that is not possible."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(REDIRECT_PAGE.format(url=url))
    except OSError:  # a folder that is missing or not writable, or a full disk
        return False
    return True


def _remove_stale(folder: Path) -> None:
    """Remove the files of viewers on this host that are no longer running."""
    with suppress(OSError):
        for path in folder.glob(f"{FILE_PREFIX}{host_id()}-*.html"):
            pid = path.name.removeprefix(f"{FILE_PREFIX}{host_id()}-").partition("-")[0]
            if pid.isdecimal() and not is_alive(int(pid)):
                path.unlink(missing_ok=True)
