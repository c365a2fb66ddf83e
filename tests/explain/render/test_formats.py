"""Tests of the output formats of worked examples: contents, digits, and escaping of tokens."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt

from clearhead import Causal, MultiHeadAttention, trace
from clearhead._utils.text import visible_text
from clearhead.explain import BUILT_IN, load, parse
from clearhead.explain.render import render
from clearhead.explain.render.wording import format_matrix, format_number
from support.layers import OPTIONS, every_option, make
from support.parameters import slow_except

AWKWARD = ["</script>", "a|b", "$x_1$", "%#&{}~^\\", "日本語", "שלום", "🙂", "\n", "", "<b>", "*a*", "x" * 10_000]


def awkward_trace():
    return trace(MultiHeadAttention(4, 2, bias=False), torch.randn(len(AWKWARD), 4), tokens=AWKWARD)


def rebuilt(document):
    """Compute the output with numpy from what JSON says about inputs, weights, mask and scale."""

    def array(cells):
        return np.array([[float(cell) for cell in row] for row in cells])

    x = array(document["x"])
    memory = x if document["memory"] is None else array(document["memory"])
    outputs = []
    for head in range(1, document["heads"] + 1):
        steps = {step["name"]: step for step in document["steps"] if step["head"] == head}
        projected = {}
        for name, source in (("query", x), ("key", memory), ("value", memory)):
            if name not in document["weights"]:
                assert steps[name]["origin"].startswith("given")
                projected[name] = array(steps[name]["values"])
                continue
            index = head if name == "query" else (head - 1) * document["kv_heads"] // document["heads"] + 1
            if document["split"] == "slice":
                source = np.split(source, document["heads" if name == "query" else "kv_heads"], axis=1)[index - 1]
            [weight] = [entry for entry in document["weights"][name] if entry["head"] == index]
            projected[name] = source @ array(weight["values"])
            for bias in document["biases"].get(name, ()):
                projected[name] = projected[name] + (array(bias["values"]) if bias["head"] == index else 0)
            if name in document["norms"]:
                norm = document["norms"][name]
                mean_square = (projected[name] ** 2).mean(axis=1, keepdims=True)
                projected[name] = projected[name] / np.sqrt(mean_square + norm["eps"]) * np.array(norm["weight"])
            if name != "value" and document["rope"] is not None:
                projected[name] = rotated(projected[name], document["rope"])
        scores = projected["query"] @ projected["key"].T * document["scale"]
        if document["softcap"] is not None:
            scores = document["softcap"] * np.tanh(scores / document["softcap"])
        for mask in document["mask"] or ():
            scores = scores + (array(mask["values"]) if mask["head"] == head else 0)
        weights = np.exp(scores)
        sink = 0 if document["sinks"] is None else np.exp(document["sinks"][head - 1])
        outputs.append(weights / (weights.sum(axis=1, keepdims=True) + sink) @ projected["value"])
    output = np.concatenate(outputs, axis=1) @ array(document["weights"]["output"]["values"])
    return output + (array(document["biases"]["output"]["values"]) if "output" in document["biases"] else 0)


def rotated(matrix, rope):
    """Rotate pairs of columns, as complex numbers."""
    dims = rope["dims"]
    np.testing.assert_allclose(rope["frequencies"], rope["base"] ** (-np.arange(0, dims, 2) / dims))
    first, second = (
        (slice(0, dims // 2), slice(dims // 2, dims))
        if rope["layout"] == "half"
        else (slice(0, dims, 2), slice(1, dims, 2))
    )
    turned = (matrix[:, first] + 1j * matrix[:, second]) * rope["factor"]
    turned = turned * np.exp(1j * np.outer(np.arange(len(matrix)), rope["frequencies"]))
    result = matrix.copy()
    result[:, first], result[:, second] = turned.real, turned.imag
    return result


class TestJson:
    def test_document_has_the_steps_in_full_precision(self):
        example = load("song-causal")
        document = json.loads(render(example.trace(), "json", title=example.title))
        assert document["title"] == example.title
        assert document["counting"] == "Heads, rows and columns are counted from 1."
        assert document["tokens"] == list(example.tokens)
        for position, (step, plain) in enumerate(zip(example.trace(), document["steps"], strict=True), 1):
            head = None if step.head is None else step.head + 1
            assert (plain["step"], plain["name"], plain["head"]) == (position, step.name, head)
            assert tuple(plain["shape"]) == step.shape
            cells = [[float(cell) for cell in row] for row in plain["values"]]
            assert torch.equal(torch.tensor(cells, dtype=torch.float64), step.values)  # full precision
        assert document["steps"][6]["values"][0][1:] == ["-inf"] * 5
        assert [step["head"] for step in json.loads(render(load("two-heads").trace(), "json"))["steps"]][2] == 1

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_calculation_can_be_rebuilt(self, name):
        traced = load(name).trace()
        output = rebuilt(json.loads(render(traced, "json")))
        np.testing.assert_allclose(output, traced.output.numpy(), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("positions", ["rotary", "rotary-interleaved"])
    def test_rotary_example_can_be_rebuilt(self, positions):
        traced = parse(f"x = {torch.randn(5, 4).tolist()}\npositions = '{positions}'\nseed = 3").trace()
        output = rebuilt(json.loads(render(traced, "json")))
        np.testing.assert_allclose(output, traced.output.numpy(), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("options", slow_except(OPTIONS, "all", "softcap", "slices, grouped", "rope, partly"))
    def test_layer_with_any_option_can_be_rebuilt(self, options):
        layer = make(options, torch.float64)
        memory = torch.randn(7, layer.kv_input_dim).double() if layer.kv_input_dim != 30 else None
        traced = trace(layer, torch.randn(5, 30).double(), memory)
        document = json.loads(render(traced, "json"))
        np.testing.assert_allclose(rebuilt(document), traced.output.detach().numpy(), rtol=1e-10, atol=1e-12)

    def test_layer_with_biases_memory_and_scale_can_be_rebuilt(self):
        layer = MultiHeadAttention(6, 2, kv_input_dim=5, scale=0.37).double()
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        traced = trace(layer, torch.randn(3, 6).double(), torch.randn(7, 5).double(), mask=Causal())
        document = json.loads(render(traced, "json"))
        np.testing.assert_allclose(rebuilt(document), traced.output.numpy(), rtol=1e-10, atol=1e-12)

    def test_size_is_limited(self, monkeypatch):
        monkeypatch.setattr("clearhead.explain.render._json.MAX_NUMBERS", 100)
        with pytest.raises(ValueError, match="has 324 numbers; expected at most 100 in JSON: choose steps or heads"):
            render(load("song").trace(), "json")

    def test_digits_limit_the_decimals(self):
        document = json.loads(render(load("song").trace(), "json", digits=1))
        assert document["steps"][-1]["values"][0] == [
            round(cell, 1) for cell in load("song").trace().output[0].tolist()
        ]


class TestText:
    def test_every_matrix_is_printed_without_truncation(self):
        example = parse(f"x = {torch.linspace(-1e3, 1e3, 40 * 30).reshape(40, 30).tolist()}\nheads = 2")
        lines = render(example.trace(), "text", digits=6).splitlines()
        assert not any("…" in line for line in lines if "products" not in line and "terms" not in line)
        for step in example.trace():
            rows = format_matrix(step.values, 6)
            last = [*rows[-1], "1"] if step.name == "weights" else rows[-1]  # with the sum of the row
            assert any(line.split()[-len(last) :] == last for line in lines), step.name

    def test_learned_matrices_are_printed_in_the_step_that_uses_them(self):
        text = render(load("two-heads").trace(), "text")
        assert re.search(r"W_Q₁ +1 +2\n1 +2\.7 +-2\.2\n2 +2\.2 +2\.7\n", text)
        assert "3. Queries, head 1: Q₁ = X₁ W_Q₁\n" in text
        assert "(8, 2) × (2, 2) = (8, 2); 32 multiply-adds, 4 weights\n" in text

    def test_special_tokens_are_escaped(self):
        text = render(awkward_trace(), "text")
        assert "\\n " in text
        assert "x" * 17 not in text


class TestMarkdown:
    def test_contains_tables_and_formulas(self):
        example = load("song")
        text = render(example.trace(), "markdown", title=example.title)
        page = MarkdownIt().enable("table").render(text)
        assert page.count("<table>") == len(list(example.trace())) + 3  # W_Q, W_V and W_O
        assert page.count("<h2>") == len(list(example.trace()))
        assert "$$\nQ = X W_{Q}\n$$" in text
        assert "| new | -0.50 | -0.87 | 7.31 | -0.91 |" in text

    def test_special_tokens_are_escaped(self):
        rows = [line for line in render(awkward_trace(), "markdown").splitlines() if line.startswith("| ")]
        page = MarkdownIt().enable("table").render(render(awkward_trace(), "markdown"))
        assert "<script" not in page
        assert "<b>" not in page
        assert "<em>" not in page
        tables = ElementTree.fromstring(f"<p>{''.join(re.findall(r'<table>.*?</table>', page, re.S))}</p>")
        for table in tables:
            widths = {len(row) for row in table.iter("tr")}
            assert len(widths) == 1
        assert len(rows) > len(AWKWARD)


class TestLatex:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_compiles_with_pdflatex(self, name, tmp_path):
        example = load(name)
        compile_latex(render(example.trace(), "latex", title=example.title), tmp_path, "pdflatex")

    @pytest.mark.slow
    def test_compiles_with_awkward_ascii_tokens(self, tmp_path):
        tokens = [token for token in AWKWARD[:-1] if token.isascii()]
        traced = trace(MultiHeadAttention(4, 2), torch.randn(len(tokens), 4), tokens=tokens)
        compile_latex(render(traced, "latex", title="100 % & more_"), tmp_path, "pdflatex")

    @pytest.mark.slow
    def test_compiles_with_any_token_in_lualatex(self, tmp_path):
        compile_latex(render(awkward_trace(), "latex"), tmp_path, "lualatex")

    @pytest.mark.slow
    @every_option
    def test_compiles_for_every_layer(self, options, tmp_path):
        layer = make(options)
        memory = torch.randn(7, layer.kv_input_dim) if layer.kv_input_dim != 30 else None
        compile_latex(render(trace(layer, torch.randn(5, 30), memory), "latex"), tmp_path, "pdflatex")

    def test_numbers_and_symbols_are_typeset(self):
        text = render(load("song").trace(), "latex", title="100 % & more_")
        assert text.startswith("\\documentclass{article}")
        assert "\\title{100 \\% \\& more\\_}" in text
        assert "(6, 4) $\\times$ (4, 6) / $\\sqrt{4}$ = (6, 6)." in text
        assert "new & $-0.50$ & $-0.87$ & $7.31$ & $-0.91$" in text
        masked = render(load("song-causal").trace(), "latex")
        assert "List & $0$ & $-\\infty$" in masked
        braces = re.sub(r"\\[{}]", "", text)
        assert braces.count("{") == braces.count("}")


def compile_latex(text: str, folder: Path, engine: str) -> None:
    if shutil.which(engine) is None:
        pytest.skip(f"{engine} is not installed: apt-get install texlive-latex-recommended texlive-luatex")
    (folder / "example.tex").write_text(text)
    command = [engine, "-interaction=nonstopmode", "-halt-on-error", "example.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "example.pdf").stat().st_size > 10_000


class _TagChecker(HTMLParser):
    """Parser that requires tags to be closed in order, and collects links and scripts."""

    VOID = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.links += [value for name, value in attrs if name in ("src", "href") and not value.startswith("data:")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class TestHtml:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_page_is_well_formed_and_self_contained(self, name):
        page = _TagChecker()
        text = render(load(name).trace(), "html")
        page.feed(text)
        # navigation, and of a live page: import map, layer and modules
        assert (page.open, page.links, page.scripts) == ([], [], 4)
        assert len(text.encode()) <= 400_000
        assert not re.search(r"url\(|@import|fetch\(|https?://(?!www\.w3\.org/1998/Math/MathML)", text)

    @pytest.mark.parametrize("options", slow_except(OPTIONS, "defaults", "all"))
    def test_renders_every_layer_with_unique_ids(self, options):
        layer = make(options)
        memory = torch.randn(7, layer.kv_input_dim) if layer.kv_input_dim != 30 else None
        traced = trace(layer, torch.randn(5, 30), memory)
        page = _TagChecker()
        text = render(traced, "html")
        page.feed(text)
        ids = re.findall(r'<section id="([^"]+)"', text)
        assert len(ids) == len(set(ids)) == len(traced)

    def test_a_second_mask_has_another_id(self):
        masks = torch.tensor([[[True, False], [True, True]], [[True, True], [False, True]]])[None]
        traced = trace(MultiHeadAttention(4, 2), torch.randn(2, 4), mask=masks).select(["mask", "masked"])
        ids = re.findall(r'<section id="([^"]+)"', render(traced, "html"))
        assert ids == ["mask", "masked-1", "mask-2", "masked-2"]

    def test_special_tokens_are_escaped(self):
        page = _TagChecker()
        text = render(awkward_trace(), "html", title="</title><script>alert(1)</script>")
        page.feed(text)
        assert (page.open, page.scripts) == ([], 1)
        assert "<b>" not in text


@pytest.mark.parametrize("style", ["text", "html", "markdown", "latex"])
def test_digits_limit_the_decimals(style):
    example = load("song")
    assert "7.3" in render(example.trace(), style, digits=1)
    assert "7.31" not in render(example.trace(), style, digits=1)


def test_rejects_unknown_style():
    with pytest.raises(ValueError, match="style is 'pdf'; expected one of text, html, markdown, latex, json"):
        render(load("song").trace(), "pdf")


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([[0.5, 0.25]], 3, [["0.50", "0.25"]]),
        ([[1.0, -2.0]], 3, [["1", "-2"]]),
        ([[1 / 3, -1e-9]], 2, [["0.33", "0.00"]]),
        ([[1e-8, 0.0]], 3, [["1.000e-08", "0.000e+00"]]),
        ([[1e9, 1.0]], 1, [["1.0e+09", "1.0e+00"]]),
        ([[-torch.inf, 0.1]], 3, [["-∞", "0.1"]]),
        ([[0.0, 0.0]], 3, [["0", "0"]]),
        ([[0.6]], 0, [["1"]]),
    ],
)
def test_numbers_have_the_digits_they_need(values, digits, expected):
    assert format_matrix(torch.tensor(values, dtype=torch.float64), digits) == expected


def test_negative_zero_and_control_characters_are_formatted():
    assert format_number(-0.0004, 3) == "0.000"
    assert [visible_text(token) for token in ("a b", "\n", "", " ", "a\tb", "\u202e")] == [
        "a b",
        "\\n",
        '""',
        '" "',
        "a\\tb",
        "\\u202e",
    ]
