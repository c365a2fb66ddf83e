"""Command `check`."""

from __future__ import annotations

import typer

from clearhead._utils.consoles import console_for_output
from clearhead.cli.options import DigitsOption, ExampleArgument, JsonOption
from clearhead.cli.texts import DraftOption, read_example


def check(
    example: ExampleArgument,
    digits: DigitsOption = None,
    as_json: JsonOption = False,
    draft: DraftOption = None,
) -> None:
    """Recompute a worked example and compare each of its claims with the result.

    Exit code: 0 if all claims agree, 1 if some differ, 2 if the example cannot be read.
    """
    from clearhead.explain import check
    from clearhead.explain.render import DEFAULT_DIGITS, print_audit

    audit = check(read_example(example, draft))
    if as_json:
        typer.echo(audit.to_json())
    else:
        print_audit(console_for_output(), audit, DEFAULT_DIGITS if digits is None else digits)
    raise typer.Exit(0 if audit.agrees else 1)
