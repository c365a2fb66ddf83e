"""Tests of claims about one row, one column, one cell or one sum of a matrix, and of their digits."""

import pytest

from clearhead import check
from clearhead.explain import parse
from support.worked_claims import WEIGHTS, X, claim, matrices

X3 = X.replace("]]", "], [0.2, 0.2, 0.3]]")
TWO_HEADS = "heads = 2\nx = [[0.1, 0.7], [0.5, -0.3]]\n"


def results(*claims, top="", x=X3):
    text = "\n".join(f"[[claims]]\n{lines}" for lines in claims)
    return check(parse(top + x + WEIGHTS + text)).findings


def printed(values, digits=3):
    return "[" + ", ".join(f"{cell:.{digits}f}" for cell in values.tolist()) + "]"


KEY = matrices(x=X3)["key"]  # [3, 2]


class TestParts:
    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (f"row = 2\nvalues = {printed(KEY[1])}", "row 2: 2 cells agree"),
            (f"column = 1\nvalues = {printed(KEY[:, 0])}", "column 1: 3 cells agree"),
            (f"cell = [3, 2]\nvalue = {KEY[2, 1]:.3f}", "row 3, column 2: 1 cell agrees"),
            (f"row = 2\nvalues = ['_', {KEY[1, 1]:.2f}]", "row 2: 1 cell agrees"),
        ],
    )
    def test_correct_parts_agree(self, lines, message):
        [result] = results(f"step = 'key'\n{lines}")
        assert (result.kind, result.verdict, result.message) == ("values", "agrees", message)

    @pytest.mark.parametrize(
        ("lines", "message", "cells"),
        [
            ("row = 2\nvalues = [7.5, 8.5]", "row 2: 2 of 2 cells differ", [(1, 0, "7.5"), (1, 1, "8.5")]),
            ("column = 2\nvalues = [7.5, '_', 9.5]", "column 2: 2 of 2 cells differ", [(0, 1, "7.5"), (2, 1, "9.5")]),
            ("cell = [3, 1]\nvalue = 7.5", "row 3, column 1: the number differs", [(2, 0, "7.5")]),
        ],
    )
    def test_wrong_parts_name_their_cells(self, lines, message, cells):
        [result] = results(f"step = 'key'\n{lines}")
        assert (result.verdict, result.message) == ("differs", message)
        assert [(cell.row, cell.column, cell.printed) for cell in result.cells] == cells
        assert [cell.row_label for cell in result.cells] == [f"token {row + 1}" for row, _, _ in cells]

    def test_wrong_cell_is_carried_to_later_claims(self):
        wrong = matrices(x=X3)
        wrong["key"][1, 0] += 1
        scores = wrong["query"] @ wrong["key"].T
        cell, row, whole = results(
            f"step = 'key'\ncell = [2, 1]\nvalue = {wrong['key'][1, 0]:.3f}",
            f"step = 'scores'\nrow = 3\nvalues = {printed(scores[2])}",
            claim("scores", scores).removeprefix("[[claims]]\n"),
        )
        assert [result.verdict for result in (cell, row, whole)] == ["differs", "carried", "carried"]
        assert [(one.row, one.column, one.carried_from) for one in row.cells] == [(2, 1, "K")]

    def test_results_follow_from_the_part_with_the_error(self):
        wrong = matrices(x=X3)
        wrong["key"][1, 0] += 1
        scores = wrong["query"] @ wrong["key"].T
        first, second, later = results(
            f"step = 'key'\nrow = 1\nvalues = {printed(wrong['key'][0])}",
            f"step = 'key'\nrow = 2\nvalues = {printed(wrong['key'][1])}",
            claim("scores", scores).removeprefix("[[claims]]\n"),
        )
        assert [result.verdict for result in (first, second, later)] == ["agrees", "differs", "carried"]
        assert later.follows_from == (2,)

    def test_single_wrong_cell_is_not_called_a_transposed_matrix(self):
        scores = matrices(x=X3)["scores"]
        [result] = results(f"step = 'scores'\ncell = [1, 2]\nvalue = {scores[1, 0]:.4f}")
        assert result.message == "row 1, column 2: the number differs"

    def test_masked_cell_is_infinite(self):
        top = 'mask = "causal"\n'
        [right, wrong, mask] = results(
            "step = 'masked'\ncell = [1, 2]\nvalue = -1e9",
            "step = 'masked'\ncell = [1, 2]\nvalue = 0",
            "step = 'mask'\nrow = 1\nvalues = [0, -inf, -inf]",
            top=top,
        )
        assert (right.verdict, wrong.verdict, mask.verdict) == ("agrees", "differs", "agrees")

    def test_part_of_a_missing_step_differs(self):
        [result] = results("step = 'masked'\ncell = [1, 2]\nvalue = 3")
        assert result.message == "this calculation has no such step: there is no mask"

    def test_part_of_one_head(self):
        value = parse(TWO_HEADS).trace().step("query", 1).values[1, 0]
        text = f"{TWO_HEADS}[[claims]]\nstep = 'query'\nhead = 2\ncell = [2, 1]\nvalue = {value:.4f}"
        [result] = check(parse(text)).findings
        assert (result.head, result.verdict) == (1, "agrees")


class TestSums:
    def test_sums_of_a_row_a_column_and_all_cells(self):
        rows, columns = KEY.sum(1), KEY.sum(0)
        found = results(
            f"step = 'key'\nrow = 3\nsum = {rows[2]:.2f}",
            f"step = 'key'\ncolumn = 2\nsum = {columns[1]:.2f}",
            f"step = 'key'\nsum = {KEY.sum():.2f}",
            "step = 'weights'\nrow = 1\nsum = 1.000",
        )
        assert [result.kind for result in found] == ["sum"] * 4
        assert [result.verdict for result in found] == ["agrees"] * 4
        assert found[0].message == f"row 3 sums to {rows[2]:.2f}"

    def test_wrong_sum_is_reported_with_the_computed_one(self):
        row, column, whole = results(
            "step = 'weights'\nrow = 1\nsum = 1.20",
            "step = 'weights'\ncolumn = 2\nsum = 9.5",
            "step = 'weights'\nsum = 4.0",
        )
        assert row.message == "row 1 sums to 1.000, not to 1.20"
        assert [(cell.row_label, cell.column_label, cell.claimed) for cell in row.cells] == [("token 1", "sum", 1.2)]
        assert [(cell.row_label, cell.column_label) for cell in column.cells] == [("sum", "token 2")]
        assert whole.message == "all cells sum to 3.00, not to 4.0"
        assert (row.verdict, column.verdict, whole.verdict) == ("differs",) * 3

    def test_tolerance_and_digits_apply_to_sums(self):
        for extra, verdict in (("", "differs"), ("tolerance = 0.1", "agrees"), ("digits = 1", "agrees")):
            [result] = results(f"step = 'weights'\nsum = 3.04\n{extra}")
            assert result.verdict == verdict
        given = "[given]\nweights = [[0.49, 0.5], [0.5, 0.5]]\n[[claims]]\nstep = 'weights'\nsum = 'rows'\n"
        assert not check(parse(X + given)).agrees
        assert check(parse(X + given + "digits = 1")).agrees


class TestDigits:
    @pytest.mark.parametrize(
        ("value", "digits", "agrees"),
        [("14", "", True), ("14", "digits = 2", False), ("14", "digits = 0", True), ("14.4", "digits = 2", True)],
    )
    def test_digits_replace_the_printed_ones(self, value, digits, agrees):
        text = f"x = [[14.4]]\n[[claims]]\nstep = 'input'\nvalues = [[{value}]]\n{digits}"
        assert check(parse(text)).agrees == agrees

    def test_author_may_continue_with_whole_numbers_that_have_digits(self):
        """With digits, 2 is 2.00, so a later number that differs by 0.4 does not follow from rounding."""
        text = "x = [[1.6]]\nscale = 'none'\n[weights]\nquery = [[1]]\nkey = [[1]]\nvalue = [[1]]\noutput = [[1]]\n"
        claims = "[[claims]]\nstep = 'query'\nvalues = [[2]]\n{}[[claims]]\nstep = 'scores'\nvalues = [[3.2]]"
        rounded, exact = (check(parse(text + claims.format(digits))) for digits in ("", "digits = 2\n"))
        assert [result.verdict for result in rounded.findings] == ["agrees", "agrees"]
        assert [result.verdict for result in exact.findings] == ["differs", "carried"]


def test_file_without_claims_has_no_results():
    assert check(parse(X)).findings == ()
