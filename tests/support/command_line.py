"""Commands run in this process, with their output and their one-line errors."""

from click.testing import Result
from typer.testing import CliRunner

from clearhead.cli import app


def run(*arguments, status: int = 0) -> Result:
    """Run a command, which must end with `status`."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
    assert result.exit_code == status, result.output
    return result


def error_of(*arguments) -> str:
    """Return the error of a command, which must be one line."""
    lines = run(*arguments, status=2).stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]
