"""Tests of the conversion of the lazy matrix by numpy, torch, copy and pickle."""

import copy
import pickle

import numpy as np
import torch

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

    def test_deepcopy_and_pickle_keep_the_weights(self):
        weights = sample()[-1]
        for copied in (copy.deepcopy(weights), pickle.loads(pickle.dumps(weights))):
            assert torch.equal(copied.dense(), weights.dense())
