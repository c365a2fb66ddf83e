"""Tests of import maps."""

import base64

import pytest

from clearhead._utils.modules import import_map, inline_modules, read_scripts


@pytest.fixture
def folders(tmp_path):
    for folder, name in (("one", "b.js"), ("two", "a.js"), ("two", "a.css"), ("two", "a.d.ts")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(f"export default '{name} é'", encoding="utf-8")
    return tmp_path / "one", tmp_path / "two"


def test_scripts_of_all_folders_are_sorted_by_name(folders):
    modules = import_map(lambda name, code: f"/{name}?{len(code)}", read_scripts(*folders))
    assert list(modules["imports"].items()) == [("clearhead/a.js", "/a.js?24"), ("clearhead/b.js", "/b.js?24")]


def test_inline_modules_contain_the_code(folders):
    [address] = inline_modules(folders[0])["imports"].values()
    kind, code = address.split(",")
    assert kind == "data:text/javascript;base64"
    assert base64.b64decode(code) == "export default 'b.js é'".encode()


def test_equal_names_are_refused(folders):
    (folders[0] / "a.js").write_text("")
    with pytest.raises(ValueError, match=r"a\.js occurs in several folders; expected different names"):
        inline_modules(*folders)
