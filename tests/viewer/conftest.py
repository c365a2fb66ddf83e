"""Viewers shared by several tests."""

import pytest

from support.recordings import decoder
from support.viewer_page import PLAIN_TOKENS, served


@pytest.fixture(scope="module")
def translator():
    with served("en-ja") as viewer:
        yield viewer


@pytest.fixture(scope="module")
def small():
    """Yield the recording of a small causal model with grouped heads, and the URL of its page."""
    recording = decoder(PLAIN_TOKENS)
    with served(recording) as viewer:
        yield recording, viewer.url
