"""Tests of the cells that a NaN in the input reaches."""

import pytest
import torch

from clearhead import attention

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice")  # of NumPy, in Triton's interpreter
NAN_SOURCES = ["query", "key", "value", "bias"]


@pytest.mark.parametrize(
    ("source", "backend"),
    [(source, backend) for source in NAN_SOURCES for backend in ("sdpa", "streaming", "reference", "triton")]
    + [("sinks", backend) for backend in ("streaming", "reference", "triton")],
)
@pytest.mark.parametrize("kv_len", [5, 611])
def test_nan_reaches_only_its_rows(source, kv_len, backend):
    """Checks the table in docs/reference/numerics.md: all other rows stay finite."""
    arguments = {
        "query": torch.randn(1, 2, 5, 7),
        "key": torch.randn(1, 2, kv_len, 7),
        "value": torch.randn(1, 2, kv_len, 7),
    }
    arguments |= {"bias": torch.randn(1, 2, 5, kv_len)} if source == "bias" else {}
    arguments |= {"sinks": torch.randn(2)} if source == "sinks" else {}
    cell = {"query": (0, 0, 3, 2), "key": (0, 0, 4, 2), "value": (0, 0, 4, 2), "bias": (0, 0, 3, 4), "sinks": (0,)}
    arguments[source][cell[source]] = torch.nan
    output, weights = attention(**arguments, backend=backend, return_weights=True)
    assert output[0, 1].isfinite().all()
    assert weights[0, 1].isfinite().all()
    rows = [3] if source in ("query", "bias") else [0, 1, 2, 3, 4]
    others = [row for row in range(5) if row not in rows]
    assert output[0, 0, others].isfinite().all()
    assert weights.lse[0, 0, others].isfinite().all()
    assert weights[0, 0][others].isfinite().all()
    reached, lse = output[0, 0, rows], weights.lse[0, 0, rows]
    if source == "value":
        assert reached[:, 2].isnan().all()
        assert reached[:, [0, 1, 3, 4, 5, 6]].isfinite().all()
        assert lse.isfinite().all()
        assert weights[0, 0].isfinite().all()
        return
    if (source, backend) == ("query", "sdpa"):
        assert reached.isnan().all() or (reached == 0).all()
        assert lse.isnan().all() or (lse == 0).all()
    else:
        assert reached.isnan().all()
        assert lse.isnan().all()
    reached_weights = weights[0, 0][rows]
    assert reached_weights[:, 4].isnan().all()
    peaks = weights.peak()
    assert peaks[0, 0, rows].isnan().all()
    assert peaks[0, 0, others].isfinite().all()
    assert peaks[0, 1].isfinite().all()


def test_nan_in_a_bias_does_not_hide_its_key():
    bias = torch.zeros(5, 5)
    bias[3, 2] = torch.nan
    x = torch.randn(1, 1, 5, 7)
    _, weights = attention(x, x, x, bias=bias, backend="reference", return_weights=True)
    assert weights.scores[0, 0, 3, 2].isnan()
    assert weights.diagonal(-1)[0, 0, 3].isnan()
