"""The audit of a worked example: every error of the two teaching texts, and errors planted in right ones."""

import pytest
import torch

from clearhead import check
from clearhead.worked import BUILT_IN
from clearhead.worked.calculation import Calculation
from clearhead.worked.reading import load, parse

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
    rows = ", ".join(
        "[" + ", ".join("-inf" if cell == -torch.inf else f"{cell:.{digits}f}" for cell in row) + "]" for row in values
    )
    return f'[[claims]]\nstep = "{step}"\nvalues = [{rows}]\n{more}'


def matrices(x=X, weights=WEIGHTS, top=""):
    return {step.name: step.values.clone() for step in parse(top + x + weights).trace()}


def audited(claims, top=""):
    return {finding.step: finding for finding in check(parse(top + X + WEIGHTS + "\n".join(claims))).findings}


def messages(name):
    return {(f.claim, f.step): f.message for f in check(name).findings if f.verdict != "agrees"}


class TestTheTeachingTexts:
    def test_song(self):
        assert messages("song") == {
            (None, "key"): "given K is X·W for no W: the best fit still misses a cell by 0.58",
            (5, "query"): "18 of 24 cells differ",
            (6, "key"): "claimed 4, computed 6: one row for each token",
            (9, "weights"): "columns sum to 0.67 1.66 0.33 1.37 0.35 1.63, not to 1; rows do",
            (10, "weights"): "claimed 36, computed 1: one matrix for each head, with a row for each token",
        }

    def test_the_cells_of_q(self):
        [query] = [f for f in check("song").findings if f.step == "query"]
        by_row = {row: [cell for cell in query.cells if cell.row == row] for row in range(6)}
        assert [len(by_row[row]) for row in range(6)] == [0, 2, 4, 4, 4, 4]
        assert [(c.printed, round(c.computed, 2), round(c.difference, 2)) for c in by_row[1]] == [
            ("4.49", 7.31, -2.82),
            ("-0.23", -0.91, 0.68),
        ]
        assert (by_row[1][0].row_label, by_row[1][0].column_label) == ("new", "3")

    def test_song_causal_has_the_same_errors_and_its_mask(self):
        found = messages("song-causal")
        mask = found.pop((8, "mask"))
        assert mask == (
            "18 of 36 cells differ: 9 open and 9 closed wrongly; "
            "it is the computed matrix with its rows in reverse order"
        )
        assert found.keys() == {(None, "key"), (5, "query"), (6, "key"), (10, "weights"), (11, "weights")}

    @pytest.mark.parametrize(
        ("name", "claims", "message"),
        [
            (
                "two-heads",
                (2, 3, 4),
                'claimed (4, 2), computed (2, 2); that is another layer, split = "project", '
                "with 48 projection weights where this has 24",
            ),
            (
                "two-heads-projected",
                (7, 8, 9),
                'claimed (2, 2), computed (4, 2); that is another layer, split = "slice", '
                "with 24 projection weights where this has 48",
            ),
        ],
    )
    def test_the_two_readings_of_the_head_weights(self, name, claims, message):
        found = {f.claim: f for f in check(name).findings}
        for number in claims:
            assert found[number].verdict == "differs"
            assert found[number].message == message
        differing = {number for number, f in found.items() if f.verdict != "agrees"}
        assert differing - {*claims} == ({5, 6} if name == "two-heads-projected" else set())  # there are no slices
        assert (found[18].step, found[18].verdict, found[18].message) == ("output", "agrees", "(8, 4)")

    @pytest.mark.parametrize("name", ["song", "song-causal"])
    def test_blanks_are_no_claims_and_every_one_is_filled(self, name):
        example = load(name)
        blank = {c.step: c.values for c in example.claims if c.values is not None and c.values.blank.all()}
        assert set(blank) == {"scores", "weights", "value", "head_output"}
        for step, grid in blank.items():
            computed = example.trace().step(step).values
            assert computed.shape == grid.values.shape
            assert computed.isfinite().all()


class TestPlantedErrors:
    def test_what_is_right_agrees_at_every_number_of_digits(self):
        right = matrices()
        for digits in (1, 2, 6):
            found = audited([claim(step, right[step], digits) for step in STEPS])
            assert {f.verdict for f in found.values()} == {"agrees"}, found
            assert all("differ" not in f.message for f in found.values())

    @pytest.mark.parametrize("step", STEPS)
    def test_one_wrong_cell_is_found(self, step):
        wrong = matrices()
        wrong[step][1, 0] += 0.02
        found = audited([claim(name, wrong[name]) for name in STEPS])
        assert {name for name, f in found.items() if f.verdict != "agrees"} == {step}
        [cell] = found[step].cells
        assert (cell.row, cell.column) == (1, 0)
        assert cell.carried_from is None
        assert cell.difference == pytest.approx(0.02, abs=0.006)

    def test_what_follows_from_a_wrong_matrix_is_carried(self):
        right, wrong = matrices(), matrices()
        wrong["query"][0, 1] += 3.0
        wrong["scores"] = wrong["query"] @ right["key"].T
        wrong["scaled"] = wrong["scores"] / 2**0.5
        wrong["weights"] = torch.softmax(wrong["scaled"], 1)
        for name in ("head_output", "concat", "output"):
            wrong[name] = wrong["weights"] @ right["value"]
        found = audited([claim(name, wrong[name]) for name in STEPS])
        verdicts = {name: f.verdict for name, f in found.items()}
        assert verdicts == {"query": "differs", "key": "agrees", "value": "agrees"} | dict.fromkeys(
            STEPS[3:], "carried"
        )
        for name in STEPS[3:]:
            assert {cell.row for cell in found[name].cells} == {0}
            assert {cell.carried_from for cell in found[name].cells} == {"Q"}
        assert found["scores"].message == "2 of 4 cells differ, carried from the text's own Q"
        assert not check(parse(X + WEIGHTS + claim("query", wrong["query"]))).agrees

    def test_a_new_error_beside_a_carried_one(self):
        wrong = matrices()
        wrong["query"][0, 1] += 3.0
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        wrong["scores"][1, 1] += 1.0
        found = audited([claim(name, wrong[name]) for name in ("query", "scores")])
        assert found["scores"].verdict == "differs"
        assert found["scores"].message == "3 of 4 cells differ, 2 of them carried"
        assert {(c.row, c.column): c.carried_from for c in found["scores"].cells} == {
            (0, 0): "Q",
            (0, 1): "Q",
            (1, 1): None,
        }

    def test_carried_though_the_text_went_on_with_more_digits_than_it_printed(self):
        wrong = matrices()
        wrong["query"][0] = torch.tensor([31.449, -27.551])
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        claims = [claim("query", wrong["query"], digits=1), claim("scores", wrong["scores"], digits=4)]
        found = audited(claims)
        assert found["scores"].verdict == "carried"

    def test_going_on_with_the_rounded_numbers_is_no_error(self):
        right = matrices()
        rounded = (right["query"] * 10).round() / 10
        scores = rounded @ right["key"].T
        found = audited([claim("query", right["query"], digits=1), claim("scores", scores, digits=4)])
        assert found["scores"].verdict == "agrees"
        assert "follow from the rounded numbers printed before" in found["scores"].message
        assert audited([claim("scores", scores, digits=4)])["scores"].verdict == "differs"

    def test_a_wrong_mask_carries_too(self):
        right = matrices(top='mask = "causal"\n')
        opened = torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]])
        weights = torch.softmax(right["scaled"] + opened, 1)
        found = audited([claim("mask", opened, 0), claim("weights", weights)], top='mask = "causal"\n')
        assert (found["mask"].verdict, found["weights"].verdict) == ("differs", "carried")
        assert {cell.carried_from for cell in found["weights"].cells} == {"M"}

    def test_a_misprint_that_nothing_follows_from_is_not_blamed(self):
        """Q has a misprint; what follows from a wrong K, or from rounded right weights, has nothing to do with it."""
        wrong = matrices()
        wrong["query"][0, 0] += 1.0
        wrong["key"][1, 1] += 3.0
        wrong["scores"] = matrices()["query"] @ wrong["key"].T
        found = audited([claim(name, wrong[name]) for name in ("query", "key", "scores")])
        assert {cell.carried_from for cell in found["scores"].cells} == {"K"}
        right = matrices()
        rounded = (right["weights"] * 100).round() / 100 @ right["value"]
        claims = [claim("query", wrong["query"]), claim("weights", right["weights"]), claim("head_output", rounded, 5)]
        assert audited(claims)["head_output"].verdict == "agrees"

    def test_two_matrices_may_be_to_blame_and_a_third_not(self):
        wrong = matrices()
        wrong["query"][0, 0] += 1.0  # a misprint: nothing follows from it
        wrong["key"][1, 1] += 3.0
        wrong["value"][0, 0] -= 2.0
        weights = torch.softmax(matrices()["query"] @ wrong["key"].T / 2**0.5, 1)
        wrong["head_output"] = weights @ wrong["value"]
        found = audited([claim(name, wrong[name]) for name in ("query", "key", "value", "head_output")])["head_output"]
        assert found.verdict == "carried"
        assert "K and V" in {cell.carried_from for cell in found.cells}

    def test_rows_that_follow_from_right_rows_agree(self):
        wrong = matrices()
        wrong["query"] = (wrong["query"] * 10).round() / 10
        wrong["query"][0, 0] += 1.0
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        found = audited([claim("query", wrong["query"], 1), claim("scores", wrong["scores"], 4)])["scores"]
        assert {cell.row for cell in found.cells} == {0}
        assert "2 follow from the rounded numbers printed before" in found.message

    def test_wrong_weights_and_a_wrong_input_carry(self):
        right = matrices()
        x = torch.tensor([[0.1, 0.7, -0.4], [0.5, -0.3, 0.9]], dtype=torch.float64)
        weight = torch.tensor([[1.0, 0.5], [-0.3, 0.2], [0.7, 2.1]], dtype=torch.float64)
        found = audited([claim("query_weight", weight, 1), claim("query", x @ weight)])
        assert {cell.carried_from for cell in found["query"].cells} == {"W_Q"}
        x[0, 0] = 0.6
        found = audited([claim("input", x, 1), claim("value", x @ parse(X + WEIGHTS).weights["value"][0])])
        assert {cell.carried_from for cell in found["value"].cells} == {"X"}
        assert torch.equal(right["query"], matrices()["query"])

    def test_unprinted_digits_excuse_no_more_than_they_can_do(self):
        wrong = matrices()
        wrong["query"][0] = torch.tensor([31.449, -27.551])
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        wrong["scores"][0, 0] += 0.5  # the digits left out of Q can move it by 0.05 · (|k₁| + |k₂|) at most
        found = audited([claim("query", wrong["query"], 1), claim("scores", wrong["scores"], 4)])["scores"]
        assert {(c.row, c.column): c.carried_from for c in found.cells} == {(0, 0): None, (0, 1): "Q"}

    def test_blanks_in_between_are_computed(self):
        wrong = matrices()
        wrong["query"][0, 1] += 3.0
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        text = claim("query", wrong["query"]).replace(f"{wrong['query'][1, 0]:.2f}", '"_"')
        assert audited([text, claim("scores", wrong["scores"])])["scores"].verdict == "carried"
        opened = 'step = "mask"\nvalues = [["_", 0], [0, "_"]]\n'
        weights = torch.softmax(matrices()["scaled"], 1)
        found = audited(["[[claims]]\n" + opened, claim("weights", weights)], top='mask = "causal"\n')
        assert (found["mask"].verdict, found["weights"].verdict) == ("differs", "carried")

    def test_what_is_given_stays_given_where_a_claim_is_blank(self):
        given = "[given]\nkey = [[5.0, 1.0], [2.0, 3.0]]\n"
        example = parse(X + WEIGHTS + given)
        key = example.trace().step("key").values.clone()
        key[0, 0] = 6.0
        scores = example.trace().step("query").values @ key.T
        claims = '[[claims]]\nstep = "key"\nvalues = [[6.0, "_"], ["_", "_"]]\n' + claim("scores", scores)
        found = {f.step: f for f in check(parse(X + WEIGHTS + given + claims)).findings if f.claim}
        assert {cell.carried_from for cell in found["scores"].cells} == {"K"}

    def test_heads_carry_their_own_errors_only(self):
        top = "heads = 2\nseed = 1\nx = [[0.1, 0.7], [0.5, -0.3], [0.4, 0.9]]\n"
        right = parse(top).trace()
        queries = [right.step("query", head).values.clone() for head in (0, 1)]
        scores = [right.step("scores", head).values.clone() for head in (0, 1)]
        queries[0][0, 0] += 5
        scores[1] = queries[0] @ right.step("key", 1).values.T  # as if it were head 1's query
        text = claim("query", queries[0], more="head = 1\n") + claim("scores", scores[1], more="head = 2\n")
        query, other = check(parse(top + text)).findings
        assert (query.head, query.verdict, other.head, other.verdict) == (0, "differs", 1, "differs")


@pytest.mark.parametrize(
    "text",
    [
        *(load(name).source for name in BUILT_IN),
        X + WEIGHTS + "[given]\nscaled = [['_', 7.0], ['_', '_']]",
        "heads = 2\nsplit = 'slice'\nmask = [[true, false], [false, false]]\nx = [[0.1, 0.7], [0.5, -0.3]]",
    ],
    ids=[*BUILT_IN, "given", "a row without a key"],
)
def test_what_is_checked_is_what_is_explained(text):
    """The numbers of `check` and the steps of `explain`, which are computed apart."""
    example = parse(text)
    computed = Calculation(example, {where: grid.values for where, grid in example.given.items()})
    for step in example.trace():
        torch.testing.assert_close(computed.matrix(step.name, step.head or 0), step.values, rtol=1e-12, atol=1e-13)


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
    def test_the_digits_printed_set_the_tolerance(self, printed, computed, agrees):
        text = f"x = [[{computed}]]\n[[claims]]\nstep = 'input'\nvalues = [[{printed}]]"
        assert check(parse(text)).agrees == agrees

    def test_a_tolerance_for_sums(self):
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

    def test_the_transpose_is_recognised(self):
        right = matrices(x=X.replace("]]", "], [0.2, 0.2, 0.3]]"))
        text = X.replace("]]", "], [0.2, 0.2, 0.3]]") + WEIGHTS + claim("key", right["key"].T)
        [found] = check(parse(text)).findings
        assert found.message == "claimed (2, 3), computed (3, 2); read as its transpose, 6 cells agree"

    @pytest.mark.parametrize(
        ("text", "verdict", "message"),
        [
            ('step = "weights"\nsum = "rows"', "agrees", "rows sum to 1"),
            ('step = "weights"\ncount = 1', "agrees", "1: one matrix for each head, with a row for each token"),
            ('step = "weights"\nhead = 1\ncount = 2', "agrees", "2: one row for each token"),
            ('step = "key"\nhead = 1\ncount = 4', "differs", "claimed 4, computed 2: one row for each token"),
            ('step = "key_weight"\ncount = 3', "agrees", "3: one row for each column that it reads"),
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
                "1 of 4 cells differ: 0 open and 1 closed wrongly",
            ),
        ],
    )
    def test_claims(self, text, verdict, message):
        [found] = check(parse(X + WEIGHTS + "[[claims]]\n" + text)).findings
        assert (found.verdict, found.message) == (verdict, message)

    def test_a_transpose_with_an_error_is_read_as_one_and_carries(self):
        x = X.replace("]]", "], [0.2, 0.2, 0.3]]")
        wrong = matrices(x=x)
        wrong["key"][2, 0] += 1.0
        scores = wrong["query"] @ wrong["key"].T
        key, other = check(parse(x + WEIGHTS + claim("key", wrong["key"].T) + claim("scores", scores))).findings
        assert key.message == "claimed (2, 3), computed (3, 2); read as its transpose, 1 of 6 cells differ"
        assert other.verdict == "carried"

    def test_other_numbers_in_the_shape_of_the_transpose_are_only_a_wrong_shape(self):
        x = X.replace("]]", "], [0.2, 0.2, 0.3]]")
        [found] = check(parse(x + WEIGHTS + claim("key", torch.full((2, 3), 9.0)))).findings
        assert found.message == "claimed (2, 3), computed (3, 2)"

    @pytest.mark.parametrize("big", ["-1e9", "-10000.0", "-inf"])
    def test_a_large_negative_number_in_a_mask_stands_for_infinity(self, big):
        text = f'mask = "causal"\n{X}[[claims]]\nstep = "mask"\nvalues = [[0, {big}], [0, 0]]'
        assert check(parse(text)).agrees

    def test_a_mask_of_ones_and_zeros_is_told(self):
        text = f'mask = "causal"\n{X}[[claims]]\nstep = "mask"\nvalues = [[1, 0], [1, 1]]'
        [found] = check(parse(text)).findings
        assert "it is written as 1 and 0, but what is added to the scores is 0 and −∞" in found.message

    def test_rows_that_do_not_sum_to_1_either_are_not_praised(self):
        text = X + "mask = [[false, false], [true, true]]\n[[claims]]\nstep = 'weights'\nsum = 'columns'"
        [found] = check(parse(text)).findings
        assert found.message.endswith("not to 1")

    @pytest.mark.parametrize(("turn", "how"), [(0, "rows"), (1, "columns")])
    def test_reversed_order_is_recognised(self, turn, how):
        found = audited([claim("scores", matrices()["scores"].flip(turn), 4)])["scores"]
        assert found.message.endswith(f"it is the computed matrix with its {how} in reverse order")

    def test_sums_of_several_heads_say_which(self):
        [found] = check(
            parse("heads = 2\nx = [[0.1, 0.7], [0.5, -0.3]]\n[[claims]]\nstep = 'weights'\nsum = 'columns'")
        ).findings
        assert found.verdict == "differs"
        assert {cell.row_label for cell in found.cells} == {"sum, head 1", "sum, head 2"}


class TestGiven:
    def test_a_product_with_some_w_and_one_cell_off(self):
        x = torch.tensor([[0.1, 0.7], [0.5, -0.3], [0.4, 0.9], [-0.8, 0.2]], dtype=torch.float64)
        product = x @ torch.tensor([[1.5, -0.5], [0.25, 2.0]], dtype=torch.float64)
        for off, verdict in ((0.0, "agrees"), (0.1, "differs")):
            product[2, 1] += off
            rows = [[f"{cell:.2f}" for cell in row] for row in product.tolist()]
            text = f"x = {x.tolist()}\n[given]\nvalue = [{', '.join('[' + ', '.join(row) + ']' for row in rows)}]"
            [found] = check(parse(text)).findings
            assert (found.kind, found.step, found.verdict) == ("given", "value", verdict)

    def test_beside_stated_weights_it_is_compared_with_their_product(self):
        right = matrices()["key"]
        rows = ", ".join(str([round(float(cell), 3) for cell in row]) for row in right)
        assert check(parse(X + WEIGHTS + f"[given]\nkey = [{rows}]")).agrees
        rows = rows.replace(str(round(float(right[0, 0]), 3)), "9.0")
        [found] = check(parse(X + WEIGHTS + f"[given]\nkey = [{rows}]")).findings
        assert found.message == "given K is not X W_K: 1 of 4 cells differ"
        assert [(cell.row, cell.column, cell.printed) for cell in found.cells] == [(0, 0, "9.0")]

    def test_each_number_is_held_to_its_own_digits(self):
        """The last row, printed coarsely, does not excuse the third, which the first two contradict."""
        x = "x = [[1, 0], [0, 1], [1, 1], [1, -1]]\n"
        for third, verdict in (("2.20", "differs"), ("2.01", "agrees")):
            given = f"[given]\nvalue = [[1.00, 1.00], [1.00, 1.00], [{third}, 2.00], [0, 0]]"
            [found] = check(parse(x + given)).findings
            assert found.verdict == verdict

    def test_small_misses_are_not_rounded_away(self):
        [found] = check(parse("x = [[1.0], [1.0]]\n[given]\nvalue = [[0.0010], [0.0030]]")).findings
        assert found.message == "given V is X·W for no W: the best fit still misses a cell by 0.001"
