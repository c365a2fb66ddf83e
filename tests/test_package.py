"""Tests of the whole package: public names, lazy imports, command line, examples and docs."""

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from _pytest.mark import ParameterSet
from typer.testing import CliRunner

import clearhead
from clearhead.cli import app
from support.pages import is_runnable, run_page
from support.paths import ROOT
from support.pretrained import minilm, smollm2

MODULES = sorted(info.name for info in pkgutil.walk_packages(clearhead.__path__, "clearhead."))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # without standard input, because a demo in a terminal serves the viewer
    return subprocess.run(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, cwd=ROOT
    )


def test_package_exports_exactly_the_public_names():
    assert set(clearhead.__all__) == {
        "attention",
        "AttentionWeights",
        "Causal",
        "Window",
        "Padding",
        "Documents",
        "Prefix",
        "Dense",
        "ALiBi",
        "MultiHeadAttention",
        "KVCache",
        "trace",
        "check",
        "Recording",
        "record",
        "watch",
        "view",
        "report",
    }
    for name in clearhead.__all__:
        value = getattr(clearhead, name)
        assert value.__name__ == name
        assert value.__doc__
    assert set(clearhead.__all__) <= set(dir(clearhead))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = clearhead.nothing


def test_torch_is_imported_lazily():
    run("-c", "import clearhead, clearhead.cli, sys; assert 'torch' not in sys.modules; clearhead.Causal")
    for arguments in ([], ["--help"]):
        code = f"import sys; sys.argv[1:] = {arguments}\ntry: import clearhead.__main__\nexcept SystemExit: pass\n"
        assert "doctor" in run("-c", code + "assert 'torch' not in sys.modules").stdout


def test_changelog_and_citation_have_the_version():
    sections = re.findall(r"^## \[(\S+)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = dict(section for section in sections if section[0] != "Unreleased")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert next(iter(released)) == clearhead.__version__ == citation["version"]
    assert released[clearhead.__version__] == citation["date-released"]


class TestCommandLine:
    def test_console_script_and_module_print_the_version(self):
        script = Path(sys.executable).parent / "clearhead"
        by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
        assert by_script == run("-m", "clearhead", "--version").stdout == f"clearhead {clearhead.__version__}\n"

    def test_doctor_shows_versions_devices_backends_and_reasons(self):
        shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        rows = (
            "sdpa, streaming, reference",
            "sdpa: softcap is not supported",
            "reference: statistics are not supported",
        )
        for text in ("torch", "cpu: ", *rows):
            assert text in shown.stdout

    def test_doctor_json_lists_backends_and_refusals(self):
        printed = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
        assert set(printed) == {"versions", "devices", "cases", "tiles", "native", "hopper", "extras"}
        windowed = next(case for case in printed["cases"] if case["name"] == "windowed")
        assert windowed["able"][:2] == ["streaming", "reference"]
        assert "Window(before=255)" in windowed["refusals"]["sdpa"][0]

    def test_unknown_command_is_rejected(self):
        unknown = CliRunner().invoke(app, ["docter"])
        assert unknown.exit_code == 2
        assert "docter" in unknown.output


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_docstring_examples_run(name):
    assert not doctest.testmod(importlib.import_module(name)).failed


def test_doctest_finds_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = (
        importlib.import_module(f"clearhead.{name}")
        for name in ("ops._mask_algebra", "functional", "nn.rope", "nn.attention", "explain.tracing")
    )
    assert all(any(test.examples for test in finder.find(module)) for module in modules)


# rag_attention.py needs a server; tests/serving/test_rag_example.py runs it
EXAMPLES = [path for path in sorted(ROOT.glob("examples/*.py")) if path.name != "rag_attention.py"]
PRETRAINED = {  # by the name in the docs
    "all-MiniLM-L6-v2": minilm,
    "sentence-transformers/all-MiniLM-L6-v2": minilm,
    "SmolLM2-135M-Instruct.Q4_1.gguf": smollm2,
}


def page_parameters() -> Iterator[ParameterSet]:
    """Yield the pages with Python blocks, marked if they load a pretrained model or train one."""
    for path in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]):
        text = path.read_text()
        if is_runnable(path) and path.name != "serving.md":  # which tests/vllm runs
            marks = [pytest.mark.pretrained] if any(name in text for name in PRETRAINED) else []
            marks += [pytest.mark.slow] if path.name == "translation.md" else []
            yield pytest.param(path, id=str(path.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("path", list(page_parameters()))
def test_python_in_the_docs_runs(path, tmp_path, monkeypatch):
    """Run all blocks of a page in a folder that contains the models they load, and compare what they print."""
    monkeypatch.chdir(tmp_path)
    for name, model in PRETRAINED.items():
        if name in path.read_text():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).symlink_to(model())
    run_page(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path):
    assert run(str(path)).stdout
