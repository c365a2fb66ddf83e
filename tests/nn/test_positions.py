"""Tests of position encodings: rotary, its context scalings, sinusoidal positions and the slopes of ALiBi."""

import math

import pytest
import torch

from clearhead.nn import LinearScaling, Llama3, Rotary, YaRN, sinusoidal
from clearhead.ops.alibi import alibi_slopes
from support.numerics import assert_matches
from support.plain_layer import rotate

POSITIONS = torch.tensor([0, 1, 5, 1000, 3, 17, 2])


class TestRotary:
    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    @pytest.mark.parametrize("dims", [None, 6, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    def test_rotation_matches_complex_multiplication(self, layout, dims, dtype):
        x = torch.randn(2, 3, 7, 10, dtype=dtype)
        got = Rotary(base=100.0, layout=layout, dims=dims)(x, POSITIONS)
        exact = torch.stack([rotate(head.double(), POSITIONS, 100.0, layout, dims) for head in x.flatten(0, 1)])
        naive = torch.stack([rotate(head, POSITIONS, 100.0, layout, dims) for head in x.flatten(0, 1)])
        assert_matches(got.flatten(0, 1), exact, naive)
        if dims is not None:
            assert torch.equal(got[..., dims:], x[..., dims:])

    def test_positions_may_differ_between_sequences(self):
        x, positions = torch.randn(2, 3, 7, 10), torch.stack([POSITIONS, POSITIONS + 3])
        both = Rotary()(x, positions)
        for sequence in range(2):
            assert torch.equal(both[sequence], Rotary()(x[sequence : sequence + 1], positions[sequence])[0])

    @pytest.mark.parametrize("layout", ["half", "interleaved"])
    def test_scores_depend_only_on_distance_at_a_million_tokens(self, layout):
        query, key = torch.randn(2, 1, 1, 1, 64)
        rope = Rotary(layout=layout)

        def score(position: int) -> torch.Tensor:
            positions = torch.tensor([position])
            return (rope(query, positions) * rope(key, positions + 3)).sum()

        torch.testing.assert_close(score(0), score(1_000_000), rtol=1e-4, atol=1e-4)

    def test_layouts_differ_only_in_the_order_of_columns(self):
        x = torch.randn(1, 1, 7, 10)
        order = torch.arange(10).view(2, 5).T.flatten()  # 0 5 1 6 2 7 …
        interleaved = Rotary(layout="interleaved")(x[..., order], POSITIONS)
        assert torch.equal(interleaved, Rotary()(x, POSITIONS)[..., order])

    @pytest.mark.parametrize(
        ("scaling", "expected"),
        [
            (
                LinearScaling(4.0),
                [0.25, 0.079056941, 0.025, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001, 7.9056947e-05],
            ),
            (
                Llama3(8.0, original_length=8192),
                [1.0, 0.31622776, 0.1, 0.031622779, 0.0099999998, 0.0031622779, 0.00021360758, 3.9528473e-05],
            ),
            (
                YaRN(4.0, original_length=4096),
                [1.0, 0.31622776, 0.1, 0.025693506, 0.0062499996, 0.0013834966, 0.00025000001, 7.9056947e-05],
            ),
            (
                YaRN(4.0, original_length=64),
                [1.0, 0.23717082, 0.049999997, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025000001, 7.9056947e-05],
            ),
        ],
        ids=["LinearScaling", "Llama3", "YaRN", "YaRN, short original length"],
    )
    def test_scaled_frequencies_match_transformers(self, scaling, expected):
        """The expected values are float32 results of transformers for a head of 16 columns and base 10,000."""
        assert Rotary(scaling=scaling).frequencies(16).tolist() == pytest.approx(expected, rel=3e-7)

    def test_yarn_scales_queries_and_keys_by_the_attention_factor(self):
        x = torch.randn(1, 1, 7, 10)
        ratio = Rotary(scaling=YaRN(4.0))(x, POSITIONS).norm(dim=-1) / x.norm(dim=-1)
        torch.testing.assert_close(ratio, torch.full_like(ratio, 0.1 * math.log(4.0) + 1))
        assert YaRN(0.5).attention_factor == 1.0


class TestSinusoidal:
    def test_matches_the_formula_of_the_paper(self):
        got = sinusoidal(7, 10)
        assert got.shape == (7, 10)
        assert got.dtype == torch.float32
        for position in range(7):
            for pair in range(5):
                angle = position / 10_000 ** (2 * pair / 10)
                assert got[position, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-7)
                assert got[position, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)

    def test_accepts_odd_widths_and_position_tensors(self):
        assert torch.equal(sinusoidal(7, 11)[:, :1], sinusoidal(7, 10)[:, :1])
        assert torch.equal(sinusoidal(POSITIONS, 10)[1], sinusoidal(2, 10)[1])
        assert sinusoidal(POSITIONS.expand(3, -1), 10).shape == (3, 7, 10)
        assert sinusoidal(0, 10).shape == (0, 10)


class TestAlibiSlopes:
    def test_powers_of_two_give_a_geometric_sequence(self):
        assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
        assert alibi_slopes(1).tolist() == [2.0**-8]

    def test_other_head_counts_take_every_second_slope_of_the_next_power_of_two(self):
        slopes = alibi_slopes(12)
        assert torch.equal(slopes[:8], alibi_slopes(8))
        assert torch.equal(slopes[8:], alibi_slopes(16)[0:8:2])

    @pytest.mark.parametrize("heads", range(1, 70))
    def test_slopes_are_distinct_and_between_0_and_1(self, heads):
        slopes = alibi_slopes(heads)
        assert slopes.shape == slopes.unique().shape == (heads,)
        assert 0 < slopes.min() <= slopes.max() < 1


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Rotary(base=0.5), ValueError, "Rotary: base is 0.5; expected a finite number above 1"),
        (lambda: Rotary(base="big"), TypeError, "Rotary: base is 'big'; expected a finite number"),
        (lambda: Rotary(layout="both"), ValueError, "Rotary: layout is 'both'; expected 'half' or 'interleaved'"),
        (lambda: Rotary(dims=3), ValueError, "Rotary: dims is 3; expected an even number, as columns are"),
        (lambda: Rotary(dims=0), ValueError, "Rotary: dims is 0; expected a whole number of at least 2"),
        (
            lambda: Rotary(scaling=4.0),
            TypeError,
            "Rotary: scaling is 4.0; expected LinearScaling, Llama3, YaRN or None",
        ),
        (
            lambda: Rotary()(torch.ones(1, 1, 2, 3), torch.arange(2)),
            ValueError,
            "key_dim is 3; expected an even number",
        ),
        (lambda: LinearScaling(0.0), ValueError, "LinearScaling: factor is 0.0; expected a finite number above 0"),
        (lambda: YaRN("4"), TypeError, "YaRN: factor is '4'; expected a finite number"),
        (
            lambda: Llama3(8.0, low_freq_factor=4.0),
            ValueError,
            "Llama3: low_freq_factor is 4.0 and high_freq_factor 4.0; expected low_freq_factor below",
        ),
        (
            lambda: YaRN(8.0, beta_slow=32.0),
            ValueError,
            "YaRN: beta_slow is 32.0 and beta_fast 32.0; expected beta_slow below",
        ),
        (lambda: sinusoidal(3, 4, base=0.0), ValueError, "base is 0.0; expected a finite number above 1"),
        (lambda: alibi_slopes(0), ValueError, "heads is 0; expected a whole number of at least 1"),
        (lambda: sinusoidal(3, 0), ValueError, "dim is 0; expected a whole number of at least 1"),
        (lambda: sinusoidal(2.5, 4), TypeError, "positions is 2.5; expected a whole number"),
    ],
)
def test_rejects_invalid_arguments(build, error, message):
    with pytest.raises(error) as caught:
        build()
    assert message in str(caught.value)
