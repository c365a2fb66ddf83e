"""The viewer's page, or a report, in a real browser, as a reader uses it."""

import re
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from browser import complaints, emulate, requested, resize
from clearhead import view
from pretrained import axe

PATIENCE = 30  # seconds; the machine may be busy


class Page:
    """What can be read and done on it. Whatever takes a moment is waited for."""

    def __init__(self, browser: Chrome) -> None:
        self.browser, self.patience = browser, PATIENCE

    def open(self, url: str, fragment: str = "") -> "Page":
        self.browser.get("about:blank")  # an address that differs in its fragment only would not load again
        self.browser.get(url + fragment)
        self.until(lambda: self.text("readout"))
        self.settle()
        return self

    def until(self, condition, every: float = 0.02):
        return WebDriverWait(self.browser, self.patience, poll_frequency=every).until(lambda _: condition())

    def script(self, code: str, *arguments):
        return self.browser.execute_script(code, *arguments)

    def settle(self) -> None:
        """Until all that was asked for has been drawn and said: nothing changes any more for a while."""
        state = """
            const drawn = sources.map((source) => source.data.image[0]?.length);
            return [location.hash, document.body.innerText, drawn, written !== undefined || wire.status?.busy];
        """
        seen = []

        def still() -> bool:
            seen.append(self.script(state))
            return len(seen) >= 4 and all(own == seen[-1] for own in seen[-4:]) and not seen[-1][3]

        WebDriverWait(self.browser, self.patience, poll_frequency=0.08).until(lambda _: still())

    def find(self, selector: str):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, name: str) -> str:
        return self.script("return document.getElementById(arguments[0]).textContent", name)

    def click(self, selector: str) -> None:
        self.script("arguments[0].scrollIntoView({block: 'center'})", self.find(selector))
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
    def place(self) -> dict[str, str]:
        """What the fragment says."""
        return {name: own[0] for name, own in parse_qs(urlsplit(self.browser.current_url).fragment).items()}

    # -- the map -------------------------------------------------------------------------------------------------

    def at(self, key: float, query: float) -> tuple[int, int]:
        """Where a place of the map is on the screen."""
        self.script("document.getElementById('chart').scrollIntoView({block: 'center'})")
        code = """
            const view = Bokeh.index.find_one_by_id(chart.id);
            const frame = view.canvas_view.el.getBoundingClientRect();
            const x = view.frame.x_scale.compute(arguments[0]), y = view.frame.y_scale.compute(arguments[1]);
            return [frame.left + x, frame.top + y];
        """
        return tuple(round(place) for place in self.script(code, key, query))

    def point(self, key: float, query: float) -> str:
        """Move the mouse to a place of the map; what is read out then."""
        x, y = self.at(key, query)
        actions = ActionChains(self.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x - 3, y - 3)
        actions.w3c_actions.pointer_action.move_to_location(x, y)
        actions.perform()
        self.settle()
        return self.text("readout")

    def press(self, key: float, query: float) -> None:
        x, y = self.at(key, query)
        actions = ActionChains(self.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x, y)
        actions.w3c_actions.pointer_action.click()
        actions.perform()
        self.settle()

    def wheel(self, key: float, query: float, steps: int) -> None:
        """Zoom in at a place; out with fewer than 0."""
        for _ in range(abs(steps)):
            x, y = self.at(key, query)
            origin = ScrollOrigin.from_viewport(x, y)
            ActionChains(self.browser).scroll_from_origin(origin, 0, -240 if steps > 0 else 240).perform()
        self.settle()

    def keys(self, *pressed: str) -> str:
        """Press keys with the map in focus; what is said to those who do not see it."""
        self.find("#chart").send_keys(*pressed)
        self.settle()
        return self.text("live")

    def colour(self, query: int, key: int) -> list[int]:
        """Of a cell of the whole matrix, as it is drawn."""
        code = """
            const picture = pictures().find((own) => own.name === "whole" && own.visible);
            const view = [...Bokeh.index.find_one(chart).renderer_views.values()].find((own) => own.model === picture);
            return [...view.glyph.image_data[0].getContext("2d").getImageData(arguments[1], arguments[0], 1, 1).data];
        """
        return self.script(code, query, key)[:3]

    def window(self) -> list[int]:
        return self.script("return windowShown()")


def served(shown, **options):
    return view(shown, browser=False, wait=False, **options)


@contextmanager
def showing(page, shown, **options):
    """A viewer that is left before it ends: a page would go on trying to connect."""
    with served(shown, **options) as found:
        yield found
        page.browser.get("about:blank")


@pytest.fixture
def page(browser):
    """Nothing may have been said in the console when a test is over."""
    resize(browser, 1280)
    emulate(browser)
    browser.get("about:blank")
    complaints(browser)
    requested(browser)
    yield Page(browser)
    assert complaints(browser) == []


def violations(browser: Chrome) -> list[tuple]:
    """What axe-core finds on the page that keeps some people from using it."""
    browser.execute_script(axe())
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert len(found["passes"]) > 20
    return [
        (rule["id"], node["target"], node["failureSummary"])
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def number(text: str) -> float:
    """The first number of a text, as the page writes it."""
    found = re.search(r"−?\d[\d.]*(?:e[−+]\d+)?", text)
    assert found, text
    return float(found.group().replace("−", "-"))
