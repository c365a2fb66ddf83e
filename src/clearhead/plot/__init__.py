"""Matplotlib figures (extra `plot`)."""

from clearhead.plot.figures import plot_alignment, plot_head, plot_heads

__all__ = ["plot_alignment", "plot_head", "plot_heads"]
