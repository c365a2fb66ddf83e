"""Settings before torch is imported, and what every test has."""

import os

import settings

os.environ.update(settings.defaults(os.environ) | os.environ)

import hypothesis
import pytest
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
