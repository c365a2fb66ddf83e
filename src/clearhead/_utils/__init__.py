"""Helpers without domain knowledge: argument checks, files, text, color scales."""
