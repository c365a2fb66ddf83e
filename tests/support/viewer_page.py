"""Driver of the viewer's page, or of a report, in a real browser."""

import re
from collections.abc import Sequence
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from clearhead import view
from support.pretrained import axe

PLAIN_TOKENS = [f"t{index}" for index in range(12)]
TIMEOUT = 30  # seconds; the machine may be busy
MODULES = {
    "address": "isAddressPending, toAddress",
    "heatmap": "binAt, figures, renderers",
    "state": "ask, on, settings, state, windowShown",
}


class Page:
    """Page with methods for user actions. Each action waits until the page has settled."""

    def __init__(self, browser: Chrome) -> None:
        self.browser, self.timeout = browser, TIMEOUT

    def open(self, url: str, fragment: str = "") -> "Page":
        self.browser.get("about:blank")  # otherwise a URL that differs only in its fragment is not reloaded
        self.browser.get(url + fragment)
        self.until(lambda: self.text("readout"))
        self.settle()
        return self

    def until(self, condition, every: float = 0.02):
        return WebDriverWait(self.browser, self.timeout, poll_frequency=every).until(lambda _: condition())

    def script(self, code: str, *arguments):
        return self.browser.execute_script(code, *arguments)

    def module_script(self, code: str, *arguments):
        """Run code that uses the exports of the page's modules."""
        imports = "".join(
            f"const {{ {names} }} = await import('clearhead/{module}.js');" for module, names in MODULES.items()
        )
        return self.browser.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            f"(async function () {{ {imports} {code} }}).apply(null, arguments).then(done);",
            *arguments,
        )

    def settle(self) -> None:
        """Wait until the page has stopped changing."""
        state = """
            const drawn = figures.sources.map((source) => source.data.image[0]?.length);
            return [location.hash, document.body.innerText, drawn, isAddressPending() || state.status?.busy];
        """
        states = []

        def still() -> bool:
            states.append(self.module_script(state))
            return len(states) >= 4 and all(earlier == states[-1] for earlier in states[-4:]) and not states[-1][3]

        WebDriverWait(self.browser, self.timeout, poll_frequency=0.08).until(lambda _: still())

    def find(self, selector: str):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, name: str) -> str:
        return self.script("return document.getElementById(arguments[0]).textContent", name)

    def click(self, selector: str) -> None:
        self.script(
            "const [target] = arguments; if (target.localName !== 'summary' && target.closest('details'))"
            " target.closest('details').open = true; target.scrollIntoView({block: 'center'})",
            self.find(selector),
        )
        self.find(selector).click()
        self.settle()

    def choose(self, name: str, value: str) -> None:
        self.script(
            "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
            " input.dispatchEvent(new Event('change'))",
            name,
            value,
        )
        self.settle()

    @property
    def fragment(self) -> dict[str, str]:
        """Parameters in the fragment of the page's address."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.browser.current_url).fragment).items()}

    def wait_for(self, **expected: str) -> None:
        """Wait until the address has these parameters."""
        self.until(lambda: expected.items() <= self.fragment.items())

    # -- the heatmap ----------------------------------------------------------------------------------------------

    def screen_position(self, key: float, query: float) -> tuple[int, int]:
        """Return the viewport coordinates of a cell of the heatmap."""
        self.script("document.getElementById('chart').scrollIntoView({block: 'center'})")
        code = """
            const view = Bokeh.index.find_one(figures.map);
            const frame = view.canvas_view.el.getBoundingClientRect();
            const x = view.frame.x_scale.compute(arguments[0]), y = view.frame.y_scale.compute(arguments[1]);
            return [frame.left + x, frame.top + y];
        """
        return tuple(round(pixel) for pixel in self.module_script(code, key, query))

    def point(self, key: float, query: float) -> str:
        """Move the mouse to a cell of the heatmap and return the readout."""
        x, y = self.screen_position(key, query)
        actions = ActionChains(self.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x - 3, y - 3)
        actions.w3c_actions.pointer_action.move_to_location(x, y)
        actions.perform()
        self.settle()
        return self.text("readout")

    def press(self, key: float, query: float) -> None:
        x, y = self.screen_position(key, query)
        actions = ActionChains(self.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x, y)
        actions.w3c_actions.pointer_action.click()
        actions.perform()
        self.settle()

    def wheel(self, key: float, query: float, steps: int, *, modifier: str = Keys.CONTROL) -> None:
        """Zoom in at a cell, or out if `steps` is negative. Without a modifier the page scrolls."""
        for _ in range(abs(steps)):
            x, y = self.screen_position(key, query)
            origin = ScrollOrigin.from_viewport(x, y)
            actions = ActionChains(self.browser)
            if modifier:
                actions.key_down(modifier)
            actions.scroll_from_origin(origin, 0, -240 if steps > 0 else 240)
            if modifier:
                actions.key_up(modifier)
            actions.perform()
        self.settle()

    def keys(self, *pressed: str) -> str:
        """Press keys with the heatmap focused and return the text for screen readers."""
        self.find("#chart").send_keys(*pressed)
        self.settle()
        return self.text("live")

    def color(self, query: int, key: int) -> list[int]:
        """Return the drawn color of a cell of the overview."""
        code = """
            const heatmap = renderers().find((renderer) => renderer.name === "overview" && renderer.visible);
            const views = [...Bokeh.index.find_one(figures.map).renderer_views.values()];
            const view = views.find((candidate) => candidate.model === heatmap);
            return [...view.glyph.image_data[0].getContext("2d").getImageData(arguments[1], arguments[0], 1, 1).data];
        """
        return self.module_script(code, query, key)[:3]

    def window(self) -> list[int]:
        return self.module_script("return windowShown()")


def served(source, **options):
    """Return a running viewer of a model or a recording."""
    return view(source, browser=False, wait=False, **options)


@contextmanager
def showing(page, source, **options):
    """Serve a viewer. Its page is closed before the server, because it would try to reconnect."""
    with served(source, **options) as viewer:
        yield viewer
        page.browser.get("about:blank")


def violations(browser: Chrome, exclude: Sequence[str] = ()) -> list[tuple]:
    """Return the serious accessibility violations that axe-core reports, outside the excluded selectors."""
    browser.execute_script(axe())
    # axe describes every node of the other results, which takes most of its time
    options = "{ resultTypes: ['violations'] }"
    script = f"axe.run({{ exclude: arguments[0] }}, {options}).then(arguments[arguments.length - 1])"
    results = browser.execute_async_script(script, list(exclude))
    assert len(results["passes"]) > 20
    return [
        (rule["id"], node["target"], node["failureSummary"])
        for rule in results["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def parse_number(text: str) -> float:
    """Return the first number of a text, in the format of the page."""
    match = re.search(r"−?\d[\d.]*(?:e[−+]\d+)?", text)
    assert match, text
    return float(match.group().replace("−", "-"))
