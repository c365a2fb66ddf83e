"""Toy runs that several tests use: a finished and a stopped one."""

import pytest

from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.training import train
from support.toy_training import TINY, checkpoint_state, copying, stop_run


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
    """Uninterrupted run."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "whole")
    train(copying(), TINY, run)
    return run


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """Run that was stopped at step 6; its previous checkpoint is from step 4."""
    run = RunDirectory(tmp_path_factory.mktemp("runs") / "stopped")
    with pytest.MonkeyPatch.context() as patch:
        stop_run(run, 6, patch)
    assert checkpoint_state(run, "previous")["step"] == 4
    return run
