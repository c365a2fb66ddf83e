"""Tests of damaged recordings: every command gives a result or an error of one line, never a traceback."""

import contextlib
import copy
import io
import json
import random

import pytest
import torch

from clearhead._utils.consoles import PlainConsole
from clearhead.analysis.relations import RelationScore
from clearhead.analysis.roles import Roles, head_roles
from clearhead.cli.tables import print_roles
from support.hostile_input import change_metadata, controls, damaged, run_cli
from support.recordings import decoder

FILES = 500
BATCH = 50


@pytest.mark.attack
@pytest.mark.parametrize("first", range(0, FILES, BATCH))
def test_damaged_recordings_never_cause_a_traceback(tmp_path, first):
    path, page, failures = tmp_path / "damaged.safetensors", tmp_path / "report.html", []
    rest = (("stats", path, "--json"), ("roles", path), ("roles", path, "--json"), ("view", path, "--output", page))
    for seed in range(first, first + BATCH):
        torch.manual_seed(0)
        changes = damaged(path, seed)
        commands = [("stats", path)]
        for command in commands:
            outcome = run_cli(*command)
            if len(commands) == 1 and (
                outcome.code == 0 or seed % 10 == 0
            ):  # all commands reject a file that stats rejects
                commands += rest
            lines = len(outcome.stderr.splitlines())
            if (
                outcome.traceback
                or outcome.code not in (0, 2)
                or (outcome.code == 2 and lines != 1)
                or controls(outcome.stdout + outcome.stderr)
            ):
                failures.append(f"seed {seed} ({changes}), {command[0]}: {outcome.code}, {outcome.stderr[:300]}")
    assert not failures, "\n".join(failures)


@pytest.mark.attack
def test_damaged_role_files_raise_only_value_errors():
    """Print and write every role file that can be read. All others raise a ValueError."""
    relation = RelationScore("amod", "dependent → head", ("decoder", 0, 1), 0.5, 0.4, 0.6, 3, 0.1, 1)
    whole = head_roles([decoder("abcdefghi", special=(0,))], relations=[relation]).to_dict()
    for seed in range(FILES):
        metadata = copy.deepcopy(whole)
        change_metadata(random.Random(seed), {}, metadata)
        with contextlib.suppress(ValueError):
            roles = Roles.from_json(json.dumps(metadata))
            console = PlainConsole(file=io.StringIO())
            try:
                print_roles(console, roles)
                assert Roles.from_json(roles.to_json()) == roles
            except ValueError as error:
                raise AssertionError(f"seed {seed}") from error
            assert not controls(console.file.getvalue())
