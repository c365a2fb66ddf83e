"""Relations emerging over the steps of a run, drawn by matplotlib (extra `plot`)."""

from __future__ import annotations

import os
from typing import Any

from clearhead._utils.files import replacing
from clearhead.translation.heads.emergence import Emergence
from clearhead.translation.heads.probes import STACK

MARKERS = "os^vDPX*"
TITLES = {"cross": "from the translation to the source", "encoder": "within the source"}


def draw(found: Emergence, path: str | os.PathLike[str], title: str = "") -> None:
    """A line for each relation: how often the head that ends up finding it best is right; dots: a fixed offset."""
    try:
        from matplotlib import colormaps, rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the chart needs matplotlib: pip install 'clearhead[plot]'") from error
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    both: Any = figure.subplots(1, 2, sharey=True)
    for axes, (stack, name) in zip(both, TITLES.items(), strict=True):
        own = [finding for finding in found.trained if STACK[finding.relation] == stack]
        for place, finding in enumerate(own):
            colour = colormaps["viridis"](0.9 * place / max(1, len(own) - 1))
            label = f"{finding.relation} ({finding.address[1]}.{finding.address[2]})"
            axes.plot(found.steps, found.curves[finding.relation], color=colour, marker=MARKERS[place], label=label)
            axes.axhline(finding.baseline, color=colour, linestyle=":", linewidth=1)
        axes.set(title=name, xlabel="step", ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", title="relation (layer.head)", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    both[0].set_ylabel("most attended word is the right one\n(dotted: best fixed offset)")
    if title:
        figure.suptitle(title)
    kind = os.fspath(path).rsplit(".", 1)[-1]
    # the same file for the same run: the same names in it every time, and no date
    with rc_context({"svg.hashsalt": "clearhead"}), replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
