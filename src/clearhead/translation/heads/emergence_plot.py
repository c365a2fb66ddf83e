"""Plot of the emergence of relations over the steps of a run, with matplotlib (extra `plot`)."""

from __future__ import annotations

import os
from typing import Any

from clearhead._utils.extras import needs_extra
from clearhead._utils.files import replacing
from clearhead.translation.heads.emergence import Emergence
from clearhead.translation.heads.probes import RELATION_STACKS

MARKERS = "os^vDPX*"
STACK_TITLES = {"cross": "from the translation to the source", "encoder": "within the source"}


def plot_emergence(emergence: Emergence, path: str | os.PathLike[str], title: str = "") -> None:
    """Plot the accuracy of the best head of each relation over the steps; write the figure to a file.

    Dotted lines show the accuracy of the best fixed offset.
    """
    with needs_extra("plot", "the chart"):
        from matplotlib import colormaps, rc_context
        from matplotlib.figure import Figure
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, (stack, stack_title) in zip(panels, STACK_TITLES.items(), strict=True):
        results = [result for result in emergence.trained if RELATION_STACKS[result.relation] == stack]
        for index, result in enumerate(results):
            color = colormaps["viridis"](0.9 * index / max(1, len(results) - 1))
            label = f"{result.relation} ({result.address[1]}.{result.address[2]})"
            curve = emergence.curves[result.relation]
            axes.plot(emergence.steps, curve, color=color, marker=MARKERS[index], label=label)
            axes.axhline(result.baseline, color=color, linestyle=":", linewidth=1)
        axes.set(title=stack_title, xlabel="step", ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", title="relation (layer.head)", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    panels[0].set_ylabel("most attended word is the right one\n(dotted: best fixed offset)")
    if title:
        figure.suptitle(title)
    file_format = os.fspath(path).rsplit(".", 1)[-1]
    # reproducible files: a fixed hash salt for SVG ids, and no date
    with rc_context({"svg.hashsalt": "clearhead"}), replacing(path) as temporary:
        figure.savefig(temporary, format=file_format, metadata={"Date": None} if file_format == "svg" else None)
