"""Relations emerging over the steps of a run, drawn by matplotlib (extra `plot`)."""

from __future__ import annotations

import os
from typing import Any

from clearhead.files import replacing
from clearhead.transformer.probing import STACK
from clearhead.transformer.specialising import Specialised

TITLES = {"cross": "from the translation to the source", "encoder": "within the source"}


def draw(found: Specialised, path: str | os.PathLike[str], title: str = "") -> None:
    """A line for each relation: how often the head that ends up finding it best is right; dots: a fixed offset."""
    pyplot = _pyplot()
    figure, both = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for axes, (stack, name) in zip(both, TITLES.items(), strict=True):
        own = [finding for finding in found.trained if STACK[finding.relation] == stack]
        colours = pyplot.get_cmap("viridis")
        for place, finding in enumerate(own):
            colour = colours(0.9 * place / max(1, len(own) - 1))
            label = f"{finding.relation} ({finding.address[1]}.{finding.address[2]})"
            axes.plot(found.steps, found.curves[finding.relation], color=colour, marker="os^vDPX*"[place], label=label)
            axes.axhline(finding.baseline, color=colour, linestyle=":", linewidth=1)
        axes.set(title=name, xlabel="step", ylim=(0, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", title="relation (layer.head)")
    both[0].set_ylabel("most attended word is the right one\n(dotted: best fixed offset)")
    if title:
        figure.suptitle(title)
    kind = os.fspath(path).rsplit(".", 1)[-1]
    with replacing(path) as temporary:
        # without the date: the same file for the same run
        figure.savefig(temporary, format=kind, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("the chart needs matplotlib: pip install 'clearhead[plot]'") from error
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "clearhead"  # the same names in it every time
    from matplotlib import pyplot

    return pyplot
