"""Matplotlib figures (extra `plot`)."""
