"""Tests of calls whose heads are not those of their module: heads that are packed as queries, and any others."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from clearhead.watching import ablate, cut, patch, watch

BATCH, HEADS, KV_HEADS, WIDTH, KV_LEN = 2, 6, 2, 5, 7


class Attention(nn.Module):
    """Attention of one query, whose heads arrive at the operator in different shapes.

    Args:
        arrange: function of the query, and of a mask with heads.
    """

    def __init__(self, arrange=lambda rows: rows):
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.o_proj = nn.Linear(13, HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 13)
        self.k_proj, self.v_proj = nn.Linear(13, KV_HEADS * WIDTH), nn.Linear(13, KV_HEADS * WIDTH)
        self.head_dim, self.arrange = WIDTH, arrange

    def forward(self, x, memory, mask=None):
        query = self.q_proj(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2)
        key, value = (layer(memory).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for layer in (self.k_proj, self.v_proj))
        if mask is not None and mask.shape[1] > 1:
            mask = self.arrange(mask)
        output = scaled_dot_product_attention(self.arrange(query), key, value, mask, enable_gqa=True)
        return self.o_proj(output.reshape(query.shape).transpose(1, 2).flatten(2))


def packed(rows):
    """Return [batch, heads, 1, width] as transformers ≥ 5.23 does for one query and a mask."""
    return rows.reshape(len(rows), KV_HEADS, HEADS // KV_HEADS, -1)


def inputs():
    return torch.randn(BATCH, 1, 13), torch.randn(BATCH, KV_LEN, 13)


MASKS = {
    "none": lambda: None,
    "all heads": lambda: torch.rand(BATCH, 1, 1, KV_LEN) > 0.3,
    "by head": lambda: torch.rand(BATCH, HEADS, 1, KV_LEN) > 0.3,
    "bias by head": lambda: torch.randn(1, HEADS, 1, KV_LEN),
}


def watched(model, given, **options):
    with torch.no_grad(), watch(model, **options) as seen:
        output = model(*given)
    return seen[0].calls[0], output


@pytest.mark.parametrize("mask", MASKS)
def test_packed_heads_are_seen_as_heads_of_one_query(mask):
    plain, model, given = Attention(), Attention(packed), (*inputs(), MASKS[mask]())
    lazy, output = watched(model, given, values=True)
    expected, _ = watched(plain, given, values=True)
    assert lazy.weights.shape == (BATCH, HEADS, 1, KV_LEN)
    torch.testing.assert_close(lazy.weights.dense(), expected.weights.dense())
    torch.testing.assert_close(lazy.output, expected.output)
    with torch.no_grad():
        assert torch.equal(output, model(*given))
    statistics, output = watched(model, given, entropy=True, received=True, distance=True, top=2)
    expected, _ = watched(plain, given, entropy=True, received=True, distance=True, top=2)
    for name, result in expected.results().items():
        torch.testing.assert_close(statistics.results()[name], result)
    with torch.no_grad():
        assert torch.equal(output, model(*given))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "change",
    [
        lambda model: ablate(model, {("", 4)}),
        lambda model: cut(model, {("", 4): [(0, [1, 3])]}),
        lambda model: patch(model, {("", 4): torch.ones(BATCH, 1, WIDTH)}),
    ],
    ids=["ablate", "cut", "patch"],
)
def test_interventions_change_the_packed_head(change, mask):
    given, results = (*inputs(), MASKS[mask]()), []
    for model in (Attention(), Attention(packed)):
        with change(model):
            results.append(watched(model, given))
    (expected, output), (call, got) = results
    torch.testing.assert_close(got, output)
    torch.testing.assert_close(call.weights.dense(), expected.weights.dense())


class Regrouped(Attention):
    """Attention that calls the operator with fewer heads than it has, and more queries."""

    def __init__(self):
        super().__init__(lambda rows: rows.reshape(BATCH, 3, 2, WIDTH))

    def forward(self, x, memory, mask=None):
        key = self.k_proj(memory).unflatten(-1, (-1, WIDTH)).transpose(1, 2)[:, [0, 0, 1]]
        return scaled_dot_product_attention(self.arrange(self.q_proj(x)), key, key).reshape(BATCH, 1, -1)


REFUSAL = "query has 3 heads of length 2; expected 6 heads, as in Regrouped"


def test_other_heads_are_refused_and_named():
    model, given = Regrouped(), inputs()
    with pytest.raises(ValueError, match=f"watch observed no attention of Regrouped: {REFUSAL}"):
        watched(model, given)
    for change in (ablate(model, {("", 4)}), patch(model, {("", 0): torch.ones(BATCH, 1, WIDTH)})):
        with pytest.raises(ValueError, match=REFUSAL), change:
            model(*given)


def test_other_heads_are_missing_beside_calls_that_fit():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Attention(packed), Regrouped()

        def forward(self, x, memory):
            return self.first(x, memory), self.second(x, memory)

    model, given = Both(), inputs()
    with pytest.warns(UserWarning, match=f"a call of second was not observed: {REFUSAL}"), watch(model) as seen:
        output = model(*given)
    assert list(seen) == ["first"]
    assert all(torch.equal(*pair) for pair in zip(output, model(*given), strict=True))
    with pytest.raises(ValueError, match=f"second: {REFUSAL}"), ablate(model, {("second", 0)}):
        model(*given)


def test_heads_in_the_axis_of_sequences_are_refused():
    class Folded(Attention):
        def forward(self, x, memory, mask=None):
            query = self.q_proj(x).reshape(BATCH * HEADS, 1, WIDTH)
            return scaled_dot_product_attention(query, query, query).reshape(BATCH, 1, -1)

    with pytest.raises(ValueError, match="query has 1 head of length 1; expected 6 heads, as in Folded"):
        watched(Folded(), inputs())


def test_modules_that_state_no_heads_are_seen_as_they_call():
    class Rows(nn.Module):
        def forward(self, query, key):
            return scaled_dot_product_attention(query, key, key)

    call, _ = watched(Rows(), (torch.randn(BATCH, 2, 3, WIDTH), torch.randn(BATCH, 2, KV_LEN, WIDTH)))
    assert call.weights.shape == (BATCH, 2, 3, KV_LEN)
