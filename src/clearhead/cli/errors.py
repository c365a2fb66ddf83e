"""Error handling of the command line: every error becomes one line on stderr and an exit code.

- 0: success; for `check`, all claims agree; for `mark`, all answers get full credit
- 1: `check` found a difference, or `mark` an answer without credit
- 2: unusable input, or any other error
- 130: interrupted by Ctrl-C
- 141: the reader of standard output closed the pipe
- 143: terminated by SIGTERM
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from clearhead._utils.text import printable

TRACEBACK = "CLEARHEAD_TRACEBACK"  # environment variable; if set, an error also prints its traceback


class OneLineErrors(TyperGroup):
    """Command group that turns every error into one line on stderr and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _one_line_errors():
            _prepare_streams()
            _check_encoding(args)
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_errors():
            return super().invoke(ctx)


def print_stderr(line: str) -> None:
    """Print one line on stderr."""
    typer.echo(printable(line), err=True)


class _BestEffortFile(io.FileIO):
    """File that drops what it cannot write: a full or closed stderr must not change the exit code."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content) or len(content)
        except OSError:
            return len(content)


def _prepare_streams() -> None:
    """Raise if standard output is closed. Let its writes be complete or fail, and let no write to stderr fail.

    The operating system reuses a closed descriptor for the next file that is opened. Libraries would print into it.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, open until the process exits
    elif sys.stderr is sys.__stderr__:
        sys.stderr = _text_stream(_BestEffortFile(sys.stderr.fileno(), "w", closefd=False), sys.stderr)
    if sys.stdout is None:
        raise ValueError("standard output is closed; expected a terminal, a file, a pipe or /dev/null")
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: text goes to the file directly, and what write() did not take is lost
        sys.stdout = _text_stream(sys.stdout.buffer, sys.stdout)


def _text_stream(file: io.RawIOBase, stream: TextIO) -> io.TextIOWrapper:
    """Return a stream that writes to `file` at the end of each line, with the encoding of another stream."""
    return io.TextIOWrapper(
        io.BufferedWriter(file), encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )


def _check_encoding(arguments: list[str]) -> None:
    """Raise if an argument is not valid UTF-8, unless it is the path of a file."""
    for position, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            if os.path.isfile(argument):
                continue
            raw = os.fsencode(argument[:40])
            raise ValueError(f"argument {position} is {str(raw)[1:]}; expected text in UTF-8") from None


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        try:
            with _warnings_as_lines():
                yield
        finally:
            _flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich, which prints --help, exits with 1
            raise typer.Exit(128 + signal.SIGPIPE) from None
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error: typer prints it together with the usage line
            error.message = printable(getattr(error, "message", ""))  # pyright: ignore[reportAttributeAccessIssue]
            raise
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        rank = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""
        print_stderr(f"clearhead{rank}: {' '.join(_describe(error).split())}")
        raise typer.Exit(2) from None


def _flush() -> None:
    """Flush standard output. On failure discard the buffer, because Python would flush it again at exit."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        raise OSError(error.errno, error.strerror, "standard output") from None


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # without the errno
        # an error on an open file has no filename, except for files that clearhead writes
        is_full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        name = error.filename or ("standard output" if is_full else "input or output")
        return f"{name}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    if isinstance(error, ValueError | OSError | ImportError):
        return str(error)
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return f"not enough memory ({str(error)[:200] or type(error).__name__}); try a shorter input"
    advice = f"set {TRACEBACK}=1 to see the traceback; please report it"
    return f"unexpected error: {type(error).__name__}: {str(error)[:300]} ({advice})"


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print each warning of the library as one line on stderr."""

    def show(message: Warning | str, *args: object, **kwargs: object) -> None:
        print_stderr(f"clearhead: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
