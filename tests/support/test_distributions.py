"""Tests of the checks of a wheel: each problem is found."""

import zipfile

import pytest

from support.distributions import tracked_files, wheel_problems, wheel_version

GOOD = {
    "clearhead/__init__.py": "",
    "clearhead/data/weights.safetensors": "numbers",
    "clearhead-1.2.3.dist-info/METADATA": "",
    "clearhead-1.2.3.dist-info/licenses/LICENSE": "MIT",
    "clearhead-1.2.3.dist-info/licenses/NOTICE": "`clearhead/data/` is under CC BY 2.0 FR.",
}
EXPECTED = {"clearhead/__init__.py", "clearhead/data/weights.safetensors"}


def problems(folder, files, expected=EXPECTED):
    path = folder / "clearhead-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert wheel_version(path) == "1.2.3"
    return list(wheel_problems(path, set(expected)))


def test_good_wheel_has_no_problems(tmp_path):
    assert problems(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("clearhead/tests/data.py", "clearhead/tests/data.py is test data"),
        ("clearhead/test_ops.py", "clearhead/test_ops.py is test data"),
        ("clearhead/notes.md", "clearhead/notes.md is not a file of src/clearhead in git"),
        ("clearhead/corpus.txt", "clearhead/corpus.txt is data, but NOTICE does not name its license"),
        ("benchmarks/gpu.py", "benchmarks/gpu.py is not a file of src/clearhead in git"),
    ],
)
def test_files_that_do_not_belong_are_named(tmp_path, added, message):
    assert message in problems(tmp_path, GOOD | {added: "x"})


@pytest.mark.parametrize("removed", list(GOOD)[:1] + list(GOOD)[3:])
def test_missing_files_are_named(tmp_path, removed):
    assert f"{removed} is missing" in problems(tmp_path, {name: GOOD[name] for name in GOOD if name != removed})


def test_large_wheel_is_named(tmp_path):
    files = GOOD | {"clearhead/data/weights.safetensors": "x" * 25_000_000}
    assert problems(tmp_path, files) == ["clearhead-1.2.3-py3-none-any.whl has 25.0 MB; expected less than 25 MB"]


def test_tracked_files_contain_code_and_data():
    names = tracked_files()
    assert {"clearhead/__init__.py", "clearhead/translation/en-ja/best.safetensors"} <= names
    assert all(name.startswith("clearhead/") for name in names)
