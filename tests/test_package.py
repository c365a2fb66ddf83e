"""The package as a whole: its public names, the direction of its imports, its command line, its examples and docs."""

import ast
import doctest
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import clearhead
from clearhead.cli import app
from pretrained import minilm

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "clearhead"
# top first; a file imports only from files above it in this list
LAYERS = [
    "checks",
    "escaping",
    "consoles",
    "temporaries",
    "tensor_checks",
    "files",
    "inputs",
    "locks",
    "checksums",
    "processes",
    "ranges",
    "masks",
    "biases",
    "heads",
    "problem",
    "posing",
    "kernels.precision",
    "kernels.dropout",
    "kernels.walk",
    "kernels.scoring",
    "kernels.operation",
    "kernels.reference",
    "kernels.streaming",
    "kernels.sdpa",
    "kernels.sweep",
    "kernels.pooling",
    "kernels.triton_tiles",
    "kernels.triton_dropout",
    "kernels.triton_scores",
    "kernels.triton_walk",
    "kernels.triton_blocks",
    "kernels.triton_forward",
    "kernels.triton_decode",
    "kernels.triton_backward",
    "kernels.triton_bias",
    "kernels.triton_observe",
    "kernels.triton_pool",
    "kernels.triton_topk",
    "kernels.triton_backend",
    "kernels.observing",
    "kernels",
    "pictures",
    "indexing",
    "stills",
    "fingerprints",
    "storage",
    "weights",
    "functional",
    "context",
    "positions",
    "cache",
    "windowed_cache",
    "slices",
    "projections",
    "torch_weights",
    "layer",
    "torch_compat",
    "parallel.collectives",
    "parallel.heads",
    "parallel.gather",
    "parallel.layout",
    "parallel.sequence_weights",
    "parallel.sequence",
    "parallel.cost",
    "parallel",
    "recording",
    "tallies",
    "treebank",
    "syntax",
    "head_statistics",
    "roles",
    "watched",
    "huggingface.taps",
    "huggingface.modules",
    "huggingface.mask_functions",
    "huggingface.masking",
    "huggingface.arguments",
    "huggingface.forward",
    "huggingface.watching",
    "huggingface.ablation",
    "huggingface.whisper",
    "huggingface",
    "transformer.normalising",
    "transformer.config",
    "transformer.model",
    "transformer.sharding",
    "transformer.tokens",
    "transformer.decoding",
    "transformer.corpus",
    "transformer.lexicon",
    "transformer.phrases",
    "transformer.clauses",
    "transformer.grammar",
    "transformer.batching",
    "transformer.data",
    "transformer.validation",
    "transformer.probing",
    "transformer.runs",
    "transformer.specialising",
    "transformer.chart",
    "transformer.translate",
    "transformer.train",
    "transformer",
    "models",
    "worked",
    "worked.steps",
    "worked.wording",
    "worked.trace",
    "worked.grids",
    "worked.claims",
    "worked.matrices",
    "worked.example",
    "worked.reading",
    "worked.fitting",
    "worked.audit",
    "worked.calculation",
    "worked.recomputing",
    "worked.check",
    "worked.terminal",
    "worked.documents",
    "worked.page",
    "worked.render",
    "viewer",
    "viewer.maps",
    "viewer.thumbnails",
    "viewer.looking",
    "viewer.calculation",
    "viewer.gallery",
    "viewer.facts",
    "viewer.figures",
    "viewer.texts",
    "viewer.charts",
    "viewer.pages",
    "viewer.digest",
    "viewer.report_page",
    "viewer.report",
    "viewer.jobs",
    "viewer.explorer",
    "viewer.sessions",
    "viewer.gate",
    "viewer.access",
    "viewer.handover",
    "viewer.serving",
    "corpora",
    "surveys",
    "tables",
    "doctor",
    "cli_errors",
    "cli_models",
    "cli_training",
    "cli_viewing",
    "cli",
    "__main__",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT)


def test_public_names():
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


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "clearhead":
            base = node.module.removeprefix("clearhead").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                found.add(full if full in LAYERS else base)
    return found - {""}


def test_imports_point_down():
    files = {module_name(path): path for path in SOURCE.rglob("*.py")}
    assert set(files) - {"__init__"} == set(LAYERS)
    for name, path in files.items():
        if name != "__init__":
            wrong = {other for other in imported(path) if LAYERS.index(other) >= LAYERS.index(name)}
            assert not wrong, f"{name} imports {wrong}, which stand below it"


def test_nothing_waits_for_torch_until_it_is_used():
    run("-c", "import clearhead, clearhead.cli, sys; assert 'torch' not in sys.modules; clearhead.Causal")
    code = "import sys; sys.argv = ['clearhead', '--help']\ntry: import clearhead.__main__\nexcept SystemExit: pass\n"
    assert "doctor" in run("-c", code + "assert 'torch' not in sys.modules").stdout


class TestCommandLine:
    def test_console_script_and_module(self):
        script = Path(sys.executable).parent / "clearhead"
        by_script = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
        assert by_script == run("-m", "clearhead", "--version").stdout == f"clearhead {clearhead.__version__}\n"

    def test_doctor_shows_versions_devices_backends_and_reasons(self):
        shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        for text in ("torch", "cpu: ", "sdpa, streaming, reference", "sdpa: softcap is not known to it"):
            assert text in shown.stdout

    def test_doctor_json(self):
        found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
        assert set(found) == {"versions", "devices", "cases"}
        windowed = next(case for case in found["cases"] if case["name"] == "windowed")
        assert windowed["able"][:2] == ["streaming", "reference"]
        assert "Window(before=255)" in windowed["refusals"]["sdpa"][0]

    def test_no_command_shows_help_and_an_unknown_one_says_so(self):
        assert "doctor" in CliRunner().invoke(app, []).output
        unknown = CliRunner().invoke(app, ["docter"])
        assert unknown.exit_code == 2
        assert "docter" in unknown.output


@pytest.mark.parametrize("name", LAYERS[:-1])
def test_docstring_examples(name):
    found = doctest.testmod(importlib.import_module(f"clearhead.{name}"))
    assert not found.failed


def test_some_docstring_examples_are_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = (
        importlib.import_module(f"clearhead.{name}")
        for name in ("masks", "functional", "positions", "layer", "worked.trace")
    )
    assert all(any(test.examples for test in finder.find(module)) for module in modules)


@pytest.mark.parametrize("path", sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]), ids=lambda path: path.name)
def test_python_in_the_docs_runs(path, tmp_path, monkeypatch):
    """All blocks of a page in one namespace, in order; the model they name lies where they run."""
    monkeypatch.chdir(tmp_path)
    if "MiniLM" in path.read_text():
        Path("all-MiniLM-L6-v2").symlink_to(minilm())
    namespace: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        exec(compile(block, path.name, "exec"), namespace)


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name)
def test_examples_run(path):
    assert run(str(path)).stdout
