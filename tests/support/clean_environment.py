"""Environment of a new user: every supported Python, no variables, no configuration of pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

from support.paths import ROOT

CLASSIFIER = "Programming Language :: Python :: "
CERTIFICATES = "PIP_CERT"  # where a proxy of this machine has its own certificates


def supported_versions() -> list[str]:
    """Return the versions of Python that pyproject.toml names, such as "3.11"."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [line.removeprefix(CLASSIFIER) for line in classifiers if line.startswith(CLASSIFIER)]


def supported_interpreters() -> tuple[dict[str, str], list[str]]:
    """Return the interpreters of this machine by version, and the supported versions that are missing.

    The interpreter of the system comes first, then the one on the path, then those of pyenv.
    """
    usable = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in supported_versions():
        candidates = [f"/usr/bin/python{version}", shutil.which(f"python{version}")]
        candidates += sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}")))
        found = next((path for path in candidates if path and _runs(path)), None)
        if found:
            usable[version] = found
    return usable, [version for version in supported_versions() if version not in usable]


def _runs(interpreter: str) -> bool:
    """Return whether an interpreter can create environments. Programs of pyenv may only print an error."""
    try:
        return not subprocess.run([interpreter, "-c", "import ensurepip, venv"], capture_output=True).returncode
    except OSError:
        return False


def cannot_run(version: str) -> str:
    """Return a line about a version that this machine does not have."""
    return f"skipped Python {version}: there is no usable python{version} on this machine"


def clean_variables(home: Path) -> dict[str, str]:
    """Return the variables of a new user, in whose home folder pip has no configuration."""
    certificates = {CERTIFICATES: os.environ[CERTIFICATES]} if CERTIFICATES in os.environ else {}
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C", "PIP_CONFIG_FILE": "/dev/null"} | certificates
