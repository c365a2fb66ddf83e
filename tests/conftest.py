"""Environment variables that must be set before torch is imported, and fixtures of all tests."""

import os
from functools import cache

import pytest

pytest.register_assert_rewrite("support")

from support import environment

os.environ.update(environment.defaults(os.environ) | os.environ)

import hypothesis
import torch
import typer.testing

hypothesis.settings.register_profile(
    "clearhead",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,  # CI must be reproducible; other runs draw new problems
)
hypothesis.settings.register_profile("shapes", hypothesis.settings.get_profile("clearhead"), max_examples=25)
hypothesis.settings.load_profile("clearhead")

typer.testing._get_command = cache(typer.testing._get_command)  # CliRunner would build all commands again at each call


@pytest.fixture
def small_tiles(monkeypatch):
    """Set tiles so small that a tiny problem has several, with edges at any position."""
    monkeypatch.setattr("clearhead.ops.tiled.schedule.TILE", (3, 4))
    monkeypatch.setattr("clearhead.ops.tiled.schedule.NARROW_TILE", (3, 4))
    monkeypatch.setattr("clearhead.ops.tiled.schedule.FULL_TILE_ALIGNMENT", 2)
    monkeypatch.setattr("clearhead.ops.native.functions.MIN_CELLS", 50)  # smaller problems stay in torch
    monkeypatch.setattr("clearhead.ops.tiled.attention.MIN_KEYS_WITHOUT_ROW_MAX", 5)
    monkeypatch.setattr("clearhead.weights.cells.CELLS_PER_STRIP", 30)
    monkeypatch.setattr("clearhead.weights.strips.CELLS_PER_STRIP", 200)
    monkeypatch.setattr("clearhead.weights.gather.CELLS_PER_STEP", 7)


@pytest.fixture(autouse=True)
def seeded():
    """Seed torch, so that random numbers do not depend on other tests."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    """Yield a Chromium browser, one per test module."""
    from support.browser import launched

    with launched() as chrome:
        yield chrome


@pytest.fixture
def blank_page(browser):
    """Yield a browser with a blank page of 1280 pixels; its console must be empty after the test."""
    from support.browser import complaints, emulate, requested, resize

    resize(browser, 1280)
    emulate(browser)
    browser.get("about:blank")
    complaints(browser)
    requested(browser)
    yield browser
    assert complaints(browser) == []


@pytest.fixture
def page(blank_page):
    """Return a page of the viewer."""
    from support.viewer_page import Page

    return Page(blank_page)


@pytest.fixture(scope="session")
def ranks():
    """Four processes that communicate by gloo."""
    from support.ranks import started

    with started(4) as processes:
        yield processes


def pytest_collection_modifyitems(items):
    """Mark the tests that open a browser, so that `-m browser` selects them."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")
