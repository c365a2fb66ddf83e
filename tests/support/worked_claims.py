"""A small worked example, and functions that write and check claims about it."""

import torch

from clearhead import check
from clearhead.explain import parse

X = "x = [[0.1, 0.7, -0.4], [0.5, -0.3, 0.9]]\n"
WEIGHTS = """
[weights]
query = [[1.0, 0.5], [-0.3, 0.2], [0.7, 1.1]]
key = [[0.4, -0.6], [0.9, 0.1], [-0.2, 0.3]]
value = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
output = [[1, 0], [0, 1]]
"""
STEPS = ("query", "key", "value", "scores", "scaled", "weights", "head_output", "concat", "output")


def claim(step, values, digits=2, more=""):
    """Return a `[[claims]]` table that claims these values, rounded to `digits`."""
    rows = ", ".join(
        "[" + ", ".join("-inf" if cell == -torch.inf else f"{cell:.{digits}f}" for cell in row) + "]" for row in values
    )
    return f'[[claims]]\nstep = "{step}"\nvalues = [{rows}]\n{more}'


def matrices(x=X, weights=WEIGHTS, top=""):
    """Return the correct matrices by step; `top` is added to the start of the file."""
    return {step.name: step.values.clone() for step in parse(top + x + weights).trace()}


def audited(claims, top=""):
    """Return the result of each claim by step."""
    return {finding.step: finding for finding in check(parse(top + X + WEIGHTS + "\n".join(claims))).findings}
