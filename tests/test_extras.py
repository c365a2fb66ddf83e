"""Tests of optional dependencies: the base works without them, and errors name the missing extra."""

import json
import re
import subprocess
import sys
import tomllib

import pytest

import clearhead
from clearhead._utils.extras import EXTRAS, missing_packages, needs_extra
from support.paths import ROOT
from support.recordings import decoder
from support.smoke import smoke_problems, write_inputs
from support.virtual_environments import VirtualEnvironment, installed_torch, pip_error, run_pip

NOT_IN_ALL = {"vllm"}  # requires one exact version of torch

# runs in a process that cannot import the packages of any extra, and prints JSON
WITHOUT_EXTRAS = """
import json, sys

for module in json.loads(sys.argv[1]):
    sys.modules[module] = None

import torch
from typer.testing import CliRunner

import clearhead
from clearhead import Causal, MultiHeadAttention, attention, trace
from clearhead.cli import app

query = torch.randn(1, 2, 5, 4)
output, weights = attention(query, query, query, mask=Causal(), return_weights=True)
layer = MultiHeadAttention(8, 2)

from clearhead.analysis.summary import AttentionSummary
from clearhead.plot import figures


def message(call):
    try:
        call()
    except ImportError as error:
        return str(error)
    return None


def command(*arguments):
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


print(json.dumps({
    "shape": list(layer(torch.randn(1, 5, 8)).shape),
    "steps": len(trace(layer, torch.randn(5, 8))),
    "audit": clearhead.check("song")._repr_html_(),
    "html": [weights._repr_html_(), AttentionSummary([("decoder", 0)])._repr_html_()],
    "python": {
        "view": message(lambda: clearhead.view),
        "report": message(lambda: clearhead.report),
        "hf": message(lambda: __import__("clearhead.huggingface")),
        "plot": message(lambda: figures.plot_head(weights, 0)),
        "translate": message(lambda: clearhead.record("en-ja", "The dog barked.")),
    },
    "commands": {" ".join(line): command(*line) for line in (
        ("--help",),
        ("doctor", "--json"),
        ("explain", "song"),
        ("explain", "song", "--format", "json"),
        ("check", "song"),
        ("check", "song", "--format", "markdown"),
        ("check", "song", "--format", "html"),
        ("check", "song", "--format", "toml"),
        ("exercise", "song", "--output", "sheet.toml"),
        ("exercise", "song", "--format", "latex"),
        ("mark", "sheet.toml"),
        ("stats", "kept.safetensors"),
        ("roles", "kept.safetensors"),
        ("view", "kept.safetensors"),
        ("view", "kept.safetensors", "--output", "report.html"),
        ("explain", "song", "--format", "html"),
        ("explain", "song", "--format", "toml"),
        ("explain", "song", "--format", "xlsx"),
        ("exercise", "song", "--format", "html"),
        ("learn", "--no-browser", "--output", "course"),
        ("translate", "The dog barked."),
        ("train", "--output", "run", "--steps", "1"),
        ("stats", "--model", "someone/something", "a text"),
        ("record", "--engine", "vllm", "--model", "someone/something", "a text", "--output", "seen.safetensors"),
    )},
}))
"""
MISSING = {
    "view kept.safetensors": "clearhead view needs bokeh: pip install 'clearhead[view]'",
    "view kept.safetensors --output report.html": "clearhead view needs bokeh: pip install 'clearhead[view]'",
    "explain song --format html": "the HTML format needs jinja2: pip install 'clearhead[explain]'",
    "exercise song --format html": "the HTML format needs jinja2: pip install 'clearhead[explain]'",
    "learn --no-browser --output course": "the course needs latex2mathml: pip install 'clearhead[explain]'",
    "explain song --format toml": "the TOML format needs tomlkit: pip install 'clearhead[explain]'",
    "explain song --format xlsx": "the xlsx format needs openpyxl: pip install 'clearhead[explain]'",
    "check song --format html": "the HTML format needs jinja2: pip install 'clearhead[explain]'",
    "check song --format toml": "the TOML format needs tomlkit: pip install 'clearhead[explain]'",
    "translate The dog barked.": "clearhead.translation needs tokenizers: pip install 'clearhead[translate]'",
    "train --output run --steps 1": "clearhead.translation needs tokenizers: pip install 'clearhead[translate]'",
    "record --engine vllm --model someone/something a text --output seen.safetensors": (
        "--engine vllm needs vllm: pip install 'clearhead[vllm]'"
    ),
    "stats --model someone/something a text": "clearhead.huggingface needs transformers: pip install 'clearhead[hf]'",
}


@pytest.fixture(scope="module")
def without_extras(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    decoder(["a", "b", "c"]).save(folder / "kept.safetensors")
    modules = sorted({module for modules in EXTRAS.values() for module in modules})
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, json.dumps(modules)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_base_computes_attention_layers_and_traces(without_extras):
    assert without_extras["shape"] == [1, 5, 8]
    assert without_extras["steps"] > 5
    assert without_extras["html"] == [None, None]  # notebooks then show repr()


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "doctor --json",
        "explain song",
        "explain song --format json",
        "exercise song --format latex",
        "stats kept.safetensors",
        "roles kept.safetensors",
    ],
)
def test_base_commands_need_no_extra(without_extras, line):
    status, output, errors = without_extras["commands"][line]
    assert status == 0, errors
    assert output


@pytest.mark.parametrize("line", ["check song", "check song --format markdown", "mark sheet.toml"])
def test_checking_and_marking_need_no_extra(without_extras, line):
    status, output, _ = without_extras["commands"][line]
    assert status == 1  # errors were found in the text, and answers are missing
    assert output


def test_notebooks_show_audits_as_text_without_extras(without_extras):
    assert without_extras["audit"].startswith("<pre>List new ideas for a song\n")


@pytest.mark.parametrize(("line", "message"), MISSING.items(), ids=MISSING)
def test_commands_name_their_missing_extra(without_extras, line, message):
    status, output, errors = without_extras["commands"][line]
    assert status == 2
    assert errors == f"clearhead: {message}\n"
    assert output == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("view", "clearhead view needs bokeh: pip install 'clearhead[view]'"),
        ("report", "clearhead view needs bokeh: pip install 'clearhead[view]'"),
        ("hf", "clearhead.huggingface needs transformers: pip install 'clearhead[hf]'"),
        ("plot", "clearhead.plot needs matplotlib: pip install 'clearhead[plot]'"),
        ("translate", "clearhead.translation needs tokenizers: pip install 'clearhead[translate]'"),
    ],
)
def test_import_errors_name_the_missing_extra(without_extras, name, message):
    assert without_extras["python"][name] == message


def test_doctor_lists_missing_packages_of_extras(without_extras):
    extras = json.loads(without_extras["commands"]["doctor --json"][1])["extras"]
    assert set(extras) == set(EXTRAS)
    assert extras["view"] == {"installed": False, "missing": ["bokeh", "fonttools", "jinja2", "pillow"]}


@pytest.mark.parametrize("extra", EXTRAS)
def test_missing_packages_of_an_extra_are_named(extra, monkeypatch):
    assert extra in NOT_IN_ALL or missing_packages(extra) == []  # all others are installed for the tests
    for module, package in EXTRAS[extra].items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert missing_packages(extra) == [package]
            with (
                pytest.raises(ImportError, match=rf"^it needs {package}: pip install 'clearhead\[{extra}\]'$"),
                needs_extra(extra, "it"),
            ):
                __import__(module)


def test_other_import_errors_are_unchanged():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needs_extra("view", "it"):
        import no_such_module  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name"), needs_extra("plot", "it"):
        from matplotlib import no_such_name  # noqa: F401


def test_extras_match_pyproject():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: {re.match(r"[\w-]+", line)[0] for line in lines} for extra, lines in declared.items()}
    assert {extra: set(packages.values()) for extra, packages in EXTRAS.items()} == {
        extra: packages for extra, packages in names.items() if extra not in ("all", "docs", "test")
    }
    assert declared["all"] == [f"clearhead[{','.join(extra for extra in EXTRAS if extra not in NOT_IN_ALL)}]"]
    assert "clearhead[all,docs]" in declared["test"]


@pytest.mark.wheel
def test_wheel_works_with_base_dependencies_only(tmp_path):
    target = ("--target", str(tmp_path / "none"))
    probe = run_pip(
        sys.executable, "install", "--dry-run", "--no-deps", *target, "hatchling", installed_torch(), constraint=""
    )
    if probe.returncode:
        pytest.skip(f"pip has no index with hatchling and {installed_torch()}: {pip_error(probe)}")
    built = run_pip(sys.executable, "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(tmp_path))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("clearhead-*.whl")
    environment = VirtualEnvironment(tmp_path / "venv")
    installed = environment.install(str(wheel), installed_torch())
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "inputs").mkdir()
    write_inputs(tmp_path / "inputs")
    assert not list(smoke_problems(environment, tmp_path / "run", tmp_path / "inputs", clearhead.__version__, ()))
