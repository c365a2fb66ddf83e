"""Matplotlib figures (extra `plot`)."""

from clearhead.plot.figures import plot_alignment, plot_head, plot_heads
from clearhead.plot.pictures import plot_picture, plot_sound

__all__ = ["plot_alignment", "plot_head", "plot_heads", "plot_picture", "plot_sound"]
