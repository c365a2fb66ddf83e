"""A finished toy run that several tests compare with."""

import pytest

from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.training import train
from support.toy_training import TINY, copying


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
    """Uninterrupted run."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "whole")
    train(copying(), TINY, run)
    return run
