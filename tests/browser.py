"""A real browser for tests of pages: headless Chromium without a network."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
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


@contextmanager
def launched() -> Iterator[Chrome]:
    """A browser of its own; FileNotFoundError says how to get one."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise FileNotFoundError("no browser: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = Chrome(options=options, service=ChromeService(driver))
    try:
        yield found
    finally:
        found.quit()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """Skipped where Chromium is missing, except in CI, which has to install it."""
    try:
        with launched() as found:
            yield found
    except FileNotFoundError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))


def resize(browser: Chrome, width: int, height: int = 900) -> None:
    sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)


def emulate(browser: Chrome, *, media: str = "", theme: str = "light") -> None:
    """Print or screen, light or dark."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def complaints(browser: Chrome) -> list[str]:
    """What the console has said since it was last asked, but for what is only told."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")]


def requested(browser: Chrome) -> set[str]:
    """Every address asked for since this was last called."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
