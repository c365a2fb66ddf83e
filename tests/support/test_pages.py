"""Tests of the runner of documentation pages: wrong output fails."""

import pytest

from support.pages import run_page

PAGE = """
```python
x = 2
print(x + 1)  # 3: a sum
```

```python
for number in range(2):
    print(number)
```

```text
0
1
```

```toml title="files/example.toml"
title = "A file"
```

```console
$ clearhead --version
clearhead …
```
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    def write_and_run(text):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "page.md").write_text(text)
        run_page(tmp_path / "page.md")

    return write_and_run


def test_right_output_passes_and_titled_blocks_are_files(run, tmp_path):
    run(PAGE)
    assert (tmp_path / "files/example.toml").read_text() == 'title = "A file"\n'


@pytest.mark.parametrize(
    ("shown", "wrong"),
    [
        ("# 3: a sum", "# 4: a sum"),
        ("# 3: a sum", "# a sum"),
        ("  # 3: a sum", ""),
        ("0\n1\n", "0\n2\n"),
        ("0\n1\n", "0\n"),
        ("clearhead …\n", "Clearhead …\n"),
    ],
)
def test_wrong_or_missing_output_fails(run, shown, wrong):
    with pytest.raises(AssertionError, match="prints"):
        run(PAGE.replace(shown, wrong))


def test_only_commands_of_clearhead_run(run):
    with pytest.raises(AssertionError, match="expected a command of clearhead"):
        run("```console\n$ rm file\n```\n")
