"""Tests of the conversion of the lazy matrix by numpy, torch, copy and pickle."""

import copy
import pickle

import numpy as np
import torch

from clearhead import AttentionWeights
from clearhead.weights.mean_heads import MeanHeads
from support.weights import sample


class TestConversionToTensors:
    def test_numpy_gets_the_dense_matrix(self):
        weights = sample()[-1]
        array = np.asarray(weights)
        assert array.dtype == np.float32
        assert np.array_equal(array, weights.dense().numpy())
        assert np.asarray(weights, dtype=np.float64).dtype == np.float64

    def test_torch_functions_and_methods_use_the_dense_matrix(self):
        weights = sample()[-1]
        dense = weights.dense()
        assert torch.equal(torch.stack([weights, weights]), torch.stack([dense, dense]))
        assert torch.equal(torch.cat((weights, dense), dim=1), torch.cat((dense, dense), dim=1))
        torch.testing.assert_close(weights.mean(dim=1), dense.mean(dim=1))  # reductions and products are streamed
        torch.testing.assert_close(weights.sum(dim=-1, keepdim=True), dense.sum(dim=-1, keepdim=True))
        torch.testing.assert_close(torch.mean(weights, dim=1), dense.mean(dim=1))
        assert torch.equal(weights * 2 - weights, dense * 2 - dense)
        assert torch.equal(1 - weights, 1 - dense)
        assert torch.equal(weights > 0.1, dense > 0.1)
        torch.testing.assert_close(weights @ dense.mT, dense @ dense.mT)
        assert torch.equal(dense + weights, dense + dense)
        assert torch.equal(weights == 0, dense == 0)
        assert torch.equal(abs(-weights), dense)
        assert weights.argmax(dim=-1).shape == (2, 6, 13)
        assert len({weights, weights}) == 1
        assert hasattr(weights, "numpy")
        assert weights.numel() == dense.numel()

    def test_to_another_dtype_returns_a_tensor(self):
        weights = sample()[-1]
        other = torch.zeros(1, dtype=torch.float64)
        for converted, dtype in (
            (weights.to(torch.float16), torch.float16),
            (weights.to("cpu", torch.float64), torch.float64),
            (weights.to(dtype=torch.bfloat16, non_blocking=True), torch.bfloat16),
            (weights.to("cpu", dtype=torch.int64), torch.int64),
            (weights.to(other), torch.float64),
            (weights.to(sample(dtype=torch.float64)[-1]), torch.float64),
        ):
            assert torch.equal(converted, weights.dense().to(dtype))
        for matrix in (weights.mean_heads(), weights.scaled(torch.ones(17))):
            assert torch.equal(matrix.to(torch.float16), matrix.dense().half())

    def test_to_the_same_dtype_stays_lazy(self):
        weights = sample()[-1]
        moved = [weights.to(torch.float32), weights.to(device="cpu"), weights.to("cpu", None), weights.to(weights.lse)]
        for matrix in (*moved, weights.to("cpu", copy=True), weights.to(None), weights.cpu()):
            assert isinstance(matrix, AttentionWeights)
            assert torch.equal(matrix.dense(), weights.dense())
        assert moved[0].query.data_ptr() == weights.query.data_ptr()
        assert weights.to("cpu", copy=True).query.data_ptr() != weights.query.data_ptr()
        assert isinstance(weights.mean_heads(2).to("cpu"), MeanHeads)
        assert torch.equal(weights.mean_heads(2).to("cpu").dense(), weights.mean_heads(2).dense())

    def test_data_and_is_cuda_match_a_tensor(self):
        weights = sample(requires_grad=True)[-1]
        for matrix in (weights, weights.mean_heads(), weights.scaled(torch.ones(17))):
            assert matrix.requires_grad
            assert type(matrix.data) is type(matrix)
            assert not matrix.data.requires_grad
            assert not matrix.data.dense().requires_grad
            assert matrix.is_cuda is False

    def test_deepcopy_and_pickle_keep_the_weights(self):
        weights = sample()[-1]
        for copied in (copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
            assert torch.equal(copied.dense(), weights.dense())
