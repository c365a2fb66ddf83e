"""Tests of all kinds of claims: digits and tolerances, shapes, sums, counts, masks, transposes, and given matrices."""

import pytest
import torch

from clearhead import check
from clearhead.explain import parse
from support.worked_claims import WEIGHTS, X, audited, claim, matrices


class TestDigits:
    @pytest.mark.parametrize(
        ("printed", "computed", "agrees"),
        [
            ("0.50", "0.495", True),
            ("0.50", "0.505", True),
            ("0.50", "0.4949", False),
            ("0.50", "0.5051", False),
            ("0.5", "0.45", True),
            ("0.5", "0.44", False),
            ("1", "1.5", True),
            ("1", "1.51", False),
            ("1.5e3", "1549.0", True),
            ("1.5e3", "1551.0", False),
            ("9e-10", "1e-10", False),
            ("0.333333333733", "0.333333333333", False),
        ],
    )
    def test_printed_digits_set_the_tolerance(self, printed, computed, agrees):
        text = f"x = [[{computed}]]\n[[claims]]\nstep = 'input'\nvalues = [[{printed}]]"
        assert check(parse(text)).agrees == agrees

    def test_tolerance_applies_to_sums(self):
        text = X + "[given]\nweights = [[0.49, 0.5], [0.5, 0.5]]\n[[claims]]\nstep = 'weights'\nsum = 'rows'\n"
        assert not check(parse(text)).agrees
        assert check(parse(text + "tolerance = 0.011")).agrees


class TestOtherClaims:
    def test_an_explicit_tolerance_replaces_the_digits(self):
        wrong = matrices()
        wrong["output"] += 0.02
        assert audited([claim("output", wrong["output"])])["output"].verdict == "differs"
        assert audited([claim("output", wrong["output"], more="tolerance = 0.03")])["output"].verdict == "agrees"
        assert audited([claim("output", matrices()["output"], more="tolerance = 0")])["output"].verdict == "differs"

    def test_transpose_is_recognized(self):
        right = matrices(x=X.replace("]]", "], [0.2, 0.2, 0.3]]"))
        text = X.replace("]]", "], [0.2, 0.2, 0.3]]") + WEIGHTS + claim("key", right["key"].T)
        [result] = check(parse(text)).findings
        assert result.message == "claimed (2, 3), computed (3, 2); read as its transpose, 6 cells agree"

    @pytest.mark.parametrize(
        ("text", "verdict", "message"),
        [
            ('step = "weights"\nsum = "rows"', "agrees", "rows sum to 1"),
            ('step = "weights"\ncount = 1', "agrees", "1: one matrix for each head, with a row for each token"),
            ('step = "weights"\nhead = 1\ncount = 2', "agrees", "2: one row for each token"),
            ('step = "key"\nhead = 1\ncount = 4', "differs", "claimed 4, computed 2: one row for each token"),
            ('step = "key_weight"\ncount = 3', "agrees", "3: one row for each input column"),
            (
                'step = "value_weight"\nvalues = [[1.0, 0.0], [0.0, 1.0], [0.5, "_"]]',
                "agrees",
                "5 cells agree, 1 blank",
            ),
            ('step = "output_weight"\nshape = [2, 3]', "differs", "claimed (2, 3), computed (2, 2)"),
            (
                'step = "slice"\nshape = [2, 3]',
                "differs",
                "this calculation has no such step: every head reads all of X",
            ),
            ('step = "masked"\nshape = [2, 2]', "differs", "this calculation has no such step: there is no mask"),
            (
                'step = "mask"\nvalues = [[0, -inf], [0, 0]]',
                "differs",
                "1 of 4 cells differ: 0 wrongly allowed and 1 wrongly masked",
            ),
        ],
    )
    def test_each_kind_of_claim_is_checked(self, text, verdict, message):
        [result] = check(parse(X + WEIGHTS + "[[claims]]\n" + text)).findings
        assert (result.verdict, result.message) == (verdict, message)

    def test_transpose_with_an_error_is_recognized_and_carried(self):
        x = X.replace("]]", "], [0.2, 0.2, 0.3]]")
        wrong = matrices(x=x)
        wrong["key"][2, 0] += 1.0
        scores = wrong["query"] @ wrong["key"].T
        key, other = check(parse(x + WEIGHTS + claim("key", wrong["key"].T) + claim("scores", scores))).findings
        assert key.message == "claimed (2, 3), computed (3, 2); read as its transpose, 1 of 6 cells differ"
        assert other.verdict == "carried"

    def test_unrelated_numbers_in_the_transposed_shape_have_a_wrong_shape(self):
        x = X.replace("]]", "], [0.2, 0.2, 0.3]]")
        [result] = check(parse(x + WEIGHTS + claim("key", torch.full((2, 3), 9.0)))).findings
        assert result.message == "claimed (2, 3), computed (3, 2)"

    @pytest.mark.parametrize("big", ["-1e9", "-10000.0", "-inf"])
    def test_large_negative_mask_values_count_as_infinity(self, big):
        text = f'mask = "causal"\n{X}[[claims]]\nstep = "mask"\nvalues = [[0, {big}], [0, 0]]'
        assert check(parse(text)).agrees

    def test_mask_of_ones_and_zeros_is_noted(self):
        text = f'mask = "causal"\n{X}[[claims]]\nstep = "mask"\nvalues = [[1, 0], [1, 1]]'
        [result] = check(parse(text)).findings
        assert "it contains 1 and 0, but an additive mask contains 0 and −∞" in result.message

    def test_rows_are_mentioned_only_if_they_sum_to_1(self):
        text = X + "mask = [[false, false], [true, true]]\n[[claims]]\nstep = 'weights'\nsum = 'columns'"
        [result] = check(parse(text)).findings
        assert result.message.endswith("not to 1")

    @pytest.mark.parametrize(("axis", "name"), [(0, "rows"), (1, "columns")])
    def test_reversed_order_is_recognized(self, axis, name):
        result = audited([claim("scores", matrices()["scores"].flip(axis), 4)])["scores"]
        assert f"{name} in reverse order" in {cause.name for cause in result.causes}

    def test_sums_of_several_heads_name_the_head(self):
        [result] = check(
            parse("heads = 2\nx = [[0.1, 0.7], [0.5, -0.3]]\n[[claims]]\nstep = 'weights'\nsum = 'columns'")
        ).findings
        assert result.verdict == "differs"
        assert {cell.row_label for cell in result.cells} == {"sum, head 1", "sum, head 2"}


class TestGiven:
    def test_given_matrix_agrees_if_it_is_a_product_with_some_w(self):
        x = torch.tensor([[0.1, 0.7], [0.5, -0.3], [0.4, 0.9], [-0.8, 0.2]], dtype=torch.float64)
        product = x @ torch.tensor([[1.5, -0.5], [0.25, 2.0]], dtype=torch.float64)
        for off, verdict in ((0.0, "agrees"), (0.1, "differs")):
            product[2, 1] += off
            rows = [[f"{cell:.2f}" for cell in row] for row in product.tolist()]
            text = f"x = {x.tolist()}\n[given]\nvalue = [{', '.join('[' + ', '.join(row) + ']' for row in rows)}]"
            [result] = check(parse(text)).findings
            assert (result.kind, result.step, result.verdict) == ("given", "value", verdict)

    def test_given_matrix_is_compared_with_the_stated_weights(self):
        right = matrices()["key"]
        rows = ", ".join(str([round(float(cell), 3) for cell in row]) for row in right)
        assert check(parse(X + WEIGHTS + f"[given]\nkey = [{rows}]")).agrees
        rows = rows.replace(str(round(float(right[0, 0]), 3)), "9.0")
        [result] = check(parse(X + WEIGHTS + f"[given]\nkey = [{rows}]")).findings
        assert result.message == "given K is not X W_K: 1 of 4 cells differ"
        assert [(cell.row, cell.column, cell.printed) for cell in result.cells] == [(0, 0, "9.0")]

    def test_each_number_has_the_tolerance_of_its_own_digits(self):
        """The third row contradicts the first two. The fewer digits of the last row do not change that."""
        x = "x = [[1, 0], [0, 1], [1, 1], [1, -1]]\n"
        for third, verdict in (("2.20", "differs"), ("2.01", "agrees")):
            given = f"[given]\nvalue = [[1.00, 1.00], [1.00, 1.00], [{third}, 2.00], [0, 0]]"
            [result] = check(parse(x + given)).findings
            assert result.verdict == verdict

    def test_small_fit_errors_are_not_rounded_to_zero(self):
        [result] = check(parse("x = [[1.0], [1.0]]\n[given]\nvalue = [[0.0010], [0.0030]]")).findings
        assert result.message == "given V is not X·W for any W: the best fit has an error of 0.001 in some cell"
