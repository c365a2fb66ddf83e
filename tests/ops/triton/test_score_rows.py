"""Tests of the softmax in place, in Triton's interpreter, against the plain formula."""

import pytest
import torch

from clearhead.ops.triton.score_rows import softmax_in_place
from support.numerics import poisoned
from support.score_rows import check_rows, random_scores

KV_LENS, HEADS, KEYS = [0, 1, 37, 70], 3, 71


@pytest.fixture(autouse=True)
def short_steps(monkeypatch):
    """Set steps so short that a row has several."""
    monkeypatch.setattr("clearhead.ops.triton.score_rows.KEYS_PER_STEP", 16)


@pytest.mark.parametrize("factor", [1.0, 1000.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -3.0, -torch.inf]), torch.tensor([900.0, 4.0, 0.0])])
def test_rows_match_the_formula(sinks, factor):
    check_rows(random_scores(KV_LENS, HEADS, KEYS, factor), torch.tensor(KV_LENS), sinks)


def test_keys_before_a_window_have_no_weight():
    scores = random_scores(KV_LENS, HEADS, KEYS)
    scores[..., :33] = -torch.inf
    check_rows(scores, torch.tensor(KV_LENS), None)


def test_nan_stays_in_its_row():
    scores = random_scores([37, 70], HEADS, KEYS)
    scores[0, 1, 5] = torch.nan
    with poisoned():
        rows = softmax_in_place(scores, torch.tensor([37, 70]))
    assert rows.lse.isnan().nonzero().tolist() == rows.entropy.isnan().nonzero().tolist() == [[0, 1]]
    assert scores[0, 1, :37].isnan().all()
    assert scores.isnan().sum() == 37


def test_no_row_gives_empty_results():
    rows = softmax_in_place(torch.empty(0, HEADS, KEYS), torch.empty(0, dtype=torch.int64))
    assert [tuple(result.shape) for result in rows] == [(0, HEADS)] * 3
