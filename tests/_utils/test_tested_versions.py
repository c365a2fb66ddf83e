"""Tests of the warning about versions of libraries that clearhead was never tested with."""

import os
import re
import subprocess
import sys

import pytest

from clearhead._utils.tested_versions import TESTED, untested_version, warn_if_untested
from support.paths import ROOT


@pytest.fixture
def tested(monkeypatch):
    monkeypatch.setitem(TESTED, "torch", "2.15")


@pytest.mark.usefixtures("tested")
@pytest.mark.parametrize("version", ["2.11", "2.15.0", "2.15.7+cu130", "1.99", "main"])
def test_tested_versions_cause_no_warning(version):
    warn_if_untested("torch", version)


@pytest.mark.usefixtures("tested")
@pytest.mark.parametrize("version", ["2.16.0", "2.100", "3.0.0", "2.16.0a0+git1"])
def test_one_warning_names_both_versions(version):
    sentence = f"clearhead was tested with torch up to 2.15, and this is torch {version}"
    with pytest.warns(UserWarning, match=re.escape(sentence)) as caught:
        warn_if_untested("torch", version)
    assert len(caught) == 1


def test_pinned_versions_are_tested():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert [untested_version(library, pins[library]) for library in ("torch", "transformers")] == [None, None]


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_page_of_platforms_names_the_last_tested_version(library):
    (row,) = re.findall(rf"^\| {library} \| (.+) \| tested \|$", (ROOT / "docs/start/platforms.md").read_text(), re.M)
    assert TESTED[library] in row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "module"), [("torch", "clearhead.functional"), ("transformers", "clearhead.huggingface")]
)
def test_import_warns_once_of_a_later_version(library, module):
    program = f"from clearhead._utils.tested_versions import TESTED; TESTED[{library!r}] = '0.1'; import {module}"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}  # of make test-newest
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables)
    assert run.stderr.count(f"UserWarning: clearhead was tested with {library} up to 0.1, and this is {library}") == 1
