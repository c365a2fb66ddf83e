"""Tests of the package layout: few top-level modules, private modules, short files, precise names."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

SOURCE = ROOT / "src" / "clearhead"
FILES = sorted(SOURCE.rglob("*.py"))
PUBLIC_PACKAGES = sorted(
    path.parent.relative_to(SOURCE.parent).as_posix().replace("/", ".")
    for path in SOURCE.glob("*/__init__.py")
    if path.parent.name not in ("_utils", "cli")
)
VAGUE_NAMES = {"own", "place", "places", "found", "number", "numbers"}


def imported_modules(path: Path) -> Iterator[str]:
    """Yield all modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "clearhead":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def bound_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def test_top_level_contains_only_public_modules():
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    assert modules == {"functional", "models", "torch_compat"}


@pytest.mark.parametrize("name", PUBLIC_PACKAGES)
def test_packages_list_their_public_names(name):
    package = importlib.import_module(name)
    assert package.__doc__
    assert package.__all__
    assert all(hasattr(package, public) for public in package.__all__)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_private_modules_are_only_imported_inside_their_package(path):
    home = path.relative_to(SOURCE).parts[0]
    for module in imported_modules(path):
        _, package, *inner = [*module.split("."), ""]
        is_private = any(part.startswith("_") and not part.startswith("__") for part in inner)
        assert package == home or not is_private, f"{path} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_files_are_short_and_names_precise(path):
    assert len(path.read_text().splitlines()) <= 400
    assert not VAGUE_NAMES & set(bound_names(path))


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.js")), ids=lambda path: path.name)
def test_scripts_are_short(path):
    assert len(path.read_text().splitlines()) <= 300


def test_tests_mirror_the_package():
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    # gpu, vision and vllm contain tests of several packages: `pytest -m gpu`, `make test-vision`, `make test-vllm`
    others = {Path("support"), Path("gpu"), Path("vision"), Path("vllm")}
    extra = {folder for folder in folders if not (SOURCE / folder).is_dir()} - others
    assert not extra, f"folders of tests without a package: {sorted(map(str, extra))}"
