"""Tests of `check`: differences in the built-in texts, and errors planted in correct texts."""

import pytest
import torch

from clearhead import check
from clearhead.explain import BUILT_IN, _error_propagation, load, parse
from clearhead.explain._recompute import Recomputation
from support.worked_claims import STEPS, WEIGHTS, X, audited, claim, matrices


def messages(name):
    return {(f.claim, f.step): f.message for f in check(name).findings if f.verdict != "agrees"}


class TestBuiltInTexts:
    def test_song_has_five_errors(self):
        assert messages("song") == {
            (None, "key"): "given K is not X·W for any W: the best fit has an error of 0.58 in some cell",
            (5, "query"): "18 of 24 cells differ",
            (6, "key"): "claimed 4, computed 6: one row for each token",
            (9, "weights"): "columns sum to 0.67, 1.66, 0.33, 1.37, 0.35, 1.63, not to 1; rows do",
            (10, "weights"): "claimed 36, computed 1: one matrix for each head, with a row for each token",
        }

    def test_wrong_cells_of_q_are_listed(self):
        [query] = [f for f in check("song").findings if f.step == "query"]
        by_row = {row: [cell for cell in query.cells if cell.row == row] for row in range(6)}
        assert [len(by_row[row]) for row in range(6)] == [0, 2, 4, 4, 4, 4]
        assert [(c.printed, round(c.computed, 2), round(c.difference, 2)) for c in by_row[1]] == [
            ("4.49", 7.31, -2.82),
            ("-0.23", -0.91, 0.68),
        ]
        assert (by_row[1][0].row_label, by_row[1][0].column_label) == ("new", "3")

    def test_song_causal_adds_a_wrong_mask(self):
        differences = messages("song-causal")
        mask = differences.pop((8, "mask"))
        assert mask == "18 of 36 cells differ: 9 wrongly allowed and 9 wrongly masked"
        [causes] = [f.causes for f in check("song-causal").findings if f.step == "mask"]
        assert [cause.name for cause in causes] == ["rows in reverse order"]
        assert differences.keys() == {(None, "key"), (5, "query"), (6, "key"), (10, "weights"), (11, "weights")}

    @pytest.mark.parametrize(
        ("name", "claims", "message"),
        [
            (
                "two-heads",
                (2, 3, 4),
                'claimed (4, 2), computed (2, 2); this shape belongs to split = "project", '
                "a layer with 48 projection weights instead of 24",
            ),
            (
                "two-heads-projected",
                (7, 8, 9),
                'claimed (2, 2), computed (4, 2); this shape belongs to split = "slice", '
                "a layer with 24 projection weights instead of 48",
            ),
        ],
    )
    def test_contradicting_weight_shapes_are_reported(self, name, claims, message):
        results = {f.claim: f for f in check(name).findings}
        for position in claims:
            assert results[position].verdict == "differs"
            assert results[position].message == message
        differing = {position for position, f in results.items() if f.verdict != "agrees"}
        assert differing - {*claims} == ({5, 6} if name == "two-heads-projected" else set())  # there are no slices
        assert (results[18].step, results[18].verdict, results[18].message) == ("output", "agrees", "(8, 4)")

    @pytest.mark.parametrize("name", ["song", "song-causal"])
    def test_blank_matrices_are_computed_and_not_claimed(self, name):
        example = load(name)
        blank = {c.step: c.values for c in example.claims if c.values is not None and c.values.blank.all()}
        assert set(blank) == {"scores", "weights", "value", "head_output"}
        for step, grid in blank.items():
            computed = example.trace().step(step).values
            assert computed.shape == grid.values.shape
            assert computed.isfinite().all()


class TestPlantedErrors:
    def test_correct_numbers_agree_at_every_number_of_digits(self):
        right = matrices()
        for digits in (1, 2, 6):
            results = audited([claim(step, right[step], digits) for step in STEPS])
            assert {f.verdict for f in results.values()} == {"agrees"}, results
            assert all("differ" not in f.message for f in results.values())

    @pytest.mark.parametrize("step", STEPS)
    def test_one_wrong_cell_is_found(self, step):
        wrong = matrices()
        wrong[step][1, 0] += 0.02
        results = audited([claim(name, wrong[name]) for name in STEPS])
        assert {name for name, f in results.items() if f.verdict != "agrees"} == {step}
        [cell] = results[step].cells
        assert (cell.row, cell.column) == (1, 0)
        assert cell.carried_from is None
        assert cell.difference == pytest.approx(0.02, abs=0.006)

    def test_numbers_that_follow_from_a_wrong_matrix_are_carried(self):
        right, wrong = matrices(), matrices()
        wrong["query"][0, 1] += 3.0
        wrong["scores"] = wrong["query"] @ right["key"].T
        wrong["scaled"] = wrong["scores"] / 2**0.5
        wrong["weights"] = torch.softmax(wrong["scaled"], 1)
        for name in ("head_output", "concat", "output"):
            wrong[name] = wrong["weights"] @ right["value"]
        results = audited([claim(name, wrong[name]) for name in STEPS])
        verdicts = {name: f.verdict for name, f in results.items()}
        assert verdicts == {"query": "differs", "key": "agrees", "value": "agrees"} | dict.fromkeys(
            STEPS[3:], "carried"
        )
        for name in STEPS[3:]:
            assert {cell.row for cell in results[name].cells} == {0}
            assert {cell.carried_from for cell in results[name].cells} == {"Q"}
        assert results["scores"].message == "2 of 4 cells differ, carried from Q as printed"
        assert not check(parse(X + WEIGHTS + claim("query", wrong["query"]))).agrees

    def test_new_error_among_carried_cells_is_reported(self):
        wrong = matrices()
        wrong["query"][0, 1] += 3.0
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        wrong["scores"][1, 1] += 1.0
        results = audited([claim(name, wrong[name]) for name in ("query", "scores")])
        assert results["scores"].verdict == "differs"
        assert results["scores"].message == "3 of 4 cells differ, 2 of them carried"
        assert {(c.row, c.column): c.carried_from for c in results["scores"].cells} == {
            (0, 0): "Q",
            (0, 1): "Q",
            (1, 1): None,
        }

    def test_carried_if_the_author_used_unprinted_digits(self):
        wrong = matrices()
        wrong["query"][0] = torch.tensor([31.449, -27.551])
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        claims = [claim("query", wrong["query"], digits=1), claim("scores", wrong["scores"], digits=4)]
        results = audited(claims)
        assert results["scores"].verdict == "carried"

    def test_continuing_with_rounded_numbers_is_not_an_error(self):
        right = matrices()
        rounded = (right["query"] * 10).round() / 10
        scores = rounded @ right["key"].T
        results = audited([claim("query", right["query"], digits=1), claim("scores", scores, digits=4)])
        assert results["scores"].verdict == "agrees"
        assert "follow from rounded numbers printed earlier" in results["scores"].message
        assert audited([claim("scores", scores, digits=4)])["scores"].verdict == "differs"

    def test_errors_of_a_mask_are_carried(self):
        right = matrices(top='mask = "causal"\n')
        opened = torch.tensor([[0.0, 0.0], [-torch.inf, 0.0]])
        weights = torch.softmax(right["scaled"] + opened, 1)
        results = audited([claim("mask", opened, 0), claim("weights", weights)], top='mask = "causal"\n')
        assert (results["mask"].verdict, results["weights"].verdict) == ("differs", "carried")
        assert {cell.carried_from for cell in results["weights"].cells} == {"M"}

    def test_unused_misprint_is_not_named_as_a_cause(self):
        """Q has a misprint, but later numbers follow from a wrong K, or from correct rounded weights."""
        wrong = matrices()
        wrong["query"][0, 0] += 1.0
        wrong["key"][1, 1] += 3.0
        wrong["scores"] = matrices()["query"] @ wrong["key"].T
        results = audited([claim(name, wrong[name]) for name in ("query", "key", "scores")])
        assert {cell.carried_from for cell in results["scores"].cells} == {"K"}
        right = matrices()
        rounded = (right["weights"] * 100).round() / 100 @ right["value"]
        claims = [claim("query", wrong["query"]), claim("weights", right["weights"]), claim("head_output", rounded, 5)]
        assert audited(claims)["head_output"].verdict == "agrees"

    def test_two_causes_are_named_without_an_unused_misprint(self):
        wrong = matrices()
        wrong["query"][0, 0] += 1.0  # a misprint that the author does not use
        wrong["key"][1, 1] += 3.0
        wrong["value"][0, 0] -= 2.0
        weights = torch.softmax(matrices()["query"] @ wrong["key"].T / 2**0.5, 1)
        wrong["head_output"] = weights @ wrong["value"]
        result = audited([claim(name, wrong[name]) for name in ("query", "key", "value", "head_output")])["head_output"]
        assert result.verdict == "carried"
        assert "K and V" in {cell.carried_from for cell in result.cells}

    def test_rows_that_follow_from_correct_rows_agree(self):
        wrong = matrices()
        wrong["query"] = (wrong["query"] * 10).round() / 10
        wrong["query"][0, 0] += 1.0
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        result = audited([claim("query", wrong["query"], 1), claim("scores", wrong["scores"], 4)])["scores"]
        assert {cell.row for cell in result.cells} == {0}
        assert "2 follow from rounded numbers printed earlier" in result.message

    def test_errors_of_weights_and_input_are_carried(self):
        right = matrices()
        x = torch.tensor([[0.1, 0.7, -0.4], [0.5, -0.3, 0.9]], dtype=torch.float64)
        weight = torch.tensor([[1.0, 0.5], [-0.3, 0.2], [0.7, 2.1]], dtype=torch.float64)
        results = audited([claim("query_weight", weight, 1), claim("query", x @ weight)])
        assert {cell.carried_from for cell in results["query"].cells} == {"W_Q"}
        x[0, 0] = 0.6
        results = audited([claim("input", x, 1), claim("value", x @ parse(X + WEIGHTS).weights["value"][0])])
        assert {cell.carried_from for cell in results["value"].cells} == {"X"}
        assert torch.equal(right["query"], matrices()["query"])

    def test_unprinted_digits_explain_only_small_differences(self):
        wrong = matrices()
        wrong["query"][0] = torch.tensor([31.449, -27.551])
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        wrong["scores"][0, 0] += 0.5  # the unprinted digits of Q change it by at most 0.05 · (|k₁| + |k₂|)
        result = audited([claim("query", wrong["query"], 1), claim("scores", wrong["scores"], 4)])["scores"]
        assert {(c.row, c.column): c.carried_from for c in result.cells} == {(0, 0): None, (0, 1): "Q"}

    def test_blank_cells_of_earlier_matrices_are_computed(self):
        wrong = matrices()
        wrong["query"][0, 1] += 3.0
        wrong["scores"] = wrong["query"] @ wrong["key"].T
        text = claim("query", wrong["query"]).replace(f"{wrong['query'][1, 0]:.2f}", '"_"')
        assert audited([text, claim("scores", wrong["scores"])])["scores"].verdict == "carried"
        opened = 'step = "mask"\nvalues = [["_", 0], [0, "_"]]\n'
        weights = torch.softmax(matrices()["scaled"], 1)
        results = audited(["[[claims]]\n" + opened, claim("weights", weights)], top='mask = "causal"\n')
        assert (results["mask"].verdict, results["weights"].verdict) == ("differs", "carried")

    def test_given_numbers_are_used_where_a_claim_is_blank(self):
        given = "[given]\nkey = [[5.0, 1.0], [2.0, 3.0]]\n"
        example = parse(X + WEIGHTS + given)
        key = example.trace().step("key").values.clone()
        key[0, 0] = 6.0
        scores = example.trace().step("query").values @ key.T
        claims = '[[claims]]\nstep = "key"\nvalues = [[6.0, "_"], ["_", "_"]]\n' + claim("scores", scores)
        results = {f.step: f for f in check(parse(X + WEIGHTS + given + claims)).findings if f.claim}
        assert {cell.carried_from for cell in results["scores"].cells} == {"K"}

    def test_errors_are_not_carried_between_heads(self):
        top = "heads = 2\nseed = 1\nx = [[0.1, 0.7], [0.5, -0.3], [0.4, 0.9]]\n"
        right = parse(top).trace()
        queries = [right.step("query", head).values.clone() for head in (0, 1)]
        scores = [right.step("scores", head).values.clone() for head in (0, 1)]
        queries[0][0, 0] += 5
        scores[1] = queries[0] @ right.step("key", 1).values.T  # computed with the query of head 1
        text = claim("query", queries[0], more="head = 1\n") + claim("scores", scores[1], more="head = 2\n")
        query, other = check(parse(top + text)).findings
        assert (query.head, query.verdict, other.head, other.verdict) == (0, "differs", 1, "differs")

    @pytest.mark.parametrize("step", ["concat", "output"])
    def test_errors_in_one_head_and_in_a_shared_matrix_are_separate(self, step):
        """Only the head with the error is recomputed as a batch of variations."""
        top = "heads = 2\nseed = 1\nx = [[0.1, 0.7], [0.5, -0.3], [0.4, 0.9]]\n"
        right = parse(top).trace()
        query, joint = right.step("query", 0).values.clone(), right.step(step).values.clone()
        query[0, 0] += 1
        joint[1, 1] += 1
        text = claim("query", query, more="head = 1\n") + claim(step, joint)
        results = check(parse(top + text)).findings
        assert [(f.step, f.verdict) for f in results] == [("query", "differs"), (step, "differs")]
        assert [(c.row, c.column, c.carried_from) for f in results for c in f.cells] == [(0, 0, None), (1, 1, None)]

    def test_rounding_is_recognized_after_a_matrix_with_an_error(self):
        """Row 2 of Q Kᵀ follows from the rounded Q, and row 2 of S from Q Kᵀ. The error is in row 1."""
        right, text = matrices(), matrices()
        text["query"] = (text["query"] * 10).round() / 10
        text["scores"] = text["query"] @ right["key"].T
        text["scaled"] = (text["scores"] * 100).round() / 100 / 2**0.5
        text["scores"][0, 0] += 1.0
        claims = [claim("query", text["query"], 1), claim("scores", text["scores"]), claim("scaled", text["scaled"], 4)]
        results = audited(claims)
        assert [(c.row, c.column, c.carried_from) for c in results["scores"].cells] == [(0, 0, None)]
        assert results["scaled"].verdict == "agrees"

    def test_a_misprint_is_corrected_to_the_printed_digits(self):
        """The author continues with the rounded numbers, but not with the misprint."""
        right, text = matrices(), matrices()
        rounded = (right["query"] * 10).round() / 10
        text["query"][0, 0] += 2.0
        results = audited([claim("query", text["query"], 1), claim("scores", rounded @ right["key"].T, 4)])
        assert [(c.row, c.column) for c in results["query"].cells] == [(0, 0)]
        assert results["scores"].verdict == "agrees"

    def test_a_misprint_of_infinity_is_corrected_to_the_digits_of_its_matrix(self):
        top = 'mask = "causal"\n'
        text = matrices(top=top)
        rounded = torch.where(text["masked"].isinf(), text["masked"], (text["masked"] * 10).round() / 10)
        text["masked"][1, 0] = -torch.inf
        results = audited([claim("masked", text["masked"], 1), claim("weights", torch.softmax(rounded, 1), 4)], top=top)
        assert (results["masked"].verdict, results["weights"].verdict) == ("differs", "agrees")

    def test_a_number_that_does_not_depend_on_an_error_is_not_carried_from_it(self):
        """Row 2 of the scores depends on row 2 of Q only, and the error is in row 1."""
        text = matrices()
        text["query"][0, 0] += 1.0
        text["scores"][1, 0] += 0.02  # less than the unprinted digits of Q could cause
        result = audited([claim("query", text["query"], 1), claim("scores", text["scores"], 4)])["scores"]
        assert [(c.row, c.column, c.carried_from) for c in result.cells] == [(1, 0, None)]

    def test_a_mask_has_no_unprinted_digits(self):
        top = 'mask = "causal"\n'
        x = X.replace("]]", "], [0.2, 0.2, 0.3]]")
        weights = matrices(x=x, top=top)["weights"]
        weights[1, 0] += 0.03
        opened = torch.tensor([[0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        mask, weights_result = check(
            parse(top + x + WEIGHTS + claim("mask", opened, 0) + claim("weights", weights, 3))
        ).findings
        assert [(c.row, c.column, c.carried_from) for c in mask.cells] == [(1, 2, None)]
        assert [(c.row, c.column, c.carried_from) for c in weights_result.cells] == [(1, 0, None)]

    def test_three_causes_are_named_without_an_unused_misprint(self):
        top = "heads = 3\nx = [[0.1, 0.7, 0.3], [0.5, -0.3, 0.8]]\n"
        example = parse(top)
        trace, text, outputs = example.trace(), "", []
        for head in range(3):
            value = trace.step("value", head).values.clone()
            value[0, 0] += 1 + head
            outputs.append(trace.step("weights", head).values @ value)
            text += claim("value", value, more=f"head = {head + 1}\n")
        query = trace.step("query", 0).values.clone()
        query[1, 0] += 2
        text += claim("query", query, more="head = 1\n")
        text += claim("output", torch.cat(outputs, 1) @ example.weights["output"])
        *_, output = check(parse(top + text)).findings
        assert output.verdict == "carried"
        assert output.message.endswith("carried from V₁, V₂ and V₃ as printed")

    def test_each_cause_is_named_once_and_only_where_it_matters(self):
        text = matrices()
        text["query"][0, 1] += 3.0
        text["key"][1, 1] += 3.0
        text["scores"] = text["query"] @ text["key"].T
        text["scaled"] = text["scores"] / 2**0.5
        results = audited([claim(name, text[name]) for name in ("query", "key", "scores", "scaled")])
        for name in ("scores", "scaled"):
            assert {(c.row, c.column): c.carried_from for c in results[name].cells} == {
                (0, 0): "Q",
                (0, 1): "Q and K",
                (1, 1): "K",
            }
            assert results[name].message == "3 of 4 cells differ, carried from Q and K as printed"

    def test_result_does_not_depend_on_the_batch_size(self, monkeypatch):
        text = matrices()
        text["query"][0] = torch.tensor([31.449, -27.551])
        text["scores"] = text["query"] @ text["key"].T
        claims = [claim("query", text["query"], digits=1), claim("scores", text["scores"], digits=4)]
        unbatched = audited(claims)["scores"]
        monkeypatch.setattr(_error_propagation, "_MAX_BATCH_ELEMENTS", 5)
        assert audited(claims)["scores"] == unbatched


@pytest.mark.parametrize(
    "text",
    [
        *(load(name).source for name in BUILT_IN),
        X + WEIGHTS + "[given]\nscaled = [['_', 7.0], ['_', '_']]",
        "heads = 2\nsplit = 'slice'\nmask = [[true, false], [false, false]]\nx = [[0.1, 0.7], [0.5, -0.3]]",
    ],
    ids=[*BUILT_IN, "given", "row without keys"],
)
def test_recomputed_matrices_equal_the_traced_steps(text):
    """Compare the matrices of `check` with the steps of `explain`, which separate code computes."""
    example = parse(text)
    computed = Recomputation(example, example.given_values)
    for step in example.trace():
        torch.testing.assert_close(computed.matrix(step.name, step.head or 0), step.values, rtol=1e-12, atol=1e-13)
