"""A text with every kind of mark: wrong, carried, blank and masked cells, causes, and other claims."""

from dataclasses import replace

from clearhead import check
from clearhead.explain import Audit, Cause, CheckResult, parse

HOSTILE = ["</script><b>", "a|b*c*", '"\n& <i>x</i>']
LIFE = """
title = "Life is short"
tokens = ["Life", "is", "short"]
x = [[1.0, 0.5], [0.2, 0.3], [0.9, 0.1]]
mask = "causal"

[weights]
query = [[1.0, 0.5], [0.2, -0.3]]
key = [[0.4, 1.0], [0.3, 0.7]]
value = [[1.0, 0.0], [0.0, 1.0]]
output = [[1, 0], [0, 1]]

[[claims]]
step = "query"
values = [[1.10, 0.35], [0.26, 0.01], [0.92, 0.42]]

[[claims]]
step = "key"
values = [[0.55, 1.35], [0.17, 0.41], ["_", 0.97]]

# divided by d_k instead of the square root
[[claims]]
step = "scaled"
values = [
  [0.54, 0.17, 0.38],  # first row
  [0.08, 0.02, 0.06],
  [0.54, 0.16, 0.38],
]  # all wrong

[[claims]]
step = "masked"
values = [[0.54, -inf, -inf], [0.08, 0.02, -inf], [0.54, 0.16, 0.38]]

[[claims]]
step = "weights"
sum = "columns"

[[claims]]
step = "key_weight"
shape = [3, 2]
"""
DIVIDED_BY_D_K = Cause(
    "divided by d_k",
    "The scores are divided by d_k = 2. Divide them by √d_k.",
    tuple((row, column) for row in range(3) for column in range(3) if (row, column) != (1, 1)),
    exceptions=((1, 1),),
)


def life(**changes: str) -> Audit:
    """Check the text, with parts of its source replaced, and add a cause to the error in the scaled scores."""
    source = LIFE
    for old, new in changes.items():
        source = source.replace(old, new)
    audit = check(parse(source))
    return replace(audit, findings=tuple(_with_cause(result) for result in audit.findings))


def _with_cause(result: CheckResult) -> CheckResult:
    return replace(result, causes=(DIVIDED_BY_D_K,)) if result.step == "scaled" else result
