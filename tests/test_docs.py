"""Tests of the documentation: complete API pages, a complete navigation, links that resolve, and names that exist."""

import importlib
import inspect
import json
import pkgutil
import re
import textwrap
from pathlib import Path

import pytest
import yaml

import clearhead
from clearhead.explain.course import catalog
from clearhead.ops import masks
from support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PACKAGES = [
    info.name
    for info in pkgutil.walk_packages(clearhead.__path__, "clearhead.")
    if info.ispkg and info.name != "clearhead.cli" and hasattr(importlib.import_module(info.name), "__all__")
]
COURSE_FILES = {
    catalog.INDEX,
    *map(catalog.page_file, catalog.PAGES),
    *map(catalog.example_file, clearhead.explain.BUILT_IN),
}
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def resolve(path: str) -> object:
    """Import what a directive such as `::: clearhead.nn.Rotary` names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Python-Markdown derives them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.fixture(scope="module")
def documented():
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("reference/api/*.md")))
    return {path: resolve(path) for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("package", ["clearhead", *PACKAGES])
def test_api_pages_contain_every_public_class_and_function(package, documented):
    module = importlib.import_module(package)
    names = {name: getattr(module, name) for name in module.__all__}
    code = {name: thing for name, thing in names.items() if inspect.isclass(thing) or inspect.isfunction(thing)}
    missing = [name for name, thing in code.items() if not any(thing is each for each in documented.values())]
    assert not missing, f"docs/reference/api has no `::: {package}.{missing[0]}`"


def test_documented_names_have_docstrings(documented):
    assert all(thing.__doc__ for thing in documented.values() if callable(thing))


def test_docstring_examples_are_in_sections():
    """Outside a section, the website shows `>>>` as a quotation."""
    for path in (ROOT / "src").rglob("*.py"):
        for before in re.findall(r"^(.*\S.*)\n+ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE):
            inside = before.strip() == "Examples:" or re.match(r" {8}", before)
            assert inside, f"{path.relative_to(ROOT)}: expected Examples: above `>>>`, not {before.strip()!r}"


def test_navigation_contains_every_page():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w/-]+\.md$", settings, re.MULTILINE)
    assert sorted(listed) == [str(page.relative_to(DOCS)) for page in PAGES]
    assert [*yaml.safe_load(settings)["nav"][0]] == ["Start"]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith("https://"):
            continue
        linked = (page.parent / path).resolve() if path else page
        if linked.parent == DOCS / "course":  # written by docs/hooks.py
            assert linked.name in COURSE_FILES, f"{target} is not a page of the course"
            continue
        assert linked.is_file(), f"{target} does not exist"
        assert page.parent == ROOT or linked.is_relative_to(DOCS), f"{target} is not on the website"
        assert not anchor or anchor in anchors(linked), f"{path} has no heading #{anchor}"


def test_tests_and_files_named_in_the_docs_exist():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES])
    for name in set(re.findall(r"`(test_\w+|Test\w+)`", text)):
        assert re.search(rf"(def|class) {name}\b", tests), f"there is no test {name}"
    for path in set(re.findall(r"`((?:tests|benchmarks|examples|src)/[\w./-]+)`", text)):
        assert (ROOT / path).exists(), f"there is no file {path}"


def test_costs_of_watching_are_those_of_the_stored_run():
    rows = json.loads((ROOT / "benchmarks/results/watch-cpu.json").read_text(encoding="utf-8"))["rows"]
    costs = {row["case"]: f"{row['ratio']:.2f} ×" for row in rows}
    guide = (DOCS / "guides/watching.md").read_text(encoding="utf-8").split("## Cost", 1)[1]
    assert [cost for cost in costs.values() if cost not in guide] == []
    assert f"| entropy | {costs['entropy']} |" in guide
    comparison = (DOCS / "reference/comparison.md").read_text(encoding="utf-8")
    assert f"Watching takes time: {costs['entropy']} that of the unwatched" in comparison


def test_mask_of_the_contributing_guide_works():
    (block,) = re.findall(
        r"^    ```python\n(.*?)^    ```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )
    namespace = dict(vars(masks))
    exec(compile(textwrap.dedent(block), "CONTRIBUTING.md", "exec"), namespace)
    blocks = namespace["Blocks"]
    assert blocks(2).picture(5) == "x x . . .\nx x . . .\n. . x x .\n. . x x .\n. . . . x"
    assert blocks(2**70).dense(3, 3).all()
