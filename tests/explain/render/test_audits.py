"""Tests of the output formats of audits: contents, digits, limits, and escaping of tokens."""

import html
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from markdown_it import MarkdownIt

from clearhead import check
from clearhead.explain import BUILT_IN, parse
from clearhead.explain.render import AUDIT_FORMATS, render_audit
from support.audited_texts import HOSTILE, life


def hostile():
    """Return an audit whose title and tokens contain markup."""
    return life(**{'["Life", "is", "short"]': json.dumps(HOSTILE), "Life is short": "</title><script>*x*"})


class _Page(HTMLParser):
    """Parser that requires tags to be closed in order, and collects links, scripts, ids and cells."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.cells: list[dict[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[name] for name in ("src", "href") if name in values and values[name] != "data:,"]
        self.ids += [values["id"]] if "id" in values else []
        self.cells += [values] if tag == "td" else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def notes(self, kind: str) -> list[str]:
        return [cell["data-note"] for cell in self.cells if kind in cell.get("class", "").split()]


class TestHtml:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_page_is_well_formed_and_self_contained(self, name):
        audit = check(name)
        text = render_audit(audit, "html")
        page = _Page(text)
        assert page.open == []
        assert {f"#{id_}" for id_ in page.ids} >= set(page.links)  # links stay on the page
        assert len(page.ids) == len(set(page.ids))
        assert sum(id_.startswith(("claim-", "given-")) and "heading" not in id_ for id_ in page.ids) == len(
            audit.findings
        )
        assert not re.search(r"url\(|@import|fetch\(|https?://", text)

    def test_cells_are_marked_with_their_comparison(self):
        page = _Page(render_audit(life(), "html"))
        assert len(page.notes("wrong")) == 9
        assert page.notes("wrong")[0] == "printed 0.54, computed 0.762, difference −0.222"
        assert len(page.notes("carried")) == 6
        assert page.notes("carried")[0] == "printed 0.54, computed 0.762, difference −0.222, carried from S"
        assert page.notes("blank") == ["blank in the text; computed 0.390"]
        assert page.notes("masked")[0] == "printed −∞, computed −∞, agrees"
        assert len(page.notes("masked")) == 6  # three in the claimed and three in the computed matrix
        assert len(page.notes("right")) == 15

    def test_rounded_cells_are_not_marked_as_wrong(self):
        source = (
            "x = [[1.0], [2.0]]\n[weights]\nquery = [[0.14]]\nkey = [[10]]\n"
            "[[claims]]\nstep = 'query'\nvalues = [[0.1], [0.3]]\n"
            "[[claims]]\nstep = 'scores'\nvalues = [[1.0, 2.0], [3.0, 6.0]]\n"
        )
        page = _Page(render_audit(check(parse(source)), "html"))
        assert page.notes("wrong") == []
        assert page.notes("rounded")[0] == "printed 1.0, computed 1.400, follows from numbers rounded earlier"

    def test_summary_starts_with_the_first_error_and_its_cause(self):
        text = render_audit(life(), "html")
        assert "3 errors to correct" in text
        first = text[text.index("First error") : text.index("Other errors")]
        assert 'href="#claim-6"' in first  # a weight matrix comes before everything computed from it
        others = text[text.index("Other errors") : text.index("Follows from these errors")]
        assert re.findall(r'href="#(claim-\d)"', others) == ["claim-3", "claim-5"]
        assert "divided by d_k" in others
        section = text[text.index('<section id="claim-3"') : text.index('<section id="claim-4"')]
        assert "The scores are divided by d_k = 2. Divide them by √d_k." in section

    def test_special_tokens_are_escaped(self):
        text = render_audit(hostile(), "html")
        page = _Page(text)
        assert page.open == []
        assert text.count("<script") == 1
        assert "<b>" not in text
        assert "<i>" not in text

    def test_large_matrix_is_limited_to_rows_with_errors(self):
        size = 90
        values = [[0.0] * size for _ in range(size)]
        values[80][85] = 5.0
        source = f"x = {torch.zeros(size, 1).tolist()}\n[[claims]]\nstep = 'scores'\nvalues = {values}\n"
        text = render_audit(check(parse(source)), "html")
        assert "The page shows 64 of 90 rows and 64 of 90 columns, those with wrong cells first." in text
        assert len(_Page(text).notes("wrong")) == 1
        assert len(text) < 2_000_000

    def test_text_without_claims_says_that_there_is_nothing_to_check(self):
        text = render_audit(check(parse("x = [[1.0]]")), "html")
        assert '<h2 id="summary-heading">Nothing to check</h2>' in text
        assert _Page(text).open == []


class TestMarkdown:
    def test_errata_list_errors_in_the_order_of_calculation(self):
        text = render_audit(life(), "markdown")
        assert re.findall("^#+ .*", text, re.M) == [
            "# Errata of Life is short",
            "## 1. Key matrix W_K (claim 6)",
            "## 2. Scaled scores, head 1 (claim 3)",
            "## 3. Attention weights (claim 5)",
            "## Follows from these errors",
            "## Agrees",
        ]
        assert "| Life | is | 0.17 | 0.234 |" in text
        assert "**Cause:** The scores are divided by d\\_k = 2. Divide them by √d\\_k." in text
        assert "- claim 4, masked, head 1: 6 of 9 cells differ, carried from S as printed." in text
        assert "2 of 6 checked agree with the calculation." in text

    def test_long_list_of_cells_is_shortened(self):
        text = render_audit(check("song"), "markdown")
        assert text.count("| new |") == 3  # two cells of Q, and a column sum
        assert "… and 6 more cells." in text

    def test_special_tokens_are_escaped(self):
        page = MarkdownIt().enable("table").render(render_audit(hostile(), "markdown"))
        assert "<script" not in page
        assert "<em>" not in page
        assert "<i>" not in page
        tables = ElementTree.fromstring(f"<p>{''.join(re.findall(r'<table>.*?</table>', page, re.S))}</p>")
        for table in tables:
            assert len({len(row) for row in table.iter("tr")}) == 1
        assert {row[0].text for row in tables[0].iter("tr")} == {"row", "</script><b>", "a|b*c*", '"\\n& <i>x</i>'}

    def test_several_causes_are_listed(self):
        audit = life()
        [result] = [result for result in audit.findings if result.step == "scaled"]
        object.__setattr__(result, "causes", result.causes * 2)
        page = MarkdownIt().render(render_audit(audit, "markdown"))
        assert page.count("<li>The scores are divided by d_k = 2.") == 2


class TestJson:
    def test_results_have_causes_but_no_matrices(self):
        document = json.loads(render_audit(life(), "json"))
        [scaled] = [entry for entry in document["findings"] if entry["step"] == "scaled"]
        assert scaled["causes"][0]["name"] == "divided by d_k"
        assert scaled["causes"][0]["exceptions"] == [[2, 2]]
        assert "comparison" not in scaled

    def test_digits_limit_the_decimals_of_computed_numbers(self):
        document = json.loads(render_audit(life(), "json", digits=1))
        [scaled] = [entry for entry in document["findings"] if entry["step"] == "scaled"]
        assert (scaled["cells"][0]["claimed"], scaled["cells"][0]["computed"]) == (0.54, 0.8)


class TestNotebook:
    def test_repr_is_one_short_line(self):
        assert repr(life()) == "Audit of 'Life is short': 6 checked, 2 agree, 3 differ, 1 carried"
        assert len(repr(life(**{"Life is short": "x" * 10_000}))) < 200

    def test_page_is_shown_in_a_frame(self):
        shown = life()._repr_html_()
        assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
        [page] = re.findall('srcdoc="([^"]*)"', shown)
        assert html.unescape(page) == render_audit(life(), "html")

    def test_text_is_shown_without_the_extra(self, monkeypatch):
        monkeypatch.setattr("clearhead.explain.render.notebooks.missing_packages", lambda extra: ["jinja2"])
        shown = hostile()._repr_html_()
        assert shown.startswith("<pre>&lt;/title&gt;")
        assert "<b>" not in shown


@pytest.mark.parametrize("style", AUDIT_FORMATS)
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_example_renders_in_every_format(name, style):
    assert check(name).title in render_audit(check(name), style)


@pytest.mark.parametrize("style", ["text", "html", "markdown"])
def test_digits_limit_the_decimals(style):
    assert "0.7619" in render_audit(life(), style, digits=4)
    assert "0.762" not in render_audit(life(), style, digits=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"style": "pdf"}, "style is 'pdf'; expected one of text, html, markdown, json, toml"),
        ({"digits": -1}, "digits is -1; expected a whole number of at least 0"),
        ({"digits": 16}, "digits is 16; expected a whole number of at least 0 and at most 15"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        render_audit(life(), **arguments)
