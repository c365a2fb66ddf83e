"""Benchmark of the viewer in headless Chromium on a long text: time from a wheel event to the first and last image.

`python benchmarks/viewer_browser.py --tokens 32768`. Random queries and keys, causal, on the CPU; browser and server
share its cores. Times are taken in the page: from the wheel event to the next frame with the new ranges, and to the
arrival of the exact heatmap.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from clearhead import view
from measuring import RESULTS, write
from support.browser import launched, resize  # pyright: ignore[reportMissingImports]
from support.viewer_page import Page  # pyright: ignore[reportMissingImports]
from viewer_maps import synthetic

# times from the wheel event to a frame with a changed canvas, and to the heatmap of the new window
WATCH = """
window.taken = [];
let turned, shown;
const canvas = Bokeh.index.find_one(figures.map).canvas_view.primary;
const pixels = () => canvas.ctx.getImageData(300, 300, 48, 48).data.join();
document.querySelector(".map").addEventListener("wheel", () => {
  turned = performance.now();
  const [start, before] = [turned, pixels()];
  const frame = () => {
    if (pixels() === before && performance.now() - start < 1000) return requestAnimationFrame(frame);
    shown = performance.now() - start;
  };
  requestAnimationFrame(frame);
}, {capture: true});
figures.sources[0].properties.data.change.connect(() => {
  if (turned === undefined) return;
  const [arrived, frame] = [performance.now() - turned, shown];
  turned = undefined;
  window.taken.push([frame, arrived, windowShown()]);
});
"""


def saved(folder: Path, tokens: int) -> Path:
    """Write a recording to a file, so that all torch work runs in the viewer's worker thread."""
    path = folder / "synthetic.safetensors"
    synthetic(tokens, 4, "cpu", torch.float32).save(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=24, help="number of wheel events")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []

    def add(what: str, milliseconds: float, worst: float | None = None) -> None:
        rows.append({"what": what, "ms": f"{milliseconds:.0f}", "worst": "" if worst is None else f"{worst:.0f}"})

    with (
        tempfile.TemporaryDirectory() as folder,
        view(saved(Path(folder), arguments.tokens), browser=False, wait=False) as served,
        launched() as browser,
    ):
        resize(browser, 1280)
        page = Page(browser)
        start = time.perf_counter()
        browser.get("about:blank")
        browser.get(f"{served.url}#head=decoder.0.0")
        page.until(lambda: page.module_script("return figures.sources?.[1].data.image.length > 0"), 0.1)
        add("first picture after opening the address", 1e3 * (time.perf_counter() - start))
        page.until(lambda: page.module_script("return figures.sources[1].data.exact[0] === true"), 0.5)
        add("overview done", 1e3 * (time.perf_counter() - start))
        page.settle()
        page.module_script(WATCH)
        middle = arguments.tokens * 0.7
        taken: list[tuple[float, float, list[int]]] = []
        direction = 1
        for _ in range(arguments.steps):
            page.wheel(middle - 3, middle, direction)
            page.until(lambda known=taken: page.script("return taken.length") > len(known))
            taken = [tuple(step) for step in page.script("return taken")]
            row, row_end, _, _ = taken[-1][2]
            direction = 1 if row_end - row >= arguments.tokens else -1 if row_end - row < 64 else direction
        for low, high in ((0, 512), (512, 2048), (2048, 8193), (8193, arguments.tokens + 1)):
            steps = [step for step in taken if low <= step[2][1] - step[2][0] < high]
            if steps:
                name = f"wheel to a window of {low:,} to {high - 1:,} rows ({len(steps)} steps)"
                shown, arrived = [step[0] for step in steps], [step[1] for step in steps]
                add(f"{name}: something", statistics.median(shown), max(shown))
                add(f"{name}: last picture", statistics.median(arrived), max(arrived))
    title = f"The viewer in Chromium, {arguments.tokens:,} tokens, CPU; milliseconds, medians"
    write(f"viewer-browser-{arguments.tokens}", title, rows, arguments.output)


if __name__ == "__main__":
    main()
