"""Fixtures of the tests that `make test-vllm` runs, in an environment with the CPU build of vLLM.

vLLM runs in processes that the tests start, because it changes threads, logging and signals of its process.
"""

import os

import pytest

from support.paths import ROOT
from support.vllm_server import MODEL_VARIABLE


@pytest.fixture(scope="session")
def model():
    """Return the folder of the model."""
    folder = os.environ.get(MODEL_VARIABLE)
    assert folder, f"{MODEL_VARIABLE} is not set; expected a folder of Hugging Face files, as in `make test-vllm`"
    return folder


@pytest.fixture(scope="session")
def text_ids(model):
    """Return the tokens of a long text."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)((ROOT / "README.md").read_text())["input_ids"]
