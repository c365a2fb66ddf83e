"""Recordings: the attention of a model on one input, with its tokens."""
