"""Tests of the smoke test of a release: it covers every command and every extra, and finds failures."""

import json
import subprocess

from clearhead._utils.extras import EXTRAS
from clearhead.cli import app
from support.smoke import CODE, COMMANDS, smoke_problems, write_inputs


class BrokenEnvironment:
    """Environment whose programs exit with status 3 and print nothing, except for a report of a missing package."""

    def __init__(self, folder):
        self.programs = folder / "bin"

    def run(self, folder, program, *arguments):
        report = json.dumps({"extras": {"plot": {"installed": False, "missing": ["matplotlib"]}}})
        return subprocess.CompletedProcess(arguments, 3, report if "--json" in arguments else "", "")


def test_every_command_and_every_extra_is_covered():
    commands = {command.callback.__name__ for command in app.registered_commands}
    assert commands == {step.line.split()[0] for step in COMMANDS if not step.line.startswith("-")}
    assert {step.extra for step in (*COMMANDS, *CODE)} - {""} == set(EXTRAS)


def test_failures_are_reported(tmp_path):
    (tmp_path / "inputs").mkdir()
    write_inputs(tmp_path / "inputs")
    found = list(smoke_problems(BrokenEnvironment(tmp_path), tmp_path / "run", tmp_path / "inputs", "1.2.3", {"plot"}))
    assert found[:3] == [
        "clearhead --version prints ''; expected version 1.2.3",
        "clearhead is imported from nowhere; expected the new environment",
        "clearhead doctor misses matplotlib of the extra plot",
    ]
    usable = [step for step in (*COMMANDS, *CODE) if step.extra in ("", "plot")]
    assert len(found) == 3 + len(usable)
    assert "clearhead check song exits with 3; expected 1: " in found
