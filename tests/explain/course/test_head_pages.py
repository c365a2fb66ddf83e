"""Tests of pages 6, 7, 8 and 11: counts and numbers of their widgets against Python, and their use in a browser."""

import contextlib
import io
import json
import re

import pytest
import torch
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from clearhead import MultiHeadAttention, trace
from clearhead.explain import load
from clearhead.explain.course._markdown import parse_page
from clearhead.explain.course.build import page_html, read_pages
from clearhead.explain.course.catalog import FOLDER
from clearhead.explain.live._layer_json import live_layer
from support.live_layers import call
from support.paths import ROOT

PAGES = ("06-many-heads", "07-output", "08-transformer", "11-all-at-once")
SIZES = (
    {"tokens": 10, "width": 512, "heads": 8, "keyHeads": 8, "split": "project"},
    {"tokens": 10, "width": 512, "heads": 1, "keyHeads": 1, "split": "project"},
    {"tokens": 7, "width": 60, "heads": 6, "keyHeads": 2, "split": "project"},
    {"tokens": 5, "width": 60, "heads": 6, "keyHeads": 3, "split": "slice"},
    {"tokens": 8, "width": 4, "heads": 2, "keyHeads": 2, "split": "slice"},
)
LOOP = """
import { largestDifference, loopOverHeads, makeProblem, oneProduct } from "clearhead/head_products.js";
const [sizes] = given;
const problem = makeProblem(sizes);
const [parts, whole] = [loopOverHeads(problem), oneProduct(problem)];
const wrong = parts.map((part) => part.slice());
wrong.at(-1)[wrong.at(-1).length - 1] += 0.5;
answer({ x: [...problem.x], weights: problem.weights.map((each) => [...each]), parts: parts.map((each) => [...each]),
  difference: largestDifference(parts, whole, sizes.tokens), wrong: largestDifference(wrong, whole, sizes.tokens) });
"""
PARTS = """
import { calculate } from "clearhead/calculate.js";
import { headParts } from "clearhead/head_parts.js";
answer(given.map((layer) => headParts(calculate(layer)).map(({ part }) => part)));
"""

FAILING_WORKER = """
window.Worker = class {
  postMessage(message) { setTimeout(() => (message ? this.onmessage({ data: null }) : this.onerror())); }
  terminate() {}
};
"""
EDITS = """
import { calculate } from "clearhead/calculate.js";
import { setCell, setSplit } from "clearhead/change_layer.js";
const [slices, output, cross] = given;
const before = calculate(slices).matrices;
const projected = setSplit(slices, "project");
const after = calculate(projected).matrices;
const text = (matrices) => JSON.stringify(["query-1", "weights-2", "output"].map((id) => matrices.get(id).values));
const value = (layer, id, row, column) => calculate(layer).matrices.get(id).values[row - 1][column - 1];
answer([text(before) === text(after), value(setCell(projected, ["weights", "query", 0], 3, 0, 1), "query-1", 1, 1),
  value(setCell(output, ["weights", "output"], 2, 2, 0), "output", 1, 3),
  value(setCell(cross, ["x"], 1, 0, 1), "weights-1", 2, 3)]);
"""


def source(name: str) -> str:
    return (FOLDER / "pages" / f"{name}.md").read_text(encoding="utf-8")


def test_shapes_and_costs_equal_those_of_a_traced_layer():
    code = 'import { layerSteps, layerTotals } from "clearhead/layer_costs.js";\n'
    counted = call(code + "answer(given[0].map((sizes) => [layerSteps(sizes), layerTotals(sizes)]));", SIZES)
    for sizes, (steps, totals) in zip(SIZES, counted, strict=True):
        options = {"kv_heads": sizes["keyHeads"], "split": sizes["split"], "bias": False}
        traced = trace(
            MultiHeadAttention(sizes["width"], sizes["heads"], **options), torch.randn(sizes["tokens"], sizes["width"])
        )
        for step in steps:
            same = traced.named(step["name"])
            result = step["result"]
            assert (len(same), same[0].shape) == (step["count"], (result["rows"], result["columns"]))
            operands = [(operand["rows"], operand["columns"]) for operand in step["operands"]]
            assert operands == [tuple(operand.values.shape) for operand in same[0].operands[:2]]
            assert step["multiplyAdds"] == sum(other.multiply_adds for other in same)
            assert step["parameters"] == sum(other.weights for other in same)
        assert totals["multiplyAdds"] == sum(step.multiply_adds for step in traced)
        assert totals["parameters"] == sum(step.weights for step in traced)
        assert totals["exponentials"] == sum(step.values.numel() for step in traced.named("weights"))
        assert totals["stored"] == sum(step.values.numel() for step in traced if step.name in ("key", "value"))
    totals = counted[0][1]["multiplyAdds"], counted[1][1]["multiplyAdds"]
    assert totals == (10_588_160, 10_588_160)
    assert "10,588,160" in source("06-many-heads")


def test_one_product_equals_the_loop_over_heads():
    result = call(LOOP, {"tokens": 5, "width": 12, "heads": 3})
    x = torch.tensor(result["x"], dtype=torch.float64).view(5, 12)
    weights = torch.tensor(result["weights"], dtype=torch.float64).view(9, 12, 4)
    torch.testing.assert_close(
        torch.tensor(result["parts"], dtype=torch.float64).view(9, 5, 4), x @ weights, atol=1e-5, rtol=0
    )
    assert result["difference"] == 0
    assert result["wrong"] == pytest.approx(0.5)


def test_parts_of_the_heads_sum_to_the_output():
    traces = [load(name).trace() for name in ("causal-decoder", "grouped-heads", "cross-attention")]
    computed = call(PARTS, *(live_layer(each) for each in traces))
    for traced, parts in zip(traces, computed, strict=True):
        assert len(parts) == traced.heads
        torch.testing.assert_close(torch.tensor(parts, dtype=torch.float64).sum(dim=0), traced.output)


def test_changes_that_the_pages_suggest_reach_their_goals():
    layers = [live_layer(load(name).trace()) for name in ("two-heads", "causal-decoder", "cross-attention")]
    slices_equal_blocks, query, output, weight = call(EDITS, *layers)
    assert slices_equal_blocks
    goals = [
        part.goal for page in read_pages(FOLDER / "pages") if page.name in PAGES for part in page.questions if part.goal
    ]
    bounds = {goal.part: goal.bounds for goal in goals}
    assert query == pytest.approx(bounds["slices"]["equals"])
    assert output == pytest.approx(bounds["output"]["equals"])
    assert weight >= bounds["cross"]["at_least"]


def test_measured_times_are_those_of_the_results():
    lines = [line for line in source("11-all-at-once").splitlines() if re.match(r"\| \d", line)]
    stored = {
        device: json.loads((ROOT / "benchmarks" / "results" / f"heads-at-once-{device}.json").read_text())
        for device in ("cpu", "cuda")
    }
    rows = {device: {row["tokens"]: row for row in result["rows"]} for device, result in stored.items()}
    assert len(lines) == len(rows["cuda"])
    for line in lines:
        tokens, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        measured = [
            rows[device].get(int(tokens), {}).get(key, "")
            for device in ("cpu", "cuda")
            for key in ("loop, ms", "at once, ms")
        ]
        for cell, value in zip(cells, measured, strict=True):
            assert cell == "" if value == "" else float(cell) == pytest.approx(value, rel=2e-4)
    for result in stored.values():
        assert f"torch {result['machine']['torch'].split('+')[0]}" in source("11-all-at-once")


def test_python_of_the_timing_page_runs(monkeypatch):
    monkeypatch.setattr("torch.set_default_device", lambda _: None)  # it would outlast this test
    [code] = re.findall(r"```python\n(.*?)```", source("11-all-at-once"), flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.replace("rounds=300", "rounds=2"), {})
    assert re.fullmatch(r"loop [\d.]+ ms\nat once [\d.]+ ms\ndifference [\d.e-]+\n", printed.getvalue())
    assert float(printed.getvalue().split()[-1]) < 1e-5


@pytest.mark.slow
def test_translation_weights_are_those_of_the_bundled_model():
    from clearhead.translation import Translator

    stored = call('import { TRANSLATION } from "clearhead/translation_weights.js"; answer(TRANSLATION);')
    cross = Translator.load().record(stored["sentence"], target=stored["translation"])["cross"]
    assert cross.written is not None
    assert (stored["source"], stored["written"]) == (list(cross.keys.texts), list(cross.written.texts))
    weights = torch.stack([layer.dense()[0] for layer in cross.layers])
    torch.testing.assert_close(torch.tensor(stored["weights"]) / 1000, weights, atol=2e-3, rtol=0)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    folder, parsed = tmp_path_factory.mktemp("course"), read_pages(FOLDER / "pages")
    for page in parsed:
        if page.name in PAGES:
            (folder / f"{page.name}.html").write_text(page_html(page, parsed), encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in PAGES}


def opened(page, address: str):
    """Open a page of the course and wait for its parts."""
    page.browser.get(address)
    ready = "return [...document.querySelectorAll('.part')].every((part) => part.dataset.ready)"
    WebDriverWait(page.browser, 30).until(lambda browser: browser.execute_script(ready))
    return page.browser


def text_of(browser, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def verdicts(browser) -> list[str]:
    return [form.get_attribute("data-state") for form in browser.find_elements(By.CSS_SELECTOR, "form.question")]


def test_shapes_follow_the_sizes_and_a_slice_is_a_projection(page, addresses):
    browser = opened(page, addresses["06-many-heads"])
    assert text_of(browser, "#part-shapes .check").startswith("8 × 64 = 512:")
    width = browser.find_element(By.CSS_SELECTOR, "#part-shapes input.size")
    width.send_keys(Keys.CONTROL, "a")
    width.send_keys("12288", Keys.TAB)
    heads, key_heads, split = map(Select, browser.find_elements(By.CSS_SELECTOR, "#part-shapes select"))
    heads.select_by_value("96")
    assert text_of(browser, "#part-shapes .check").startswith("96 × 128 = 12288:")
    key_heads.select_by_value("8")
    assert "× 8 key heads" in text_of(browser, "#part-shapes [data-step=key]")
    split.select_by_value("slice")
    assert "(10, 128)" in text_of(browser, "#part-shapes [data-step=query]")
    width.send_keys(Keys.CONTROL, "a")
    width.send_keys("0", Keys.TAB)  # not a width: the earlier one stays
    assert text_of(browser, "#part-shapes .check").startswith("96 × 128 = 12288:")
    assert verdicts(browser)[-1] == "right"

    shapes = "return document.querySelector('#part-slices').textContent"
    assert "(2, 2)" in browser.execute_script(shapes)
    Select(browser.find_element(By.CSS_SELECTOR, "#part-slices select")).select_by_value("project")
    assert "(2, 2)" not in browser.execute_script(shapes)
    assert "(4, 2)" in browser.execute_script(shapes)


def test_head_that_is_switched_off_vanishes_from_the_sum(page, addresses):
    browser = opened(page, addresses["07-output"])
    assert text_of(browser, "#part-parts .say") == "The sum equals C W_O; the largest difference is 0."
    select = "document.querySelectorAll(`#part-parts [data-matrix=${arguments[0]}] tbody td`)"
    cells = f"return [...{select}].map((cell) => cell.textContent)"
    before = browser.execute_script(cells, "part-1")
    browser.find_elements(By.CSS_SELECTOR, "#part-parts input")[1].send_keys(Keys.SPACE)
    assert browser.execute_script(cells, "sum") == before == browser.execute_script(cells, "part-1")
    assert set(browser.execute_script(cells, "part-2")) == {"0.00"}
    assert text_of(browser, "#part-parts .say").startswith("Without head 2, Y changes by at most 1.43")


def test_boxes_and_tokens_open_by_keyboard(page, addresses):
    browser = opened(page, addresses["08-transformer"])
    parsed = parse_page("08-transformer", source("08-transformer"))
    for box in browser.find_elements(By.CSS_SELECTOR, "#part-picture [data-box]"):
        box.send_keys(Keys.ENTER)
        assert box.get_attribute("aria-pressed") == "true"
        assert len(browser.find_elements(By.CSS_SELECTOR, "#part-picture dd")) == 3
        links = browser.find_elements(By.CSS_SELECTOR, "#part-picture .description a")
        assert links
        for link in links:
            target = link.get_dom_attribute("href")
            assert target[1:] in parsed.anchors if target[0] == "#" else source(target.removesuffix(".html"))
    assert text_of(browser, "#part-picture .controls").endswith("16 of 16 boxes opened")

    token = browser.find_elements(By.CSS_SELECTOR, "#part-alignment .token")[3]
    token.send_keys(Keys.SPACE)
    assert text_of(browser, "#part-alignment .say").endswith("the decoder attends to ate 49 %, fish 24 %, . 7 %.")
    assert {
        line.get_attribute("data-cell")[0] for line in browser.find_elements(By.CSS_SELECTOR, ".alignment line")
    } == {"4"}
    Select(browser.find_element(By.CSS_SELECTOR, "#part-alignment select")).select_by_visible_text("cross 2.3")
    assert verdicts(browser)[-1] == "right"


def test_ways_of_computing_heads_agree_in_the_browser(page, addresses):
    browser = opened(page, addresses["11-all-at-once"])
    tokens, width, heads = map(Select, browser.find_elements(By.CSS_SELECTOR, "#part-timing select"))
    tokens.select_by_visible_text("8")
    width.select_by_visible_text("64")
    button = browser.find_element(By.CSS_SELECTOR, "#part-timing button")
    for count in ("8", "2"):
        heads.select_by_visible_text(count)
        button.send_keys(Keys.ENTER)
        WebDriverWait(browser, 60).until(lambda _: button.is_enabled())
        assert text_of(browser, "#part-timing .say").endswith("Largest difference between the results: 0.")
    assert browser.find_elements(By.CSS_SELECTOR, "#part-timing td[colspan]") == []  # the workers ran
    browser.execute_script(FAILING_WORKER)
    button.send_keys(Keys.ENTER)
    WebDriverWait(browser, 60).until(lambda _: "stopped" in text_of(browser, "#part-timing .say"))
    failed = "The measurement stopped: a worker of the browser failed. Try again."
    assert text_of(browser, "#part-timing .say") == failed
    assert button.is_enabled()
    assert verdicts(browser)[0] == "right"
