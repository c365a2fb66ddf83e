"""Models and sentences that many commands use, made once."""

from functools import cache

import pytest

from clearhead.translation import Translator
from clearhead.translation.data import dataset

load_translator = Translator.load
load_bundled = cache(lambda device: load_translator(device=device))
distinct_pairs = cache(dataset._distinct_pairs)


@pytest.fixture
def made_once(monkeypatch):
    """Load the bundled model once, and generate the sentences of the grammar that are held out once."""

    def load(name="en-ja", *, device="cpu"):
        return load_bundled(str(device)) if str(name) == "en-ja" else load_translator(name, device=device)

    monkeypatch.setattr(Translator, "load", load)
    monkeypatch.setattr(dataset, "_distinct_pairs", distinct_pairs)
