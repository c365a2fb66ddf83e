"""Training data: parallel corpora, and a grammar that writes them."""

from clearhead.translation.data.dataset import Dataset, from_files, from_grammar

__all__ = ["Dataset", "from_files", "from_grammar"]
