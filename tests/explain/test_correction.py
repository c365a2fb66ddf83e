"""Tests of the corrected TOML file: it agrees, and keeps comments, blanks and printed digits."""

import pytest

from clearhead import check
from clearhead.explain import Audit, parse
from support.audited_texts import LIFE, life
from support.parameters import slow_except
from support.random_worked_texts import random_text


def corrected(source: str) -> tuple[str, Audit]:
    """Return the corrected text, and its audit."""
    text = check(parse(source)).to_toml()
    return text, check(parse(text))


def differing(audit: Audit) -> list[str]:
    return [result.message for result in audit.findings if result.verdict != "agrees"]


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("two-heads", []),
        ("two-heads-projected", ["this calculation has no such step: every head reads all of X"] * 2),
        ("song", ["given K is not X·W for any W: the best fit has an error of 0.58 in some cell"]),
        ("song-causal", ["given K is not X·W for any W: the best fit has an error of 0.58 in some cell"]),
    ],
)
def test_built_in_texts_agree_except_where_there_is_no_right_value(name, left):
    text = check(name).to_toml()
    assert differing(check(parse(text))) == left
    for message in left:
        assert f"not corrected: {message}\n" in text


@pytest.mark.parametrize("start", slow_except({f"from {seed}": seed for seed in range(0, 60, 10)}, "from 0"))
def test_random_texts_with_errors_agree_after_correction(start):
    for seed in range(start, start + 10):
        _, audit = corrected(random_text(seed).source)
        assert differing(audit) == [], f"random_text({seed})"


def test_correct_text_is_unchanged():
    source = "x = [[1.0]]\n[weights]\nquery = [[2]]\n[[claims]]\nstep = 'query'\nvalues = [[2.0]]"
    assert corrected(source)[0] == source


def test_comments_blanks_and_printed_digits_are_kept():
    text, audit = corrected(LIFE)
    assert audit.agrees
    assert text.startswith("# Corrected by clearhead check.\n# claim 3 (scaled), head 1: 9 cells corrected\n")
    assert "# divided by d_k instead of the square root\n" in text
    assert "  [0.76, 0.23, 0.54],  # first row\n" in text
    assert "] # 9 cells corrected; all wrong\n" in text
    assert 'values = [[0.55, 1.35], [0.17, 0.41], ["_", 0.97]]\n' in text
    assert "values = [[0.76, -inf, -inf], [0.11, 0.03, -inf]," in text
    assert 'sum = "rows" # corrected from "columns"\n' in text
    assert "shape = [2, 2] # corrected from [3, 2]\n" in text


def test_inline_claims_get_no_comments_inside():
    source = "x = [[1.0], [2.0]]\nweights = {query = [[2]]}\nclaims = [{step = 'query', values = [[3.00], [4.00]]}]\n"
    text, audit = corrected(source)
    assert audit.agrees
    assert text.endswith("claims = [{step = 'query', values = [[2.00], [4.00]]}]\n")
    assert "# claim 1 (query), head 1: 1 cell corrected\n" in text


def test_given_matrix_is_corrected_before_the_claims_computed_from_it():
    source = (
        "x = [[1.0], [2.0]]\nheads = 2\n[weights]\nquery = [[[1]], [[1]]]\nkey = [[[1]], [[2]]]\n"
        "[given]\nkey = ['_', [[2.0], [9.0]]]\n"
        "[[claims]]\nstep = 'scores'\nhead = 2\nvalues = [[2.0, 9.0], [4.0, 18.0]]\n"
    )
    assert differing(check(parse(source))) == ["given K₂ is not X W_K₂: 1 of 2 cells differ"]
    text, audit = corrected(source)
    assert audit.agrees
    assert "key = ['_', [[2.0], [4.0]]] # 1 cell corrected\n" in text
    assert "values = [[2.0, 4.0], [4.0, 8.0]] # 2 cells corrected\n" in text


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("values = [[1.0, 2.0]]", "values = [\n  [1.0],\n  [2.0],\n] # transposed"),
        ("values = [[1.0, 2.5]]", "values = [\n  [1.0],\n  [2.0],\n] # transposed, 1 cell corrected"),
        ("values = [[7.00, 1.00, 2.00]]", "values = [\n  [1.00],\n  [2.00],\n] # matrix of another shape replaced"),
        ('values = [["_", "_", "_"]]', 'values = [\n  ["_"],\n  ["_"],\n] # matrix of another shape replaced'),
        ("values = [[1], [1.3]]\ntolerance = 0.01", "values = [[1], [2.0]] # 1 cell corrected"),
        ("values = [[-inf], [2]]", "values = [[1], [2]] # 1 cell corrected"),
        ("count = 7", "count = 2 # corrected from 7"),
        ("sum = 'rows'", "sum = 'rows' # not corrected: rows sum to 1.00, 2.00, not to 1"),
    ],
)
def test_each_kind_of_claim_is_corrected(claim, expected):
    text, audit = corrected(f"x = [[1.0], [2.0]]\n[weights]\nquery = [[1]]\n[[claims]]\nstep = 'query'\n{claim}\n")
    assert expected in text
    assert audit.agrees == ("not corrected" not in expected)


def test_tolerance_smaller_than_the_printed_digits_adds_digits():
    source = "x = [[1.0]]\n[weights]\nquery = [[0.123456]]\n[[claims]]\nstep = 'query'\nvalues = [[0.5]]\n"
    assert "values = [[0.1]] #" in corrected(source)[0]
    assert "values = [[0.123]] #" in corrected(f"{source}tolerance = 0.001")[0]
    text, audit = corrected(f"{source}tolerance = 0")
    assert "values = [[0.123456" in text
    assert audit.agrees


def test_audit_without_example_cannot_be_corrected():
    audit = life()
    with pytest.raises(ValueError, match="the audit has no example to correct; expected an audit returned by check"):
        Audit(audit.title, audit.findings).to_toml()
