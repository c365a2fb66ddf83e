"""Tests of masks: allowed cells, lowering to key ranges, caching, repr and validation."""

import pickle
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from clearhead import Causal, Dense, Documents, Padding, Prefix, Window, attention
from clearhead.ops.arguments import build_call
from clearhead.ops.masks import _show, query_positions
from support.numerics import brute_force
from support.peers import assert_agrees
from support.strategies import masks

SHAPE = (2, 3, 7, 11)


@given(mask=masks(*SHAPE), start=st.one_of(st.none(), st.integers(-9, 13)))
@settings(max_examples=300)
def test_dense_mask_matches_its_definition(mask, start):
    batch, _, q_len, kv_len = SHAPE
    expected = brute_force(mask, SHAPE, [kv_len - q_len if start is None else start] * batch)
    assert torch.equal(mask.dense(q_len, kv_len, start).expand(SHAPE), expected)


@given(mask=masks(*SHAPE), starts=st.lists(st.integers(-9, 13), min_size=2, max_size=2))
def test_query_start_per_sequence_matches_the_definition(mask, starts):
    _, _, q_len, kv_len = SHAPE
    expected = brute_force(mask, SHAPE, starts)
    assert torch.equal(mask.dense(q_len, kv_len, torch.tensor(starts)).expand(SHAPE), expected)


@given(mask=masks(*SHAPE))
@settings(max_examples=200)
def test_ranges_are_sorted_disjoint_and_within_the_keys(mask):
    lowered = mask.lower(query_positions(7, 11), 11)
    if lowered.ranges is None:
        assert lowered.dense is not None
        return
    first, last = lowered.ranges.unbind(dim=1)
    assert lowered.ranges.dtype == torch.int32
    assert lowered.ranges.shape[2:] in ((1, 7), (2, 7))
    assert (first >= 0).all()
    assert (first <= last).all()
    assert (last <= 11).all()
    assert (last[:-1] <= first[1:]).all()


@pytest.mark.parametrize(
    "mask",
    [Causal(), Window(2), Padding([3, 5]), Padding.left([3, 5]), Documents([3, 4]), Prefix(2)],
    ids=repr,
)
def test_only_unions_have_more_than_one_range(mask):
    assert mask.ranges(7, 11).shape[:2] == (1, 2)
    assert (mask & Causal() & Prefix(9)).ranges(7, 11).shape[0] == 1
    assert (mask | Prefix(1)).ranges(7, 11).shape[0] == 2


def test_only_dense_masks_lower_to_a_dense_part():
    dense = Dense(torch.ones(7, 11, dtype=torch.bool))
    both = (dense & Causal()).lower(query_positions(7, 11), 11)
    assert both.ranges is not None
    assert both.dense is dense.allowed
    with pytest.raises(ValueError, match="Dense"):
        (dense | Causal()).ranges(7, 11)


def test_memory_of_ranges_is_linear_in_n():
    mask = Window(before=4095) | (Causal() & Prefix(4) & Documents([2**19] * 2))
    assert mask.ranges(2**20, 2**20).numel() == 2 * 2 * 2**20


def test_more_queries_than_keys_leave_rows_empty():
    assert Causal().picture(4, 2) == ". .\n. .\nx .\nx x"


def test_picture_draws_allowed_keys():
    assert Causal().picture(3) == "x . .\nx x .\nx x x"
    assert Causal().picture(2, 4) == "x x x .\nx x x x"
    assert Causal().picture(2, 4, query_start=0) == "x . . .\nx x . ."
    assert Window(before=1, after=1).picture(4) == "x x . .\nx x x .\n. x x x\n. . x x"
    assert Documents([1, 2]).picture(4) == "x . . .\n. x x .\n. x x .\n. . . ."
    assert Padding.left([2]).picture(2, 3) == ". x x\n. x x"
    with pytest.raises(ValueError, match="q_len is 100 and kv_len 100; expected at most 64"):
        Causal().picture(100)


def test_huge_lengths_do_not_overflow():
    assert Window(sys.maxsize, after=sys.maxsize).dense(3, 3).all()
    assert Prefix(2**70).dense(3, 3).all()
    assert Documents([2**62, 2**62, 5]).dense(3, 3).all()


def test_window_includes_the_position_of_the_query():
    """Hugging Face and Keras call Window(before=W − 1) a sliding window of W."""
    assert Window(before=2).dense(9, 9)[0, 0].sum(dim=-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize(
    "text",
    [
        "Causal()",
        "Window(before=255)",
        "Window(before=3, after=2)",
        "Padding([3, 5])",
        "Padding.left([3, 5])",
        "Documents([3, 5])",
        "Documents([[3, 5], [8, 0]])",
        "Documents([3, 5], strict=False)",
        "Prefix(4)",
        "Window(before=255) | (Causal() & Prefix(4))",
        "Causal() & Prefix(4) & Window(before=1)",
        "(Causal() | Prefix(4)) & Window(before=1)",
    ],
)
def test_repr_reads_like_the_code(text):
    assert repr(eval(text)) == text


def test_repr_shortens_long_lengths_and_dense_tensors():
    assert _show(torch.ones(3, device="meta")) == "<3 lengths on meta>"  # as on a GPU
    assert repr(Padding(range(20))) == "Padding([0, 1, 2, 3, 4, 5, 6, 7, … 20 in all])"
    assert repr(Dense(torch.ones(3, 1, dtype=torch.bool))) == "Dense(<bool [1, 1, 3, 1]>)"


def test_lowered_mask_is_cached():
    mask, x = Causal() & Documents([3, 4]), torch.randn(1, 2, 7, 4)
    with torch.inference_mode():
        first = build_call(x, x, x, mask=mask).lower()
    assert build_call(x, x, x, mask=mask).lower() is first
    assert build_call(x, x, x, mask=mask, query_start=1).lower() is not first
    assert build_call(x[:, :, :5], x, x, mask=mask).lower().ranges.shape[-1] == 5
    again = build_call(x, x, x, mask=mask).lower()
    assert torch.equal(again.ranges, first.ranges)
    # a result cached in inference mode can be used in a call with gradients
    leaf = x.clone().requires_grad_()
    attention(leaf, x, x, mask=mask, backend="streaming").sum().backward()
    assert leaf.grad is not None
    copied = pickle.loads(pickle.dumps(mask))
    assert torch.equal(build_call(x, x, x, mask=copied).lower().ranges, first.ranges)


def test_hidden_keys_of_the_fused_kernel_are_cached(monkeypatch):
    mask, x = Padding([5, 3]), torch.randn(2, 1, 7, 4)
    lowered, lower = [], Padding.lower
    monkeypatch.setattr(Padding, "lower", lambda self, *args: lowered.append(args) or lower(self, *args))
    with torch.inference_mode():
        first = attention(x, x, x, mask=mask, backend="sdpa")
    leaf = x.clone().requires_grad_()
    again = attention(leaf, x, x, mask=mask, backend="sdpa")
    again.sum().backward()
    assert len(lowered) == 1
    assert torch.equal(again, first)
    assert attention(x.double(), x.double(), x.double(), mask=mask, backend="sdpa").dtype == torch.float64
    mask.lengths.fill_(2)
    changed = attention(x, x, x, mask=mask, backend="sdpa")
    assert_agrees(changed, lambda x: attention(x, x, x, mask=Padding([2, 2]), backend="reference"), x)


def test_cache_ignores_fake_tensors_and_in_place_changes():
    x, causal, mask = torch.randn(1, 1, 7, 4), Causal(), Padding([5])
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        build_call(fake, fake, fake, mask=causal).lower()
    assert build_call(x, x, x, mask=causal).lower().ranges[0, 1].tolist() == [[*range(1, 8)]]
    assert build_call(x, x, x, mask=mask).lower().ranges[0, 1].tolist() == [[5] * 7]
    mask.lengths.fill_(3)
    assert build_call(x, x, x, mask=mask).lower().ranges[0, 1].tolist() == [[3] * 7]


def test_dense_mask_is_not_cached():
    allowed, x = torch.ones(3, 3, dtype=torch.bool), torch.randn(1, 1, 3, 4)
    mask = Dense(allowed) & Causal()
    before = attention(x, x, x, mask=mask)
    allowed[2, :2] = False
    assert not torch.equal(attention(x, x, x, mask=mask), before)


def test_masks_copy_their_lengths():
    lengths = torch.tensor([3, 5])
    mask = Padding(lengths)
    lengths += 1
    assert mask.lengths.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Padding([3, -1]), ValueError, "Padding: lengths contains -1; expected 0 or more"),
        (lambda: Padding([1.5]), TypeError, "Padding: lengths has dtype torch.float32; expected whole numbers"),
        (
            lambda: Padding([[1], [2]]),
            ValueError,
            "Padding: lengths has shape (2, 1); expected one length per sequence",
        ),
        (lambda: Padding("ab"), TypeError, "Padding: lengths is 'ab'; expected whole numbers"),
        (lambda: Padding([1], side="up"), ValueError, "Padding: side is 'up'; expected 'left' or 'right'"),
        (lambda: Documents([3, -2]), ValueError, "Documents: lengths contains -2"),
        (lambda: Documents([]), ValueError, "Documents: lengths has shape (0,)"),
        (lambda: Window(-1), ValueError, "Window: before is -1; expected a whole number of at least 0"),
        (lambda: Window(1, after=-2), ValueError, "Window: after is -2; expected a whole number of at least 0"),
        (lambda: Window(2.0), TypeError, "Window: before is 2.0; expected a whole number"),
        (lambda: Prefix(-1), ValueError, "Prefix: length is -1; expected a whole number of at least 0"),
        (lambda: Dense(torch.ones(3, 3)), TypeError, "Dense: allowed has dtype torch.float32; expected torch.bool"),
        (lambda: Dense([[True]]), TypeError, "Dense: allowed is a list; expected a bool tensor"),
        (lambda: Dense(torch.ones(1, 1, 1, 1, 1, dtype=torch.bool)), ValueError, "Dense: allowed has 5 axes"),
        (lambda: Causal() & 3, TypeError, "right operand of & is 3; expected a mask"),
    ],
)
def test_masks_reject_invalid_arguments(build, error, message):
    with pytest.raises(error) as caught:
        build()
    assert message in str(caught.value)


def attend(queries, keys, mask):
    x, y = torch.randn(2, 1, queries, 4), torch.randn(2, 1, keys, 4)
    return attention(x, y, y, mask=mask)


@pytest.mark.parametrize(
    ("queries", "mask", "message"),
    [
        (10, Documents([6, 7]), "add up to 13, but kv_len is 10; expected at most 10"),
        (10, Documents([6, 7], strict=False), "add up to 13, but kv_len is 10; expected at most 10"),
        (10, Documents([[6, 4], [6, 7]]), "add up to 13, but kv_len is 10; expected at most 10"),
        (10, Documents([3, 4]), "add up to 7, but kv_len is 10; expected 10, or strict=False if"),
        (3, Causal() & Documents([3, 4]), "add up to 7, but kv_len is 10; expected 10, or strict=False if"),
        (10, Documents([3, 4]) | Prefix(1), "add up to 7, but kv_len is 10; expected 10, or strict=False if"),
    ],
    ids=repr,
)
def test_documents_that_do_not_fit_the_keys_are_refused(queries, mask, message):
    with pytest.raises(ValueError, match=f"mask does not fit: the lengths of Documents {message}"):
        attend(queries, 10, mask)


@pytest.mark.parametrize(
    ("queries", "mask"),
    [
        (10, Documents([3, 4], strict=False)),
        (10, Documents([[3, 4], [10, 0]])),
        (3, Documents([6, 7])),  # a KV cache that grows
        (1, Documents([[6, 7], [2, 9]])),
    ],
    ids=repr,
)
def test_documents_of_a_padded_batch_or_a_growing_cache_are_accepted(queries, mask):
    output = attend(queries, 10, mask)
    empty = ~mask.dense(queries, 10).any(dim=-1, keepdim=True).expand(*output.shape[:3], 1)
    assert torch.equal((output == 0).all(dim=-1, keepdim=True), empty)


def test_strictness_of_documents_is_kept():
    x = torch.randn(1, 1, 10, 4)
    loose, old = Documents([3, 4], strict=False), Documents([3, 7])
    vars(old).pop("strict")  # as in a pickle of an earlier version
    for mask in (loose, pickle.loads(pickle.dumps(loose)), pickle.loads(pickle.dumps(old))):
        assert attention(x, x, x, mask=mask).shape == x.shape
    assert pickle.loads(pickle.dumps(Documents([3, 4]))).strict
    with pytest.raises(TypeError, match="Documents: strict is 1; expected True or False"):
        Documents([3, 4], strict=1)


def test_lengths_on_a_gpu_are_not_read():
    x = torch.randn(1, 1, 10, 4)
    mask = Documents([3, 4])
    object.__setattr__(mask, "lengths", mask.lengths.to("meta"))  # reading a value of it would raise
    assert mask.shape_error(1, 1, 10, 10) is None
    with FakeTensorMode() as mode:  # a compiled graph does not read them either
        fake = mode.from_tensor(x)
        assert build_call(fake, fake, fake, mask=Documents(torch.tensor([3, 4]))).shape == (1, 1, 10, 10)
