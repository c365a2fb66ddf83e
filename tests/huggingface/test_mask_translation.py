"""Tests of the translation of transformers' mask functions: the cells are those of its `sdpa_mask`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import masking_utils as theirs

from clearhead.huggingface._mask_translation import MaskExtent, UnknownFunctionError, evaluate, translate
from clearhead.huggingface.lazy_mask import LazyMask, make_mask
from clearhead.ops.masks import Causal, Dense, Padding, PrecomputedMask, Window

BATCH, LONGEST = 2, 24


def odd_keys(batch, head, query, key):
    return (key % 2 == 1) | (key == query)


def next_to(batch, head, query, key):
    return (key - query).abs() <= 1


def remap_positions_for_packed_sequence(mask_function, position_ids):
    """Return what transformers ≥ 5.23 makes of the mask function of packed texts."""

    def inner_mask(batch, head, query, key):
        return mask_function(batch, head, position_ids[batch, query], position_ids[batch, key])

    inner_mask.__module__ = theirs.__name__
    return inner_mask


def packed(mask_function):
    """Return the mask function of packed texts whose positions start at 0, or later if earlier tokens are left out."""
    positions = torch.tensor([[*range(5), *range(9), *range(10)], [*range(7, 27), *range(4)]])
    remap = getattr(theirs, "remap_positions_for_packed_sequence", remap_positions_for_packed_sequence)
    return theirs.and_masks(theirs.packed_sequence_mask_function(PACKED), remap(mask_function, positions))


PACKED = torch.tensor([[0] * 5 + [1] * 9 + [2] * 10, [0] * 20 + [1] * 4])
GROUPS = torch.tensor([[-1] * 4 + [0] * 6 + [-1] * 3 + [1] * 5 + [-1] * 6, [-1] * 24])
FUNCTIONS = {
    "causal": theirs.causal_mask_function,
    "bidirectional": theirs.bidirectional_mask_function,
    "window": theirs.sliding_window_causal_mask_function(4),
    "window both ways": theirs.sliding_window_bidirectional_mask_function(3),
    "chunks": theirs.chunked_causal_mask_function(5, torch.tensor([0, 3])),
    "packed": theirs.and_masks(theirs.causal_mask_function, theirs.packed_sequence_mask_function(PACKED)),
    "packed, positions within texts": packed(theirs.causal_mask_function),
    "packed windows": packed(theirs.sliding_window_causal_mask_function(4)),
    "packed chunks": packed(theirs.chunked_causal_mask_function(4, torch.tensor([0, 3]))),
    "blocks": theirs.or_masks(theirs.causal_mask_function, theirs.blockwise_overlay(GROUPS)),
    "padding": theirs.and_masks(
        theirs.causal_mask_function, theirs.padding_mask_function(torch.rand(BATCH, LONGEST).argsort() > 5)
    ),
}
UNKNOWN = {
    "odd keys": odd_keys,
    "next to": next_to,
    "either": theirs.or_masks(theirs.causal_mask_function, next_to),
    "packed, next to": packed(next_to),
    "packed blocks": packed(theirs.blockwise_overlay(GROUPS)),
}


def paddings():
    """Yield masks without padding, and with padding on the right, left, both sides, inside, and everywhere."""
    keys = torch.arange(LONGEST)
    yield from (None, torch.ones(BATCH, LONGEST))
    yield torch.stack([keys < 9, keys < 24])
    yield torch.stack([keys >= 9, keys >= 0])
    yield torch.stack([(keys > 3) & (keys < 12), keys > 5])
    yield torch.stack([keys % 3 > 0, keys % 5 > 0])
    yield torch.stack([keys < 0, keys >= 0])


@given(st.data())
def test_lazy_masks_have_the_cells_of_sdpa_mask(data):
    name = data.draw(st.sampled_from([*FUNCTIONS, *UNKNOWN]))
    function = (FUNCTIONS | UNKNOWN)[name]
    kv_offset = data.draw(st.integers(0, 6))
    kv_len = data.draw(st.integers(1, LONGEST - kv_offset))
    q_offset = data.draw(st.integers(0, kv_offset + kv_len - 1))
    q_len = data.draw(st.integers(1, kv_offset + kv_len - q_offset))
    padding = data.draw(st.sampled_from(list(paddings())))
    padding = None if padding is None else padding.bool()[:, : kv_offset + data.draw(st.integers(1, kv_len))]
    call = {"mask_function": function, "attention_mask": padding, "use_vmap": False}
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    sizes = (BATCH, q_len, kv_len, q_offset, kv_offset)
    expected = theirs.sdpa_mask(*sizes, **call, **skips)
    got = make_mask(*sizes, **call, **skips)
    assert isinstance(got, LazyMask)
    assert got.shape == expected.shape
    assert torch.equal(got.dense(), expected)
    # a lazy mask is also returned where sdpa_mask may return None, whose meaning depends on the module
    assert torch.equal(make_mask(*sizes, **call, allow_is_bidirectional_skip=True).dense(), expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("causal", Causal), ("bidirectional", type(None)), ("window", Window), ("window both ways", Window)],
)
def test_known_functions_become_masks_without_evaluation(name, kind):
    extent = MaskExtent(BATCH, 8, 8, 0, 0, torch.device("cpu"))
    assert type(translate(FUNCTIONS[name], extent)) is kind


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name.startswith("packed")])
def test_masks_of_packed_texts_are_not_evaluated(name):
    assert "packed sequences" in repr(translate(FUNCTIONS[name], MaskExtent(BATCH, 9, 9, 0, 0, torch.device("cpu"))))


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_functions_are_evaluated(name, monkeypatch):
    extent = MaskExtent(BATCH, 9, 9, 0, 0, torch.device("cpu"))
    with pytest.raises(UnknownFunctionError):
        translate(UNKNOWN[name], extent)
    monkeypatch.setattr("clearhead.huggingface._mask_translation.MAX_EVALUATED_CELLS", 40)  # two rows at a time
    mask = evaluate(UNKNOWN[name], extent, None, use_vmap=True)
    assert isinstance(mask, Dense if name == "odd keys" else PrecomputedMask)
    allowed = mask.dense(9, 9, 0).expand(BATCH, 1, 9, 9)
    assert torch.equal(allowed, theirs.sdpa_mask(BATCH, 9, 9, mask_function=UNKNOWN[name], allow_is_causal_skip=False))


def test_free_slots_of_a_static_cache_add_no_padding_mask():
    first = make_mask(2, 4, 16, 0, 0, attention_mask=torch.ones(2, 4, dtype=torch.bool))
    assert isinstance(first.mask, Causal)
    later = make_mask(2, 1, 16, torch.tensor(6), 0, attention_mask=torch.ones(2, 7, dtype=torch.bool))
    assert isinstance(later.mask, Causal)
    assert later.dense().sum(dim=-1).flatten().tolist() == [7, 7]


def test_groups_that_are_not_contiguous_are_evaluated():
    function = theirs.packed_sequence_mask_function(torch.tensor([[0, 1, 1, 0], [0, 0, 1, 1]]))
    with pytest.raises(UnknownFunctionError):
        translate(function, MaskExtent(2, 4, 4, 0, 0, torch.device("cpu")))
    mask = make_mask(2, 4, 4, mask_function=function, allow_is_causal_skip=False)
    expected = theirs.sdpa_mask(2, 4, 4, mask_function=function, allow_is_causal_skip=False)
    assert torch.equal(mask.dense(), expected)


def test_a_window_of_size_0_hides_every_key():
    """Qwen2-MoE creates such a mask, although no layer uses it."""
    function = theirs.sliding_window_causal_mask_function(0)
    assert not make_mask(2, 4, 4, mask_function=function).dense().any()


class TestLazyMask:
    def lazy(self):
        return make_mask(2, 4, 6, 2, 0, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6]).bool())

    def eager(self):
        mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6]).bool()
        return theirs.eager_mask(2, 4, 6, 2, 0, attention_mask=mask)

    def test_arithmetic_gives_the_results_of_the_eager_mask(self):
        lazy, eager = self.lazy(), self.eager()
        assert lazy.dtype == eager.dtype == torch.float32
        scores = torch.randn(2, 3, 4, 6)
        assert torch.equal(scores + lazy, scores + eager)
        assert torch.equal(lazy.to(torch.bool), eager.to(torch.bool))
        assert torch.equal(torch.where(lazy == 0, 1.0, 2.0), torch.where(eager == 0, 1.0, 2.0))
        assert torch.equal(torch.cat([lazy, lazy], dim=1), torch.cat([eager, eager], dim=1))
        assert torch.equal(lazy[:, 0, 0], eager[:, 0, 0])
        assert torch.equal(scores.masked_fill(lazy.bool(), -1.0), scores.masked_fill(eager.bool(), -1.0))
        assert "Causal() & Padding.left" in repr(lazy)

    def test_rearranged_cells_are_still_a_mask(self):
        lazy, eager = self.lazy(), self.eager()
        for change in (
            lambda mask: mask[:, :, 1:3, :4],
            lambda mask: mask.expand(2, 3, 4, 6),
            lambda mask: mask[1:],
            lambda mask: mask.repeat_interleave(2, dim=0),
            lambda mask: mask[:, 0].unsqueeze(1),
        ):
            changed = change(lazy)
            assert torch.equal(changed + 0, change(eager))
        assert isinstance(lazy[:, :, 1:3, :4], LazyMask)
        assert isinstance(lazy.to("cpu", copy=True), LazyMask)

    def test_compiled_code_gets_the_eager_mask(self, monkeypatch):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert torch.equal(self.lazy(), self.eager())

    def test_full_slices_and_detach_keep_the_mask(self):
        lazy = self.lazy()
        for same in (lazy[:, :, :, :6], lazy.detach()):
            assert isinstance(same, LazyMask)
            assert same.mask is lazy.mask
            assert torch.equal(same.dense(), lazy.dense())

    def test_rejects_changes_in_place(self):
        with pytest.raises(RuntimeError, match="in place"):
            self.lazy().fill_(True)


def test_padding_on_either_side_becomes_padding():
    for side, allowed in (("right", [True, True, False]), ("left", [False, True, True])):
        mask = make_mask(
            1, 3, 3, mask_function=theirs.bidirectional_mask_function, attention_mask=torch.tensor([allowed])
        ).mask
        assert isinstance(mask, Padding)
        assert (mask.side, mask.lengths.tolist()) == (side, [2])
