"""Training data: parallel text from files, and a grammar that generates it."""

from clearhead.translation.data.dataset import Dataset, from_files, from_grammar

__all__ = ["Dataset", "from_files", "from_grammar"]
