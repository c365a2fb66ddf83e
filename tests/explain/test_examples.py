"""Tests of worked examples in TOML files: built-in examples, accepted contents and rejected files."""

import pytest
import torch

from clearhead import Causal, MultiHeadAttention, attention, check, explain
from clearhead.explain import BUILT_IN, load, parse, render
from support.refused_examples import REFUSED, X


def test_public_names_are_sorted_and_importable():
    for package in (explain, render):
        assert package.__all__ == sorted(package.__all__, key=lambda name: (not name.isupper(), name))
        assert all(hasattr(package, name) for name in package.__all__)
    assert set(explain.__all__) <= set(dir(explain))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = explain.nothing


class TestBuiltIn:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_every_step_is_finite_and_the_last_equals_the_layer(self, name):
        example = load(name)
        traced = example.trace()
        for step in traced:
            assert (step.values.isfinite() | (step.values == -torch.inf)).all()
            assert step.values.isfinite().all() or step.name == "masked"
        if not example.given:
            memory = None if example.memory is None else example.memory[None]
            output = example.layer()(example.x[None], memory, mask=example.mask)[0]
            torch.testing.assert_close(traced.output, output, rtol=1e-12, atol=1e-13)

    def test_two_heads_equals_plain_products(self):
        """Repeat the six steps of the text as plain products."""
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
    def test_to_toml_preserves_the_calculation(self, name):
        example = load(name)
        written = example.to_toml()
        again = parse(written)
        assert written.startswith(example.source.splitlines()[0])  # comments stay
        assert again.drawn == ()
        assert bool(example.drawn) == (name in ("two-heads", "two-heads-projected", "song", "song-causal"))
        for step, same in zip(example.trace(), again.trace(), strict=True):
            assert torch.equal(step.values, same.values)
        assert len(again.claims) == len(example.claims)

    def test_variants_of_a_text_have_the_same_claims(self):
        def claims(name):
            fields_of_claims = (vars(claim) | {"position": 0} for claim in load(name).claims)
            plain = [{**fields, "values": fields["values"] and fields["values"].printed} for fields in fields_of_claims]
            return [fields for fields in plain if fields["step"] != "mask"]

        for one, other in (("song", "song-causal"), ("two-heads", "two-heads-projected")):
            assert claims(one) == claims(other)
            assert torch.equal(load(one).x, load(other).x)
            assert load(one).tokens == load(other).tokens


class TestFileContents:
    def test_only_x_is_required(self):
        example = parse(X, title="mine")
        assert (example.title, example.heads, example.split, example.mask) == ("mine", 1, "project", None)
        assert example.tokens == ("token 1", "token 2", "token 3")
        assert example.drawn == ("query", "key", "value", "output")

    def test_drawn_weights_depend_on_the_seed_and_have_one_decimal(self):
        first, same, other = (parse(f"seed = {seed}\nheads = 2\n{X}") for seed in (3, 3, 4))
        for name, matrix in first.weights.items():
            assert torch.equal(matrix, same.weights[name])
            assert torch.equal(matrix, (matrix * 10).round() / 10)
        assert not torch.equal(first.weights["query"], other.weights["query"])

    def test_stating_one_matrix_does_not_change_the_others(self):
        drawn, stated = parse(X), parse(X + "[weights]\nquery = [[1, 2], [3, 4]]")
        assert torch.equal(stated.weights["query"][0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double())
        for name in ("key", "value", "output"):
            assert torch.equal(stated.weights[name], drawn.weights[name])

    def test_widths_follow_from_stated_matrices(self):
        text = X + "[weights]\nkey = [[1, 2, 3], [4, 5, 6]]\nvalue = [[1], [2]]\noutput = [[1, 2, 3, 4]]"
        layer = parse(text).layer()
        assert (layer.key_dim, layer.value_dim, layer.output_dim) == (3, 1, 4)
        layer = parse("heads = 2\nx = [[1, 2, 3]]\n[given]\nquery = [[[1, 2]], '_']").layer()
        assert (layer.key_dim, layer.value_dim) == (2, 2)

    def test_each_head_computes_x_times_its_weights(self):
        text = f"heads = 2\nsplit = 'slice'\n{X}[weights]\nquery = [[[2.0, 0.5]], [[-1.0, 3.0]]]"
        traced = parse(text).trace()
        assert traced.step("query", 1).values[0].tolist() == pytest.approx([-0.7, 2.1])
        layer = parse(text).layer()
        assert isinstance(layer, MultiHeadAttention)
        assert layer.head(1).query_weight.tolist() == [[-1.0, 3.0]]

    def test_causal_boolean_and_additive_masks_are_equivalent(self):
        causal = parse(X + 'mask = "causal"').trace().step("weights").values
        for mask in (
            "[[true, false, false], [true, true, false], [true, true, true]]",
            "[[0, -inf, -inf], [0, 0, -inf], [0.0, 0, 0]]",
        ):
            assert torch.equal(parse(X + f"mask = {mask}").trace().step("weights").values, causal)
        assert parse(X + 'mask = "none"').mask is None
        empty = parse(X + "mask = [[false, false, false], [true, true, false], [true, true, true]]").trace()
        assert (empty.output[0] == 0).all()

    def test_blank_cells_of_given_matrices_are_computed(self):
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

    def test_to_toml_does_not_state_weights_of_a_given_projection(self):
        text = X + '[given]\nkey = [[1.0, 2.0], [3.0, "_"], ["_", "_"]]'
        again = parse(parse(text).to_toml())
        assert "key" not in again.stated
        assert [f.message for f in check(again).findings] == [f.message for f in check(parse(text)).findings]
        assert torch.equal(again.trace().output, parse(text).trace().output)

    def test_numbers_are_exact(self):
        assert parse("x = [[0.1, 1e-3, 7, -2.5]]").x.tolist() == [[0.1, 1e-3, 7.0, -2.5]]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.removeprefix(X)[:40])
def test_rejects_invalid_examples(text, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="mine.toml: ") as caught:
        load(path)
    assert REFUSED[text] in str(caught.value)
    assert "\n" not in str(caught.value)


class TestUnreadableFiles:
    def test_rejects_missing_file(self, tmp_path):
        with pytest.raises(ValueError, match="there is no such file"):
            load(tmp_path / "none.toml")
        with pytest.raises(ValueError, match="neither a file nor one of the built-in examples, two-heads, two-heads-p"):
            load("two-head")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (bytes(range(256)), "not a text file (it is not UTF-8)"),
            (b"\x00\x01", "not a TOML file"),
            (b"x = [[1,", "not a TOML file"),
            (b"x = " + b"[" * 5000, "nested too deeply; expected a worked example"),
            (b"x = [[" + b"9" * 5000 + b"]]", "Exceeds the limit (4300 digits)"),
            (b"x = [[1" + b"0" * 400 + b"]]", "x: row 1, column 1 is 1000"),
            (b"", "x is missing"),
        ],
        ids=["binary", "null bytes", "truncated", "deeply nested", "many digits", "large number", "empty"],
    )
    def test_rejects_malformed_content(self, content, message, tmp_path):
        path = tmp_path / "junk.toml"
        path.write_bytes(content)
        with pytest.raises(ValueError, match="junk.toml: ") as caught:
            load(path)
        assert message in str(caught.value)

    def test_rejects_endless_file(self):
        with pytest.raises(ValueError, match="/dev/zero: larger than 16 MiB; expected a worked example"):
            load("/dev/zero")

    def test_byte_order_mark_is_ignored(self, tmp_path):
        (tmp_path / "notepad.toml").write_bytes(b"\xef\xbb\xbf" + X.encode())
        assert load(tmp_path / "notepad.toml").heads == 1

    def test_rejects_folder(self, tmp_path):
        with pytest.raises(ValueError, match="a folder; expected a TOML, Markdown or LaTeX file"):
            load(tmp_path)
