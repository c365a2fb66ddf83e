"""Viewers that several tests share."""

import pytest

from support.recordings import decoder
from support.viewer_page import PLAIN_TOKENS, served


@pytest.fixture(scope="module")
def translator():
    with served("en-ja") as viewer:
        yield viewer


@pytest.fixture(scope="module")
def small():
    """A small causal model with grouped heads, and its page."""
    recording = decoder(PLAIN_TOKENS)
    with served(recording) as viewer:
        yield recording, viewer.url
