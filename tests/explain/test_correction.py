"""Tests of the corrected TOML file: it agrees, and keeps comments, blanks and printed digits."""

import pytest

from clearhead import check
from clearhead.explain import Audit, parse
from support.audited_texts import LIFE, life
from support.parameters import slow_except
from support.partial_claims import split_claims
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


SCORES = (
    "x = [[1.0], [2.0]]\n[weights]\nquery = [[1]]\nkey = [[0.5]]\n[[claims]]\nstep = 'scores'\n"  # [[.5, 1], [1, 2]]
)


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("row = 2\nvalues = [1.0, 3.0]", "values = [1.0, 2.0] # 1 cell corrected"),
        ("column = 1\nvalues = [0.50, 3.00]", "values = [0.50, 1.00] # 1 cell corrected"),
        ('column = 2\nvalues = ["_", 3] # last', 'values = ["_", 2] # 1 cell corrected; last'),
        ("cell = [2, 1]\nvalue = 1.4 # low", "value = 1.0 # 1 cell corrected; low"),
    ],
)
def test_claims_about_a_row_a_column_or_a_cell_are_corrected(claim, expected):
    text, audit = corrected(f"{SCORES}{claim}\n")
    assert f"{expected}\n" in text
    assert audit.agrees


@pytest.mark.parametrize("part", ["row", "column", "cell"])
@pytest.mark.parametrize("start", slow_except({f"from {seed}": seed for seed in range(0, 40, 5)}, "from 0"))
def test_random_texts_in_parts_agree_after_correction(part, start):
    for seed in range(start, start + 5):
        _, audit = corrected(split_claims(random_text(seed).source, part))
        assert differing(audit) == [], f"random_text({seed})"


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("sum = 14.0", "sum = 4.5 # corrected from 14.0"),
        ("sum = 14 # all", "sum = 4 # corrected from 14; all"),
        ("sum = 14\ndigits = 2", "sum = 4.50 # corrected from 14"),
        ("sum = 14\ntolerance = 0.01", "sum = 4.5 # corrected from 14"),
        ("row = 2\nsum = 2.00", "sum = 3.00 # corrected from 2.00"),
        ("column = 1\nsum = 2.0", "sum = 1.5 # corrected from 2.0"),
    ],
)
def test_numeric_sums_are_corrected_to_the_printed_digits(claim, expected):
    text, audit = corrected(f"{SCORES}{claim}\n")
    assert f"{expected}\n" in text
    assert audit.agrees


def test_infinite_sum_is_not_corrected():
    source = SCORES.replace("[weights]", "mask = 'causal'\n[weights]").replace("scores", "masked")
    assert "sum = 4.5 # not corrected: all cells sum to -inf, not to 4.5\n" in corrected(f"{source}sum = 4.5\n")[0]


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("values = [[14, 1], [1, 2]]", "values = [[0.50, 1], [1, 2]] # 1 cell corrected"),
        ("values = [[0.5, -inf], [1, 2]]", "values = [[0.5, 1.00], [1, 2]] # 1 cell corrected"),
        ("values = [[1, 2]]", "values = [\n  [0.50, 1.00],\n  [1.00, 2.00],\n] # matrix of another shape replaced"),
        ("cell = [1, 1]\nvalue = 14", "value = 0.50 # 1 cell corrected"),
    ],
)
def test_stated_digits_are_those_of_the_correction(claim, expected):
    text, audit = corrected(f"{SCORES}{claim}\ndigits = 2\n")
    assert f"{expected}\n" in text
    assert audit.agrees


def test_very_negative_number_for_infinity_is_corrected_to_the_usual_digits():
    source = SCORES.replace("[weights]", "mask = 'causal'\n[weights]").replace("scores", "masked")
    text, audit = corrected(f"{source}values = [[0.50, -1e9], [-1e9, 2.00]]\n")
    assert "values = [[0.50, -1e9], [1.00, 2.00]] # 1 cell corrected\n" in text
    assert audit.agrees


SHARED_KEYS = "x = [[1.0], [2.0]]\nheads = 2\nkv_heads = 1\n[weights]\nquery = [[[1]], [[3]]]\nkey = [[0.5]]\n"


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("step = 'key'\nshape = [2, 2]", "shape = [2, 1] # corrected from [2, 2]"),
        ("step = 'value'\ncount = 7", "count = 2 # corrected from 7"),
        ("step = 'key_weight'\nshape = [2, 2]", "shape = [1, 1] # corrected from [2, 2]"),
        ("step = 'weights'\ncount = 1", "count = 2 # corrected from 1"),
        ("step = 'weights'\nsum = 'columns'", 'sum = "rows" # corrected from "columns"'),
    ],
)
def test_claims_about_all_heads_are_corrected_where_heads_share_keys(claim, expected):
    text, audit = corrected(f"{SHARED_KEYS}[[claims]]\n{claim}\n")
    assert f"{expected}\n" in text
    assert audit.agrees


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("key = [[0.5], [9.0]]", "key = [[0.5], [1.0]] # 1 cell corrected"),
        ("key = [[[0.5], [9.0]]]", "key = [[[0.5], [1.0]]] # 1 cell corrected"),
        ("query = ['_', [[3.0], [9.0]]]", "query = ['_', [[3.0], [6.0]]] # 1 cell corrected"),
        ("key = [['_'], [9.0]]", "key = [['_'], [1.0]] # 1 cell corrected"),
    ],
)
def test_given_matrix_of_shared_keys_is_corrected(given, expected):
    text, audit = corrected(f"{SHARED_KEYS}[given]\n{given}\n")
    assert f"{expected}\n" in text
    assert audit.agrees


def test_scores_of_every_head_are_rounded_again_if_their_shared_key_is_corrected():
    source = "x = [[0.3], [0.7]]\nheads = 2\nkv_heads = 1\n[weights]\nquery = [[[1]], [[9]]]\nkey = [[0.5]]\n"
    source += "[[claims]]\nstep = 'key'\nvalues = [[0.2], [9.0]]\n"  # 0.15 and 0.35
    source += "[[claims]]\nstep = 'scores'\nhead = 2\nvalues = [[0.54, 1.08], [1.26, 2.52]]\n"  # from 0.2 and 0.4
    text, audit = corrected(source)
    assert "cells rounded again\n" in text
    assert audit.agrees


def test_audit_without_example_cannot_be_corrected():
    audit = life()
    with pytest.raises(ValueError, match="the audit has no example to correct; expected an audit returned by check"):
        Audit(audit.title, audit.findings).to_toml()
