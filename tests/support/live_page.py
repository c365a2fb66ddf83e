"""Live pages in tests: what they show, their controls, and the calculation of Python for comparison."""

import re

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from clearhead._utils.text import visible_text
from clearhead.explain import parse
from clearhead.explain.render._layout import Layout

NUMBER = re.compile(r"\d+(?:\.\d+)?")
# text of every part of a page that Python and the browser both write
SHOWN = """
const shown = (root) => ({
  whole: [...root.querySelectorAll("#whole .formula")].map((line) => line.getAttribute("aria-label")),
  counts: root.querySelector("#counts").textContent,
  costs: [...root.querySelectorAll(".total")].map((line) => line.textContent),
  menu: [...root.querySelectorAll("#steps option")].map((option) => option.textContent),
  sections: Object.fromEntries([...root.querySelectorAll("main section")].map((section) => [section.id, {
    heading: section.querySelector("h2").textContent.replace(/\\s+/g, " "),
    formula: section.querySelector(".formula").getAttribute("aria-label"),
    sentence: section.querySelector(".sentence").textContent,
    shapes: section.querySelector(".shapes").textContent,
    samples: [...section.querySelectorAll(".sample")].map((line) => line.textContent),
    captions: [...section.querySelectorAll("figcaption")].map((caption) =>
      [caption.querySelector("[role=math]").getAttribute("aria-label"), caption.querySelector(".shape").textContent,
       caption.querySelector(".origin").textContent]),
    signs: [...section.querySelectorAll(".factor")].map((factor) => factor.querySelector(".sign")?.textContent ?? ""),
    tables: [...section.querySelectorAll("table")].map((table) => [...table.tBodies[0].rows].map((row) =>
      [...row.cells].filter((cell) => !cell.classList.contains("statistic")).map((cell) => cell.textContent))),
  }])),
});
"""


def shown(browser):
    return browser.execute_script(f"{SHOWN} return shown(document)")


def written(browser, page):
    """Return what Python writes into a page, before scripts replace it."""
    return browser.execute_script(
        f"{SHOWN} return shown(new DOMParser().parseFromString(arguments[0], 'text/html'))", page
    )


def assert_same(actual, expected, name=""):
    """Compare texts, whose numbers may differ by one unit in the last digit: sums of floats depend on their order."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), name
        for key, part in expected.items():
            assert_same(actual[key], part, f"{name} {key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), name
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, name)
    elif actual != expected:
        assert NUMBER.sub("#", actual.replace("-", "−")) == NUMBER.sub("#", expected.replace("-", "−")), name
        for one, other in zip(NUMBER.findall(actual), NUMBER.findall(expected), strict=True):
            unit = 10.0 ** -len(one.partition(".")[2])
            assert abs(float(one) - float(other)) <= 1.01 * unit, (name, actual, expected)


def numbers(content):
    return {name: section["tables"][-1] for name, section in content["sections"].items()}


def exported(browser, kind):
    """Return the file that a button saves, as text or as the start of its bytes."""
    script = """
    const [kind, done] = arguments;
    const original = URL.createObjectURL;
    HTMLAnchorElement.prototype.click = () => {};
    URL.createObjectURL = (blob) => {
      URL.createObjectURL = original;
      const start = (data) => [data.byteLength, ...new Uint8Array(data).slice(0, 8)];
      (kind === "png" ? blob.arrayBuffer().then(start) : blob.text()).then(done);
      return original(blob);
    };
    document.querySelector(`[data-save=${kind}]`).dispatchEvent(new MouseEvent("click"));
    """
    return browser.execute_async_script(script, kind)


def assert_matches_python(browser):
    """Compare every shown number with Python's calculation of the exported TOML file."""
    traced = parse(exported(browser, "toml")).trace()
    layout, expected = Layout(traced, lambda step: (step,)), {}
    for step in traced:
        view = layout.view(step, 3)
        rows = zip(view.row_labels, view.cells, view.sums or [None] * len(view.cells), strict=True)
        texts = [[visible_text(label), *cells, *([total] if total else [])] for label, cells, total in rows]
        name = step.name if step.head is None else f"{step.name}-{step.head + 1}"
        expected[name] = texts
    assert_same(numbers(shown(browser)), expected)


def cell(browser, matrix, row, column, section=""):
    scope = f"#{section} " if section else ""
    path = f"{scope}table[data-matrix='{matrix}'] tbody tr:nth-child({row + 1}) td:nth-of-type({column + 1})"
    return browser.find_element(By.CSS_SELECTOR, path)


def scroll_to(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    return element


def control(browser, label):
    """Return a form control by its label."""
    script = "return [...document.querySelectorAll('label')].find((each) => each.textContent.trim() === arguments[0])"
    return scroll_to(browser, browser.execute_script(f"{script}.control", label))


def choose(browser, label, value):
    Select(control(browser, label)).select_by_value(value)


def enter(browser, label, text):
    field = control(browser, label)
    field.send_keys(Keys.CONTROL, "a")
    browser.execute_cdp_cmd("Input.insertText", {"text": text})  # older drivers cannot send keys beyond the BMP
    field.send_keys(Keys.ENTER)


def status(browser):
    return browser.find_element(By.CSS_SELECTOR, ".live-status").text


def changes(browser):
    script = "return [...document.querySelectorAll('.changes li')].map((line) => line.textContent)"
    return browser.execute_script(script)


def wait(browser, condition):
    return WebDriverWait(browser, 20).until(lambda _: condition())


def watch(browser):
    """Record the texts of the status line and the cells that are marked as changed, both of which disappear."""
    script = """
    const line = document.querySelector(".live-status");
    window.said = [];
    window.marked = new Set();
    new MutationObserver(() => said.push(line.textContent)).observe(line, { childList: true });
    const note = (records) => records.forEach(({ target }) => target.matches(".changed") && marked.add(target));
    new MutationObserver(note).observe(document.body, { subtree: true, attributeFilter: ["class"] });
    """
    browser.execute_script(script)


def said(browser):
    return browser.execute_script("return said")


def was_marked(browser, element):
    return browser.execute_script("return marked.has(arguments[0])", element)


def let_announce(browser):
    """Return after a change that waits to be announced would be: timers of equal delays run in their order."""
    browser.execute_async_script("setTimeout(arguments[0], 400)")


def touch(browser, x, y, moved):
    """Tap, or drag sideways by some pixels."""
    points = [(x + offset, y) for offset in range(0, moved + 1, 8)]
    kinds = ["touchStart", *["touchMove"] * (len(points) - 1)]
    for kind, (left, top) in zip(kinds, points, strict=True):
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": left, "y": top}]})
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
