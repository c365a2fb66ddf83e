"""Damaged recordings, given to every command that reads one: an answer or one line, never a traceback."""

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
from support.hostile_input import change_fact, controls, damaged, typed
from support.recordings import decoder

FILES = 500
AT_ONCE = 50


@pytest.mark.attack
@pytest.mark.parametrize("first", range(0, FILES, AT_ONCE))
def test_damaged_recordings(tmp_path, first):
    path, page, failures = tmp_path / "damaged.safetensors", tmp_path / "report.html", []
    rest = (("stats", path, "--json"), ("roles", path), ("roles", path, "--json"), ("view", path, "--output", page))
    for seed in range(first, first + AT_ONCE):
        torch.manual_seed(0)
        said = damaged(path, seed)
        commands = [("stats", path)]
        for command in commands:
            found = typed(*command)
            if len(commands) == 1 and (found.code == 0 or seed % 10 == 0):  # what stats refuses, all refuse
                commands += rest
            lines = len(found.stderr.splitlines())
            if (
                found.traceback
                or found.code not in (0, 2)
                or (found.code == 2 and lines != 1)
                or controls(found.stdout + found.stderr)
            ):
                failures.append(f"seed {seed} ({said}), {command[0]}: {found.code}, {found.stderr[:300]}")
    assert not failures, "\n".join(failures)


@pytest.mark.attack
def test_damaged_files_of_roles():
    """Print and write each recording that is read; any other is refused with a ValueError."""
    relation = RelationScore("amod", "dependent → head", ("decoder", 0, 1), 0.5, 0.4, 0.6, 3, 0.1, 1)
    whole = head_roles([decoder("abcdefghi", special=(0,))], relations=[relation]).to_dict()
    for seed in range(FILES):
        facts = copy.deepcopy(whole)
        change_fact(random.Random(seed), {}, facts)
        with contextlib.suppress(ValueError):
            roles = Roles.from_json(json.dumps(facts))
            console = PlainConsole(file=io.StringIO())
            try:
                print_roles(console, roles)
                assert Roles.from_json(roles.to_json()) == roles
            except ValueError as error:
                raise AssertionError(f"seed {seed}") from error
            assert not controls(console.file.getvalue())
