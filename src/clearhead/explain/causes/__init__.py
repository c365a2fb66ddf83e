"""Causes of wrong matrices: usual mistakes that reproduce the numbers that a text prints."""

from clearhead.explain.causes._finder import CauseFinder, matrix_axes

__all__ = ["CauseFinder", "matrix_axes"]
