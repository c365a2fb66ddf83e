"""Worked examples as TOML files: what the built-in ones compute, what can be stated, and what is refused."""

import pytest
import torch

from clearhead import Causal, MultiHeadAttention, attention, check, explain
from clearhead.explain import BUILT_IN, load, parse, render

X = "x = [[0.1, 0.7], [0.5, -0.3], [0.4, 0.9]]\n"


def test_public_names():
    for package in (explain, render):
        assert package.__all__ == sorted(package.__all__, key=lambda name: (not name.isupper(), name))
        assert all(hasattr(package, name) for name in package.__all__)
    assert set(explain.__all__) <= set(dir(explain))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = explain.nothing


class TestBuiltIn:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_every_step_is_computed_and_the_last_is_the_layers(self, name):
        example = load(name)
        traced = example.trace()
        for step in traced:
            assert (step.values.isfinite() | (step.values == -torch.inf)).all()
            assert step.values.isfinite().all() or step.name == "masked"
        if not example.given:
            output = example.layer()(example.x[None], mask=example.mask)[0]
            torch.testing.assert_close(traced.output, output, rtol=1e-12, atol=1e-13)

    def test_two_heads_by_hand(self):
        """The text's six steps, as plain products."""
        example = load("two-heads")
        outputs = []
        for head, columns in enumerate((slice(0, 2), slice(2, 4))):
            part = example.x[:, columns]
            query, key, value = (part @ example.weights[name][head] for name in ("query", "key", "value"))
            outputs.append(torch.softmax(query @ key.T / 2**0.5, dim=1) @ value)
        expected = torch.cat(outputs, dim=1) @ example.weights["output"]
        torch.testing.assert_close(example.trace().output, expected)
        assert example.trace().output.shape == (8, 4)

    @pytest.mark.parametrize("name", ["song", "song-causal"])
    def test_song_uses_the_given_keys(self, name):
        example = load(name)
        query = example.x @ example.weights["query"][0]
        key, value = example.given["key", 0].values, example.x @ example.weights["value"][0]
        mask = Causal() if name == "song-causal" else None
        output = attention(query[None, None], key[None, None], value[None, None], mask=mask)[0, 0]
        torch.testing.assert_close(example.trace().output, output, rtol=1e-10, atol=1e-12)
        assert example.trace().step("key").formula == "K = given"
        assert example.tokens == ("List", "new", "ideas", "for", "a", "song")

    @pytest.mark.parametrize("name", BUILT_IN)
    def test_as_a_file_to_edit_it_computes_the_same(self, name):
        example = load(name)
        written = example.to_toml()
        again = parse(written)
        assert written.startswith(example.source.splitlines()[0])  # comments stay
        assert again.drawn == ()
        assert example.drawn
        for step, same in zip(example.trace(), again.trace(), strict=True):
            assert torch.equal(step.values, same.values)
        assert len(again.claims) == len(example.claims)

    def test_variants_of_a_text_say_the_same_but_for_what_they_vary(self):
        def claims(name):
            fields_of_claims = (vars(claim) | {"position": 0} for claim in load(name).claims)
            plain = [{**fields, "values": fields["values"] and fields["values"].printed} for fields in fields_of_claims]
            return [fields for fields in plain if fields["step"] != "mask"]

        for one, other in (("song", "song-causal"), ("two-heads", "two-heads-projected")):
            assert claims(one) == claims(other)
            assert torch.equal(load(one).x, load(other).x)
            assert load(one).tokens == load(other).tokens


class TestWhatCanBeStated:
    def test_only_x_is_needed(self):
        example = parse(X, title="mine")
        assert (example.title, example.heads, example.split, example.mask) == ("mine", 1, "project", None)
        assert example.tokens == ("token 1", "token 2", "token 3")
        assert example.drawn == ("query", "key", "value", "output")

    def test_drawn_weights_follow_the_seed_and_print_exactly_in_one_digit(self):
        first, same, other = (parse(f"seed = {seed}\nheads = 2\n{X}") for seed in (3, 3, 4))
        for name, matrix in first.weights.items():
            assert torch.equal(matrix, same.weights[name])
            assert torch.equal(matrix, (matrix * 10).round() / 10)
        assert not torch.equal(first.weights["query"], other.weights["query"])

    def test_stating_one_matrix_leaves_the_others_as_drawn(self):
        drawn, stated = parse(X), parse(X + "[weights]\nquery = [[1, 2], [3, 4]]")
        assert torch.equal(stated.weights["query"][0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double())
        for name in ("key", "value", "output"):
            assert torch.equal(stated.weights[name], drawn.weights[name])

    def test_widths_follow_from_what_is_stated(self):
        text = X + "[weights]\nkey = [[1, 2, 3], [4, 5, 6]]\nvalue = [[1], [2]]\noutput = [[1, 2, 3, 4]]"
        layer = parse(text).layer()
        assert (layer.key_dim, layer.value_dim, layer.output_dim) == (3, 1, 4)
        layer = parse("heads = 2\nx = [[1, 2, 3]]\n[given]\nquery = [[[1, 2]], '_']").layer()
        assert (layer.key_dim, layer.value_dim) == (2, 2)

    def test_weights_are_used_as_x_times_w_head_by_head(self):
        text = f"heads = 2\nsplit = 'slice'\n{X}[weights]\nquery = [[[2.0, 0.5]], [[-1.0, 3.0]]]"
        traced = parse(text).trace()
        assert traced.step("query", 1).values[0].tolist() == pytest.approx([-0.7, 2.1])
        layer = parse(text).layer()
        assert isinstance(layer, MultiHeadAttention)
        assert layer.head(1).query_weight.tolist() == [[-1.0, 3.0]]

    def test_masks(self):
        causal = parse(X + 'mask = "causal"').trace().step("weights").values
        for mask in (
            "[[true, false, false], [true, true, false], [true, true, true]]",
            "[[0, -inf, -inf], [0, 0, -inf], [0.0, 0, 0]]",
        ):
            assert torch.equal(parse(X + f"mask = {mask}").trace().step("weights").values, causal)
        assert parse(X + 'mask = "none"').mask is None
        empty = parse(X + "mask = [[false, false, false], [true, true, false], [true, true, true]]").trace()
        assert (empty.output[0] == 0).all()

    def test_given_cells_that_are_blank_are_computed(self):
        computed = parse(X).trace().step("scores").values
        given = parse(X + '[given]\nscores = [[9, "_", "_"], ["_", "_", "_"], ["_", "_", "_"]]').trace()
        expected = computed.clone()
        expected[0, 0] = 9
        assert torch.equal(given.step("scores").values, expected)
        assert torch.equal(given.step("scaled").values, expected / 2**0.5)
        assert given.step("scores").how == "partly"
        assert given.step("scores").shapes == "partly given: (3, 2) × (2, 3) = (3, 3)"
        closed = X + 'mask = "causal"\n[given]\nmasked = [[1, -inf, -inf], ["_", 2, -inf], ["_", "_", "_"]]'
        assert parse(closed).trace().step("weights").values[0].tolist() == [1, 0, 0]

    def test_a_projection_that_is_given_in_part_stays_open_as_a_file(self):
        text = X + '[given]\nkey = [[1.0, 2.0], [3.0, "_"], ["_", "_"]]'
        again = parse(parse(text).to_toml())
        assert "key" not in again.stated
        assert [f.message for f in check(again).findings] == [f.message for f in check(parse(text)).findings]
        assert torch.equal(again.trace().output, parse(text).trace().output)

    def test_numbers_are_exact(self):
        assert parse("x = [[0.1, 1e-3, 7, -2.5]]").x.tolist() == [[0.1, 1e-3, 7.0, -2.5]]


REFUSED = {
    "x = [[1, 2], [3]]": "x: row 2 has 1 cells, but row 1 has 2",
    "x = [1, 2]": "x: row 1 is 1; expected a list of cells",
    "x = []": "x is []; expected a list of rows",
    "x = [[]]": "x: row 1 is []; expected a list of cells",
    "x = [[nan]]": "x: row 1, column 1 is NaN; expected a finite number",
    "x = [[1e-9999999, 1]]": "a number in it has too large an exponent",
    "x = [[0e1000001, 1]]": "a number in it has too large an exponent",
    "title = 1e99999999999999999999": "a number in it has too large an exponent",
    "x = [[1e200], [1]]\n[weights]\nquery = [[1e200]]": "step 'query' has numbers that are too large to be computed",
    "x = [[1e300, 1e300], [1e300, 1e300]]": "has numbers that are too large to be computed",
    "x = [[1e999]]": "x: row 1, column 1 is 1E+999; expected a finite number",
    "x = [[-inf]]": "x: row 1, column 1 is -Infinity; expected a finite number",
    "x = [[true]]": "x: row 1, column 1 is True; expected a number",
    "x = [['_']]": "x: row 1, column 1 is '_'; expected a number",
    "x = [[1999-12-31]]": "x: row 1, column 1 is datetime.date(1999, 12, 31); expected a number",
    "x = 3": "x is 3; expected a list of rows",
    "title = 'a'": "x is missing; expected the input, a list of rows, one for each token",
    X + "tokens = []": "tokens is []; expected a list of 3 texts, one for each row of x",
    X + "tokens = ['a']": "tokens has 1 entries, but x has 3 rows",
    X + "tokens = ['a', 'b', 3]": "tokens: entry 3 is 3; expected text in quotes",
    X + "toknes = ['a']": "the file has an unknown key 'toknes'; did you mean 'tokens'?",
    X + "zzz = 1": "the file has an unknown key 'zzz'; expected one of title, tokens, x, heads",
    X + "title = 3": "title is 3; expected text in quotes",
    X + "heads = 0": "heads is 0; expected a whole number, 1 or more",
    X + "heads = 2.0": "heads is 2.0; expected a whole number, 1 or more",
    X + "heads = 3": "x has 2 columns, which 3 heads do not divide; state weights.query",
    X + "heads = 3\nsplit = 'slice'": 'x has 2 columns, which 3 heads cannot slice equally (split = "slice")',
    X + "split = 'sliced'": "split is 'sliced'; expected \"project\" or \"slice\"",
    X + "seed = -1": "seed is -1; expected a whole number, 0 or more",
    X + "mask = 'casual'": "mask is 'casual'; did you mean 'causal'?",
    X + "mask = [[true]]": "mask is (1, 1); expected (3, 3), a row and a column for each token",
    X + "mask = [[1, 0, 0]]": "mask: row 1, column 1 is 1; expected all true and false, or all 0 and -inf",
    X + "mask = [[0, false, 0]]": "mask: row 1, column 2 is False; expected all true and false, or all 0 and -inf",
    X + "weights = 3": "weights is 3; expected a table, [weights]",
    X + "[weights]\nquerry = [[1]]": "weights has an unknown key 'querry'; did you mean 'query'?",
    X + "[weights]\nquery = [[1, 2], [3, 4], [5, 6]]":
        "weights.query is (3, 2): X (3, 2) × (3, 2) cannot be multiplied; expected (2, 2)",
    X + "[weights]\nquery = [[1, 2], [3, 4]]\nkey = [[1], [2]]":
        "weights.key is (2, 1), but Q and K must have equal columns; expected (2, 2)",
    X + "[weights]\noutput = [[1, 2, 3]]":
        "weights.output is (1, 3): the heads' outputs side by side (3, 2) × (1, 3) cannot be multiplied; expected (2, ",
    X + "heads = 2\nsplit = 'slice'\n[weights]\nquery = [[[1], [2]], [[1], [2]]]":
        "weights.query is (2, 1): a slice of X (3, 1) × (2, 1) cannot be multiplied; expected (1, 1)",
    X + "heads = 2\n[weights]\nquery = [[1], [2]]": "weights.query: head 1: row 1 is 1; expected a list of cells",
    X + "heads = 2\n[weights]\nquery = [[[1], [2]]]":
        "weights.query has 1 entries; expected 2 matrices, one for each head",
    X + "heads = 2\n[weights]\nquery = [[[1], [2]], [[1, 2], [3, 4]]]":
        "weights.query: head 2 is (2, 2), but head 1 is (2, 1)",
    X + "[given]\nkeys = [[1]]": "given has an unknown key 'keys'; did you mean 'key'?",
    X + "[given]\nscores = [[1, 2], [3, 4]]": "given.scores is (2, 2); expected (3, 3), rows by columns",
    X + "[given]\nmasked = [[1, 2, 3], [3, 4, 5], [6, 7, 8]]": "given.masked: this calculation has no such step",
    X + "claims = 3": "claims is 3; expected tables, [[claims]]",
    X + "claims = [3]": "claim 1 is 3; expected a table, [[claims]]",
    X + "[[claims]]\nsum = 'rows'": "claim 1: step is None; expected one of input, slice",
    X + "[[claims]]\nstep = 'wieghts'\nsum = 'rows'": "claim 1: step is 'wieghts'; did you mean 'weights'?",
    X + "[[claims]]\nstep = 'weights'": "claim 1 (weights): expected one of values, shape, sum, count, found none",
    X + "[[claims]]\nstep = 'weights'\nsum = 'rows'\ncount = 1":
        "claim 1 (weights): expected one of values, shape, sum, count, found sum, count",
    X + "[[claims]]\nstep = 'weights'\nsum = 'all'":
        "claim 1 (weights): sum is 'all'; expected \"rows\" or \"columns\"",
    X + "[[claims]]\nstep = 'weights'\ncount = 1.5":
        "claim 1 (weights): count is 1.5; expected a whole number, 0 or more",
    X + "[[claims]]\nstep = 'weights'\nshape = [3]": "claim 1 (weights): shape is [3]; expected two whole numbers",
    X + "[[claims]]\nstep = 'weights'\nvalues = [[1], [1, 2]]":
        "claim 1 (weights): values: row 2 has 2 cells, but row 1 has 1",
    X + "[[claims]]\nstep = 'weights'\nvalues = [['x']]":
        "claim 1 (weights): values: row 1, column 1 is 'x'; expected a number, or \"_\" for a blank",
    X + "[[claims]]\nstep = 'weights'\nvalues = [[inf]]":
        "claim 1 (weights): values: row 1, column 1 is Infinity; expected a finite number or -inf",
    X + "[[claims]]\nstep = 'weights'\nhead = 2\nsum = 'rows'":
        "claim 1 (weights): head is 2; expected a whole number from 1 to 1",
    X + "[[claims]]\nstep = 'concat'\nhead = 1\nshape = [1, 1]":
        "claim 1 (concat): head is 1, but there is one concat for all heads; leave head out",
    X + "heads = 2\n[[claims]]\nstep = 'query'\nvalues = [[1]]":
        "claim 1 (query): each of the 2 heads has one; give head, from 1 to 2",
    X + "[[claims]]\nstep = 'query'\nvalues = [[1]]\ntolerance = -1":
        "claim 1 (query): tolerance is -1; expected a number, 0 or more",
    X + "[[claims]]\nstep = 'query'\nvalue = [[1]]": "claim 1 has an unknown key 'value'; did you mean 'values'?",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.removeprefix(X)[:40])
def test_what_is_refused(text, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="mine.toml: ") as caught:
        load(path)
    assert REFUSED[text] in str(caught.value)
    assert "\n" not in str(caught.value)


class TestFilesThatCannotBeRead:
    def test_missing(self, tmp_path):
        with pytest.raises(ValueError, match="there is no such file"):
            load(tmp_path / "none.toml")
        with pytest.raises(ValueError, match="neither a file nor one of the built-in examples, two-heads, two-heads-p"):
            load("two-head")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (bytes(range(256)), "not a text file (it is not UTF-8)"),
            (b"\x00\x01", "not a TOML file"),
            (b"x = [[1,", "not a TOML file"),
            (b"x = " + b"[" * 5000, "nested too deeply; expected a worked example"),
            (b"x = [[" + b"9" * 5000 + b"]]", "Exceeds the limit (4300 digits)"),
            (b"x = [[1" + b"0" * 400 + b"]]", "x: row 1, column 1 is 1000"),
            (b"", "x is missing"),
        ],
        ids=["junk", "nul", "cut off", "deep", "long", "large", "empty"],
    )
    def test_junk(self, content, says, tmp_path):
        path = tmp_path / "junk.toml"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="junk.toml: ") as caught:
            load(path)
        assert says in str(caught.value)

    def test_a_file_that_never_ends(self):
        with pytest.raises(ValueError, match="/dev/zero: larger than 16 MiB; expected a worked example"):
            load("/dev/zero")

    def test_a_byte_order_mark_is_none_of_the_text(self, tmp_path):
        (tmp_path / "notepad.toml").write_bytes(b"\xef\xbb\xbf" + X.encode())
        assert load(tmp_path / "notepad.toml").heads == 1

    def test_a_folder(self, tmp_path):
        with pytest.raises(ValueError, match="a folder; expected a TOML file"):
            load(tmp_path)
