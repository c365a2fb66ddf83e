"""Environment variables that are set before torch is imported, and fixtures for every test."""

import os

import pytest

pytest.register_assert_rewrite("support")

from support import environment

os.environ.update(environment.defaults(os.environ) | os.environ)

import hypothesis
import torch

hypothesis.settings.register_profile(
    "clearhead",
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CI" in os.environ,  # a landing should not hang on the draw; elsewhere every run looks at new problems
)
hypothesis.settings.load_profile("clearhead")


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that a tiny problem has many, with edges that fall anywhere."""
    monkeypatch.setattr("clearhead.ops.tiled.schedule.TILE", (3, 4))
    monkeypatch.setattr("clearhead.ops.tiled.schedule.RANGED_TILE", (3, 4))
    monkeypatch.setattr("clearhead.ops.tiled.schedule.FULL_TILE_ALIGNMENT", 2)
    monkeypatch.setattr("clearhead.ops.tiled.attention.MIN_KEYS_WITHOUT_ROW_MAX", 5)
    monkeypatch.setattr("clearhead.weights.cells.CELLS_PER_STRIP", 30)


@pytest.fixture(autouse=True)
def seeded():
    """Random numbers that do not depend on which tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser():
    """Chromium for one module of tests."""
    from support.browser import launched

    with launched() as chrome:
        yield chrome


@pytest.fixture
def page(browser):
    """A page whose console must be empty when the test is over."""
    from support.browser import complaints, emulate, requested, resize
    from support.viewer_page import Page

    resize(browser, 1280)
    emulate(browser)
    browser.get("about:blank")
    complaints(browser)
    requested(browser)
    yield Page(browser)
    assert complaints(browser) == []


def pytest_collection_modifyitems(items):
    """Mark the tests that open a browser, so that `-m browser` selects them."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")
