"""Parameters of tests, most of which only `make test-all` runs."""

from collections.abc import Mapping
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow_except(values: Mapping[str, Any], *core: str) -> list[ParameterSet]:
    """Return named test parameters. All are marked slow except those named in `core`; a tuple is several arguments."""
    assert set(core) <= values.keys(), f"{core} is not part of {list(values)}"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)), id=name, marks=[] if name in core else pytest.mark.slow
        )
        for name, value in values.items()
    ]
