"""Fixtures of the tests that `make test-vision` runs, in an environment with torchvision, timm and open_clip.

The packages are imported by fixtures, because other environments collect these tests too. A package that is missing in
`make test-vision` is an error and not a skipped test.
"""

import pytest


@pytest.fixture
def timm():
    """Return timm, with fused attention as by default."""
    import timm
    import timm.layers

    timm.layers.set_fused_attn(True, experimental=False)
    yield timm
    timm.layers.set_fused_attn(True, experimental=False)


@pytest.fixture
def open_clip():
    import open_clip

    return open_clip
