"""Training data: parallel corpora, and a grammar that writes them."""
