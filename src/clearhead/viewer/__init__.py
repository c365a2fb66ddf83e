"""A page on this machine that shows every head of a model, from the whole matrix to one cell."""
