"""Shorter launches in Triton's interpreter, for all tests of kernels."""

import pytest

from support.interpreter import language_patched_once_per_launch


@pytest.fixture(scope="package", autouse=True)
def short_launches():
    with language_patched_once_per_launch():
        yield
