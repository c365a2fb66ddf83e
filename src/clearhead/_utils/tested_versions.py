"""Versions of the libraries whose internals clearhead reads, and the warning about later ones."""

import re
import warnings

# last minor version of each library with which the tests ran; `make test-newest` runs them with today's
TESTED = {"torch": "2.15", "transformers": "5.23", "vllm": "0.32"}


def untested_version(library: str, version: str) -> str | None:
    """Return a sentence if a version is later than the tested ones; otherwise None."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) <= tuple(map(int, TESTED[library].split("."))):
        return None
    return f"clearhead was tested with {library} up to {TESTED[library]}, and this is {library} {version}"


def warn_if_untested(library: str, version: str) -> None:
    """Warn if a version is later than the tested ones. Called where internals of the library are imported."""
    sentence = untested_version(library, version)
    if sentence is not None:
        warnings.warn(sentence, stacklevel=2)
