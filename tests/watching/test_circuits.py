"""Tests of low-rank matrices, and of the composition of heads."""

import pytest
import torch
from torch import nn

from clearhead import MultiHeadAttention
from clearhead.watching import LowRank, composition, composition_scores, heads


def low_rank(rows=7, rank=3, columns=11, dtype=torch.float64):
    return LowRank(torch.randn(rows, rank, dtype=dtype), torch.randn(rank, columns, dtype=dtype))


class Layers(nn.Sequential):
    """Layers with 2 key heads for 4 query heads, whose values have another width."""

    def __init__(self, layers=3, **options):
        super().__init__(
            *(MultiHeadAttention(13, 4, kv_heads=2, key_dim=3, value_dim=5, **options) for _ in range(layers))
        )


def dense_composition(earlier, later, through):
    writes = (earlier.W_V @ earlier.W_O).double()
    reads = {"Q": later.W_Q @ later.W_K.T, "K": later.W_K @ later.W_Q.T, "V": later.W_V @ later.W_O}[through].double()
    return (writes @ reads).norm() / (writes.norm() * reads.norm())


def test_products():
    matrix, other, x = low_rank(), low_rank(11, 2, 5), torch.randn(2, 11, 4, dtype=torch.float64)
    dense = matrix.dense()
    assert (matrix.shape, matrix.rank, matrix.T.shape) == ((7, 11), 3, (11, 7))
    assert repr(matrix) == "LowRank(7 × 11, rank 3, torch.float64)"
    torch.testing.assert_close(matrix.T.dense(), dense.T)
    torch.testing.assert_close(matrix @ x, dense @ x)
    torch.testing.assert_close(x.mT @ matrix.T, x.mT @ dense.T)
    for left, right in [(matrix, other), (other.T, matrix.T)]:
        product = left @ right
        assert product.rank == 2
        torch.testing.assert_close(product.dense(), left.dense() @ right.dense())
    with pytest.raises(TypeError, match="unsupported operand"):
        matrix @ 3
    with pytest.raises(TypeError):
        3 @ matrix


@pytest.mark.parametrize("rank", [3, 9])  # also a rank that is larger than the matrix
def test_decompositions(rank):
    matrix = low_rank(7, rank, 5)
    dense = matrix.dense()
    torch.testing.assert_close(matrix.norm(), dense.norm())
    expected = torch.linalg.svdvals(dense)
    values = matrix.singular_values()
    torch.testing.assert_close(values[: len(expected)], expected[: len(values)])
    u, s, vh = matrix.svd()
    torch.testing.assert_close(u @ s.diag() @ vh, dense)
    torch.testing.assert_close(s, values)
    torch.testing.assert_close(u.T @ u, torch.eye(u.shape[1], dtype=torch.float64))


def test_eigenvalues_and_trace_of_square_matrices():
    matrix = low_rank(7, 3, 7)
    expected = torch.linalg.eigvals(matrix.dense())
    largest = expected[expected.abs().argsort(descending=True)[:3]]
    order = [values.real.argsort() for values in (matrix.eigenvalues(), largest)]
    torch.testing.assert_close(matrix.eigenvalues().real[order[0]], largest.real[order[1]])
    torch.testing.assert_close(matrix.trace(), matrix.dense().trace())
    torch.testing.assert_close(matrix.copying_score(), expected.sum().real / expected.abs().sum())
    for method in ("eigenvalues", "trace", "copying_score"):
        with pytest.raises(ValueError, match="the matrix is 7 × 11; expected a square matrix"):
            getattr(low_rank(), method)()


def test_norm_of_nearly_orthogonal_factors_is_exact_in_float32():
    basis = torch.linalg.qr(torch.randn(17, 17))[0]
    matrix = LowRank(basis[:, :2].T @ basis[:, :9], basis[:, :9].T + 1e-4 * torch.randn(9, 17))
    exact = (matrix.left.double() @ matrix.right.double()).norm()
    assert float(matrix.norm()) == pytest.approx(float(exact), rel=1e-6)
    assert LowRank(matrix.left.bfloat16(), matrix.right.bfloat16()).norm().dtype == torch.float32


def test_everything_is_differentiable():
    left, right = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 2), (2, 5)))
    for method in ("norm", "trace", "singular_values", "dense", "copying_score"):
        assert torch.autograd.gradcheck(lambda a, b, method=method: getattr(LowRank(a, b), method)(), (left, right))


def test_factors_are_checked():
    with pytest.raises(ValueError, match="left has 3 columns, but right has 2 rows; expected the same"):
        LowRank(torch.ones(5, 3), torch.ones(2, 5))
    with pytest.raises(ValueError, match=r"right has shape \[3\]; expected a matrix"):
        LowRank(torch.ones(5, 3), torch.ones(3))


@pytest.mark.parametrize("through", ["Q", "K", "V"])
@torch.no_grad()
def test_composition_is_that_of_dense_matrices(through, monkeypatch):
    model = Layers()
    found, scores = heads(model), composition_scores(model, through)
    assert scores.shape == (3, 4, 3, 4)
    for first, index in found:
        for second, other in found:
            if first >= second:
                assert scores[first, index, second, other] == 0
                continue
            expected = float(dense_composition(found[first, index], found[second, other], through))
            assert float(composition(found[first, index], found[second, other], through)) == pytest.approx(expected)
            assert float(scores[first, index, second, other]) == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr("clearhead.watching.circuits.MAX_PRODUCTS", 1)
    torch.testing.assert_close(composition_scores(found, through), scores)
    assert not scores.requires_grad


def test_one_layer_composes_with_nothing():
    assert not composition_scores(Layers(1), "K").any()


def test_composition_is_differentiable():
    model = Layers(2)
    found = heads(model)
    composition(found[0, 1], found[1, 2], "K").backward()
    assert model[1].key.weight.grad.abs().sum() > 0


def test_wrong_arguments_of_composition_are_refused():
    found = heads(Layers())
    with pytest.raises(ValueError, match="through is 'O'; expected 'Q', 'K' or 'V'"):
        composition(found[0, 0], found[1, 0], "O")
    with pytest.raises(ValueError, match="earlier is in layer 1; expected a layer before that of later, 0"):
        composition(found[1, 0], found[0, 0], "K")
    with pytest.raises(TypeError, match="later is 3; expected a head"):
        composition(found[0, 0], 3, "K")
    narrow = nn.Sequential(MultiHeadAttention(13, 4, key_dim=3, output_dim=5), MultiHeadAttention(13, 4, key_dim=3))
    with pytest.raises(ValueError, match="the heads write and read vectors of 5 and 13 numbers; expected the same"):
        composition(heads(narrow)[0, 0], heads(narrow)[1, 0], "V")
    with pytest.raises(ValueError, match="the heads write and read vectors of 5 and 13 numbers; expected the same"):
        composition_scores(narrow, "V")
    unequal = nn.Sequential(MultiHeadAttention(12, 4), MultiHeadAttention(12, 3))
    with pytest.raises(ValueError, match="the layers have 3, 4 heads; expected the same number"):
        composition_scores(unequal, "Q")
