"""Reading of texts in Markdown and LaTeX: questions about their matrices, and the draft of the worked example."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead._utils.files import write_text
from clearhead._utils.suffixes import check_suffix
from clearhead._utils.text import printable
from clearhead.cli.errors import print_stderr

if TYPE_CHECKING:
    from clearhead.explain import Draft, Example, Question

DraftOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the worked example that was read from a Markdown or LaTeX file to this TOML file, to edit it.",
        metavar="FILE",
    ),
]
MAX_DRAFTS = 99


def read_example(example: str, draft_path: Path | None = None) -> Example:
    """Load an example. Ask questions about a text on a terminal; otherwise print them with the assumption made."""
    from clearhead.explain import BUILT_IN, load, load_draft
    from clearhead.explain.toml_format import TEXT_SUFFIXES

    if draft_path is not None:
        check_suffix("--draft", draft_path, "toml")
    path = Path(example)
    if example in BUILT_IN or path.suffix.lower() not in TEXT_SUFFIXES:
        if draft_path is not None:
            raise ValueError(f"--draft: {example} is not a text to read; expected a {', '.join(TEXT_SUFFIXES)} file")
        return load(example)
    draft = load_draft(path)
    had_questions = bool(draft.questions)
    if had_questions and _is_interactive():
        draft = load_draft(path, answers={question.matrix: _ask(draft, question) for question in draft.questions})
    for line in draft.question_lines():
        print_stderr(line)
    if draft_path is not None:
        write_text(draft_path, draft.toml)
        print_stderr(f"wrote {draft_path}")
    elif had_questions:
        _write_draft(path, draft.toml)
    return replace(draft.example(), name=str(path))


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(draft: Draft, question: Question) -> str:
    """Ask for the step of one matrix until the answer is one of the choices, or its number."""
    from clearhead.explain.reading.draft import LEAVE_OUT

    choices = (*question.choices, LEAVE_OUT)
    print_stderr(f"{draft.name}, line {question.line}: {question.text}.")
    listed = ", ".join(f"{position}: {choice}" for position, choice in enumerate(choices, 1))
    text = printable(f"Step ({listed})")
    by_position = {str(position): choice for position, choice in enumerate(choices, 1)}
    while True:
        answer = str(typer.prompt(text, default=question.assumed or LEAVE_OUT, err=True)).strip()
        answer = by_position.get(answer, answer)
        if answer in choices:
            return answer
        print_stderr(f"{answer[:40]!r} is not a choice")


def _write_draft(path: Path, toml: str) -> None:
    """Write the draft next to its text, without replacing another file."""
    for count in range(MAX_DRAFTS + 1):
        target = path.with_name(f"{path.stem}{f'-{count}' if count else ''}.toml")
        if not target.exists():
            try:
                write_text(target, toml)
            except OSError as error:  # the command does not need the file
                print_stderr(
                    f"{target}: cannot be written ({error.strerror}); `clearhead check --draft` writes it elsewhere"
                )
            else:
                print_stderr(f"wrote {target}; edit it where the assumptions are wrong, then check it")
            return
        if _has_text(target, toml):
            print_stderr(f"{target} is the draft; edit it where the assumptions are wrong, then check it")
            return
    print_stderr(f"{path.stem}.toml and {MAX_DRAFTS} more exist; `clearhead check --draft` writes the draft elsewhere")


def _has_text(path: Path, text: str) -> bool:
    encoded = text.encode()
    try:
        return path.stat().st_size == len(encoded) and path.read_bytes() == encoded
    except OSError:
        return False
