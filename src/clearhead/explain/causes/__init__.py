"""Causes of wrong matrices: usual mistakes that reproduce the numbers that a text prints."""
