"""Tests of the course builder: errors that name page and line, recomputed answers, small pages, plain English."""

import json
import re

import pytest

from clearhead.explain.course import build_course
from clearhead.explain.course._answers import evaluate, named_matrices
from clearhead.explain.course._markdown import Page, parse_page
from clearhead.explain.course.build import _load_trace, course_files, page_html, read_pages
from clearhead.explain.course.catalog import FOLDER, PAGES, find_file

MAX_BYTES = 400_000
MAX_WORDS = 25  # of a sentence
PARSED = read_pages(FOLDER / "pages")
LIVE = '```live\nname = "head"\nexample = "song"\n```\n'
CHOICE = '```question\nask = "Who?"\nchoices = ["List", "for"]\nright = {}\n{}\n```\n'
NUMBER = '```question\nask = "What?"\nanswer = {}\ntolerance = 0.01\ncheck = "{}"\n```\n'
PRODUCT = " + ".join(f"embedding[{{0}}][{column}] * embedding[{{1}}][{column}]" for column in (1, 2, 3, 4))
COSINE = "({}) / sqrt(({}) * ({}))"
GOAL = '```question\nask = "Do it."\ngoal = {{ {} }}\n```\n'


def built(text: str) -> str:
    page = parse_page("01-words", f"# Title\n\n{text}")
    return page_html(page, [page])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```live\nname = 1\n```", "01-words.md, line 3: live: name is 1; expected a text"),
        ("```live\nname = 'a'\nexample = 'sonnet'\n```", "example is 'sonnet'; expected one of two-heads, "),
        ("```live\nname = 'a'\nexample = 'song'\nsteps = ['score']\n```", "steps has 'score'; expected some of"),
        ("```live\nname = 'a'\nexample = 'song'\nheads = [2]\n```", "heads has 2; expected whole numbers from 1 to 1"),
        ("```live\nname = 'a'\nexample = 'song'\ncontrols = ['x']\n```", "controls has 'x'; expected some of tokens"),
        (LIVE + LIVE, "two parts have the name 'head'"),
        ("text\n\n```quiz\n```", "01-words.md, line 5: fence is 'quiz'; expected live, widget, question"),
        ("```question\nask = ]\n```", "question: not TOML"),
        ("```question\nask = 'Why?'\n```", "question: has no answer; expected choices, answer or goal"),
        ("```question\nask = 'Why?'\nanswr = 2\nanswer = 1\n```", "question: unknown key 'answr'"),
        (CHOICE.format(3, ""), "question: right is 3; expected a whole number from 1 to 2"),
        (LIVE + CHOICE.format(1, "check = 'largest weights-1[6]'"), "right choice is 'List', but largest weights-1"),
        (LIVE + NUMBER.format(0.5, "weights-1[6][4]"), "question: answer is 0.5, but weights-1[6][4] is 0.9"),
        (LIVE + NUMBER.format(0.5, "weights-2[6][4]"), "there is no matrix 'weights-2'; expected one of input, "),
        (LIVE + NUMBER.format(0.5, "weights-1[7][4]"), "weights-1 has 6 rows; row 7 does not exist"),
        (NUMBER.format(2, "open('x')"), "check has \"open('x')\"; expected cells"),
        (NUMBER.format(2, "1 +"), "check is '1 +'; expected an expression of cells"),
        (LIVE + GOAL.format('live = "tail", matrix = "weights-1", row = 1, column = 1, equals = 1'), "no part 'tail'"),
        (LIVE + GOAL.format('live = "head", matrix = "weights-1", row = 1, column = 1, at_least = 0'), "the start"),
        (LIVE + GOAL.format('live = "head", matrix = "weights-1", row = 0, column = 1, at_least = 0'), "goal.row is 0"),
        (LIVE + GOAL.format('live = "head", matrix = "weights-1", row = 1, column = 1'), "goal has no bound"),
        (
            '```question\nask = "Do it."\ngoal = [{ widget = "a", equals = 1 }, { widget = "b", equals = 1 }]\n```',
            "goal names a, b; expected one part",
        ),
        ("```widget\nmodule = 'levers'\nname = 'a'\n```", "there is no file levers.js"),
        ("a [link](02-nothing.md)", "01-words.md, line 3: link to 02-nothing.md, which does not exist"),
        ("a [link](01-words.md#ending)", "link to 01-words.md#ending, but that page has no such heading"),
        ("a [link](http://example.org)", "link to 'http://example.org'; expected a page"),
        (CHOICE.format(1, "hint = '[2](02-nothing.md)'"), "01-words.md, line 3: link to 02-nothing.md, which does not"),
        (CHOICE.format(1, "why = '[1](01-words.md#ending)'"), "01-words.md#ending, but that page has no such heading"),
        (CHOICE.format(1, "why = '[page](words.txt)'"), "01-words.md, line 3: link to 'words.txt'; expected a page"),
        ("# Another title", "01-words.md, line 3: a second title"),
    ],
)  # fmt: skip
def test_wrong_pages_are_refused_with_a_reason(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        built(text)


def test_page_without_title_is_refused():
    with pytest.raises(ValueError, match="01-words.md, line 1: expected a title"):
        parse_page("01-words", "text")


def test_parts_formulas_and_links_become_html():
    html = built(
        "An [example](example-song.html) with $\\frac{a}{b}$ and <b>.\n\n## A part\n\n"
        + LIVE
        + CHOICE.format(2, "check = 'largest weights-1[6]'\nwhy = 'Because of *K*.'")
    )
    assert "<mfrac>" in html
    assert "&lt;b&gt;" in html
    assert '<h2 id="a-part">' in html
    assert "Because of <em>K</em>." in html
    assert '<a href="example-song.html">' in html
    config = json.loads(re.search(r'id="config-head">(.*?)</script>', html)[1])
    assert config["layer"]["tokens"] == ["List", "new", "ideas", "for", "a", "song"]


def test_page_has_only_the_scripts_that_it_needs():
    scripts = json.loads(re.search(r'type="importmap">(.*?)</script>', built("text"))[1])["imports"]
    names = ("course", "course_store", "course_theme", "elements", "number_format", "question")
    assert set(scripts) == {f"clearhead/{name}.js" for name in names}


@pytest.mark.parametrize("page", PARSED, ids=lambda page: page.name)
def test_page_is_small_and_complete(page: Page):
    assert len(page_html(page, PARSED).encode()) <= MAX_BYTES
    assert len(page.questions) >= (2 if page.name != "12-reading" else 0)
    # test_film_page.py recomputes the answers of page 10 from the film
    answers = [question for question in page.questions if question.answer is not None and page.name != "10-film"]
    unchecked = [question.ask for question in answers if not question.check]
    assert not unchecked, "an answer without check, which recomputes it"


@pytest.mark.parametrize("page", PARSED, ids=lambda page: page.name)
def test_sentences_are_short(page: Page):
    text = (FOLDER / "pages" / f"{page.name}.md").read_text(encoding="utf-8")
    text = re.sub(r"^```(live|widget).*?^```|^goal = \[.*?^\]|\$\$.*?\$\$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(```.*|[\w]+ = )", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]+`", "code", text)
    sentences = (
        sentence
        for block in re.split(r"\n\s*\n|\n- |\n\d+\. |\n\|", text)
        for sentence in re.split(r"[.?!:;]\s", block)
    )
    long = [sentence for sentence in sentences if len(sentence.split()) > MAX_WORDS]
    assert not long, long


@pytest.mark.parametrize(
    ("name", "example", "text", "expressions"),
    [
        ("01-words", "embeddings", "0.20 from the table plus cos 3 = −0.99", ["embedding[4][2]", "3", "cos(3)"]),
        (
            "02-likeness",
            "embeddings",
            "| *cat* and *dog* | 1.33 | 0.98 |",
            [PRODUCT.format(2, 5), COSINE.format(PRODUCT.format(2, 5), PRODUCT.format(2, 2), PRODUCT.format(5, 5))],
        ),
        (
            "02-likeness",
            "embeddings",
            "| *cat* and *saw* | −0.68 | −0.48 |",
            [PRODUCT.format(2, 3), COSINE.format(PRODUCT.format(2, 3), PRODUCT.format(2, 2), PRODUCT.format(3, 3))],
        ),
        (
            "02-likeness",
            "embeddings",
            "| *dog* and *saw* | −0.81 | −0.55 |",
            [PRODUCT.format(5, 3), COSINE.format(PRODUCT.format(5, 3), PRODUCT.format(5, 5), PRODUCT.format(3, 3))],
        ),
        ("03-one-head", "one-head", "query is (4.15, 0.80)", ["query-1[5][1]", "query-1[5][2]"]),
        ("03-one-head", "one-head", "key of *cat* is (2.00, 0.10)", ["key-1[2][1]", "key-1[2][2]"]),
        ("03-one-head", "one-head", "0.80 · 0.10 = 8.38", ["query-1[5][2]", "key-1[2][2]", "scores-1[5][2]"]),
        (
            "03-one-head",
            "one-head",
            "0.91 times the value of *cat*, 0.05 times",
            ["weights-1[5][2]", "weights-1[5][5]"],
        ),
        ("03-one-head", "one-head", "0.91 × 2.00 = 1.82", ["weights-1[5][2]", "value-1[2][1]", "weights-1[5][2] * 2"]),
        (
            "03-one-head",
            "one-head",
            "0.31 × 0.22 is less than 0.12 × 2.01",
            [
                "weights-1[2][4]",
                "sqrt(value-1[4][1] ** 2 + value-1[4][2] ** 2)",
                "weights-1[2][3]",
                "sqrt(value-1[3][1] ** 2 + value-1[3][2] ** 2)",
            ],
        ),
        ("04-scaling", "one-head", "Its weight for *cat* was 0.91", ["weights-1[5][2]"]),
        ("04-scaling", "one-head", "$e \\approx 2.7$ times", ["exp(1)"]),
        ("04-scaling", "one-head", "about 22,000 times", ["exp(10)"]),
        (
            "05-masks",
            "one-head",
            "1 / (7.39 + 2.72 + 1) = 0.09",
            ["1", "exp(2)", "exp(1)", "1", "1 / (exp(2) + exp(1) + 1)"],
        ),
    ],
)
def test_numbers_in_the_text_are_those_of_the_calculation(name, example, text, expressions):
    assert text in (FOLDER / "pages" / f"{name}.md").read_text(encoding="utf-8")
    matrices = named_matrices(_load_trace(example))
    stated = [number.replace("−", "-").replace(",", "") for number in re.findall(r"−?\d+(?:,\d{3})*(?:\.\d+)?", text)]
    for number, expression in zip(stated, expressions, strict=True):
        digits = len(number.partition(".")[2]) or (-3 if float(number) > 1000 else 0)
        assert round(evaluate(expression, matrices), digits) == float(number), expression


def test_all_files_are_written(tmp_path):
    written = build_course(tmp_path / "new" / "course")
    assert {path.name for path in written} == {path.name for path in (tmp_path / "new" / "course").iterdir()}
    assert written[-1].name == "index.html"
    assert [path.stem for path in written[: len(PAGES)]] == list(PAGES)
    index = written[-1].read_text()
    assert all(f'href="{path.name}"' in index for path in written[:-1])
    with pytest.raises(NotADirectoryError, match="expected the name of a folder"):
        build_course(written[0])
    for wrong in (3, None, b"course", ["course"]):
        with pytest.raises(TypeError, match="folder is"):
            build_course(wrong)


def test_links_of_every_file_resolve():
    """The check of mkdocs covers Markdown pages only, and not the generated HTML files of the course."""
    files = dict(course_files())
    link = re.compile(r'<a [^>]*?href="([^"]+)"')
    targets = {(name, target) for name, text in files.items() for target in link.findall(text)}
    assert ("12-reading.html", "04-scaling.html") in targets  # a link in a question
    for name, target in targets:
        path, _, anchor = target.partition("#")
        if not path.startswith("https://"):
            assert (path or name) in files, f"{name} links to {target}, which does not exist"
            assert not anchor or f'id="{anchor}"' in files[path or name], f"{name} links to {target}"


def test_missing_page_is_reported(tmp_path):
    (tmp_path / "01-words.md").write_text("# Words")
    with pytest.raises(ValueError, match="there is no page 02-likeness.md"):
        read_pages(tmp_path)


@pytest.mark.parametrize("name", ["3", "03", "one-head", "03-one-head", "One-Head", "03-one-head.html"])
def test_pages_are_found_by_number_and_name(name):
    assert find_file(name) == "03-one-head.html"


def test_unknown_pages_are_refused_with_a_list():
    assert find_file("song") == "example-song.html"
    with pytest.raises(
        ValueError, match=r"PAGE is 'sonnet'; expected a page of the course, 1 \(words\), .* song-causal"
    ):
        find_file("sonnet")
