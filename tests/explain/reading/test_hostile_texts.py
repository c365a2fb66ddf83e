"""Tests of hostile texts: garbage, unbalanced LaTeX, large tables. Only a ValueError of one line may be raised."""

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clearhead import check
from clearhead.explain import load_draft, parse_draft

SETTINGS = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
X = "$$X = \\begin{bmatrix} 1 & 2 \\\\ 3 & 4 \\end{bmatrix}$$\n\n"
PIECES = [
    "$$", "$", "\\[", "\\]", "\\(", "\\begin{bmatrix}", "\\end{bmatrix}", "\\begin{tabular}{l|", "\\end{tabular}",
    "\\begin{align}", "\\\\", "&", "=", "|", "|--|--|\n", "\n", "\n\n", "# ", "## Head 2\n", "### Queries\n", "```\n",
    "Table 1: ", "Q_1", "K^\\top", "W_Q", "X", "S", "softmax(", "\\frac{", "}", "{", "[", "]", "[[", "]]", ",", ":",
    "_", "1", "-0.5", "−∞", "1e999", "1/0", "**", "*", "`", "<sub>", "</sub>", "<!--", "-->", "\\", "%", "\ue000",
    "\x00", "\u202e", "\ud7ff", "٣", "head 1", "causal mask", "2 heads", "h = 999", "head_0", "- ", "> ", "    ",
    "1. ", "\t", "\r", "---\ntitle: a\n---\n", "X = [[1, 2], [3, 4]]\n", "| 1 | 2 |\n|--|--|\n| 3 | 4 |\n",
    "\\caption{", "\\section{",
]  # fmt: skip
NUMBERS = st.sampled_from(["1", "0.5", "-2", "_", "", "1e308", "-inf", "cat", "0", "1e-320", "9" * 400])
SYMBOLS = st.sampled_from(
    ["X", "Q", "Q_1", "Q_2", "K^T", "V_9", "W_Q", "W^K_2", "W_V", "W_O", "S", "A_1", "Z", "Y", "M", "C", "S + M", "q"]
)


def read(text: str, name: str) -> None:
    """Read and check a text. Fail on any error except a ValueError of one line, and on a draft that is not TOML."""
    messages: list[str] = []
    try:
        draft = parse_draft(text, name=name)
        messages += draft.question_lines()
        tomllib.loads(draft.toml)
        check(draft.example())
    except tomllib.TOMLDecodeError:  # which is a ValueError
        raise AssertionError(draft.toml) from None
    except ValueError as error:
        messages.append(str(error))
    assert not any("\n" in message for message in messages)


@SETTINGS
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=60), st.sampled_from(["a.md", "a.tex"]))
def test_garbage_is_read_or_refused(pieces, name):
    read(X + "".join(pieces), name)
    read("".join(pieces), name)


@st.composite
def matrices(draw) -> str:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    cells = [[draw(NUMBERS) for _ in range(columns)] for _ in range(rows)]
    body = " \\\\ ".join(" & ".join(row) for row in cells)
    table = "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], ["--"] * columns, *cells[1:]])
    symbol = draw(SYMBOLS)
    return draw(
        st.sampled_from(
            [
                f"$${symbol} = \\begin{{bmatrix}} {body} \\end{{bmatrix}}$$",
                f"Matrix ${symbol}$:\n\n{table}",
                f"## Head {draw(st.integers(0, 3))}\n\n{table}\n\n*{symbol} above*",
            ]
        )
    )


@SETTINGS
@given(st.lists(matrices(), max_size=8))
def test_contradictory_matrices_are_read_or_refused(texts):
    read(X + "\n\n".join(texts), "a.md")


@pytest.mark.parametrize(
    "text",
    [
        "\\begin{bmatrix}" * 5000,
        "$$" * 20_001,
        "\\[\n" * 20_000,
        "[" * 50_000,
        "> " * 5000 + "x",
        "|" * 50_000,
        "| a |\n|--|\n" * 5000,
        "{" * 20_000 + "}" * 20_000,
        "\\mathbf{" * 5000 + "1" + "}" * 5000,
        "*" * 50_000,
        "<" * 50_000,
        "Q_1 = " * 10_000,
        "scores and " * 10_000,
        "causal not " * 10_000,
        "a" * 200_000,
        " " * 200_000,
        "1 " * 100_000,
        "- " * 2000 + "x = [[1, 2]]",
        "\\caption{" * 5000,
        "\\begin{table}" * 3000,
        "$" + "x" * 100_000,
        '"' + "x " * 50_000,
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("name", ["a.md", "a.tex"])
def test_long_garbage_is_read_or_refused(text, name):
    read(X + text, name)


def test_large_table_is_ignored_with_the_rest_read():
    row = "|" + "|".join(["0.5"] * 300) + "|\n"
    table = row + "|--" * 300 + "|\n" + row * 300
    assert parse_draft(f"{X}### Attention weights\n\n{table}").example().x.shape == (2, 2)


def test_tokens_and_names_are_escaped():
    text = '| | 1 | 2 |\n|--|--|--|\n| "\\\\x"""\x1b[31m | 1 | 2 |\n| ]]\n[x]\u202e | 3 | 4 |\n\n'
    read(f"# Input \x07\n\n{text}", "evil\x1b\n.md")
    token = '| | 1 |\n|--|--|\n| a"]\\ | 1.5 |\n| # \u202e | 3 |\n'
    draft = parse_draft(f"### Input\n\n{token}")
    assert draft.example().tokens == ('a"]\\', "# \\u202e")


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / "a.md"
    with pytest.raises(ValueError, match=r"a.md: there is no such file"):
        load_draft(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a.md: not a text file"):
        load_draft(path)
    path.write_bytes(b"x" * (2**19 + 1))
    with pytest.raises(ValueError, match=r"a.md: 524,289 letters; expected at most"):
        load_draft(path)
    path.write_bytes(b"x" * (2**24 + 1))
    with pytest.raises(ValueError, match=r"larger than 16 MiB"):
        load_draft(path)
