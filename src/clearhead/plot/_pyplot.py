"""Import of matplotlib's pyplot, an optional dependency."""

from __future__ import annotations

from typing import Any

from clearhead._utils.extras import needs_extra


def load_pyplot() -> Any:
    """Return `matplotlib.pyplot`, or raise an error that names the extra to install."""
    with needs_extra("plot", "clearhead.plot"):
        from matplotlib import pyplot
    return pyplot
