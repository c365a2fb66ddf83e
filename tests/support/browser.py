"""Headless Chromium without network access, for tests of pages."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_FONTS = """<?xml version="1.0"?>
<fontconfig>
<dir>{folder}</dir>
<cachedir>{folder}/cache</cachedir>
<alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
<alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
</fontconfig>
"""


@contextmanager
def launched(fonts: Path | None = None) -> Iterator[Chrome]:
    """Start a browser and quit it at the end of the block.

    Args:
        fonts: folder with the only fonts that the browser finds; DejaVu Sans is its default font.
    """
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise FileNotFoundError("chromium or chromedriver is not installed: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    environment = None
    if fonts is not None:
        (fonts / "fonts.conf").write_text(_FONTS.format(folder=fonts), encoding="utf-8")
        environment = {**os.environ, "FONTCONFIG_FILE": str(fonts / "fonts.conf")}
    chrome = Chrome(options=options, service=ChromeService(driver, env=environment))
    try:
        yield chrome
    finally:
        chrome.quit()


def resize(browser: Chrome, width: int, height: int = 900) -> None:
    sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)


def emulate(browser: Chrome, *, media: str = "", theme: str = "light") -> None:
    """Emulate a medium (print or screen) and a theme (light or dark)."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def complaints(browser: Chrome) -> list[str]:
    """Return the warnings and errors in the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")]


def requested(browser: Chrome) -> set[str]:
    """Return every address requested since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
