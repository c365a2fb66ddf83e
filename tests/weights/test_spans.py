"""Tests of the attention on spans of keys."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.numerics import assert_matches, poisoned
from support.strategies import cases
from support.weights import both_forms, sample

SEGMENTS = torch.tensor([0, 0, 1, 1, -1, 2, 2, 0, 1, 2, 2, -1, 2, 2, 0, 1, 0])


@st.composite
def problems(draw):
    """Draw a case, spans of its keys in any form, and the members of each span [batch or 1, kv_len, spans]."""
    case = draw(cases((torch.float32, torch.float64, torch.bfloat16)))
    batch, _, _, kv_len = case.shape
    if draw(st.booleans()):
        rows = draw(st.sampled_from([1, batch]))
        ids = torch.tensor(draw(st.lists(st.integers(-1, 3), min_size=rows * kv_len, max_size=rows * kv_len)))
        ids = ids.view(rows, kv_len)
        ids[0, 0] = 1  # at least one key is in a span
        return case, ids if rows > 1 else ids[0], np.stack([ids.numpy() == i for i in range(int(ids.max()) + 1)], -1)
    pair = st.tuples(st.integers(0, kv_len - 1), st.integers(1, kv_len)).map(lambda p: (p[0], max(p[0] + 1, p[1])))
    pairs = draw(st.lists(pair, min_size=1, max_size=4))
    keys = np.arange(kv_len)
    members = np.stack([(keys >= start) & (keys < end) for start, end in pairs], -1)[None]
    names = {f"span {i}": pair for i, pair in enumerate(pairs)}
    return case, draw(st.sampled_from([pairs, tuple(pairs), names])), members


@given(problem=problems())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mass_matches_extended_precision(small_tiles, problem):
    case, spans, members = problem
    exact = case.exact()["weights"] @ members[:, None].astype(np.longdouble)
    naive = case.statistics()["weights"]
    naive = naive @ torch.from_numpy(members[:, None]).to(naive.dtype)
    logs = case.terms + np.log(2 + case.shape[3])
    for weights in both_forms(case):
        with poisoned():
            mass, statistics = weights.mass(spans), weights.observe(spans=spans, entropy=True)
        assert_matches(mass, exact, naive, scale=logs)
        assert torch.equal(mass, statistics.mass)


def test_results_are_in_the_order_of_a_dict():
    weights = sample()[-1]
    mass = weights.mass({"late": (10, 17), "early": (0, 3), "all": (0, 17)})
    assert torch.equal(mass, weights.mass([(10, 17), (0, 3), (0, 17)]))
    torch.testing.assert_close(mass[..., 2], torch.ones(2, 6, 13))


def test_segments_of_each_sequence_or_of_all():
    weights = sample()[-1]
    mass = weights.mass(torch.stack([SEGMENTS, SEGMENTS.flip(0)]))
    assert torch.equal(mass[0], weights.mass(SEGMENTS)[0])
    assert torch.equal(mass[1], weights.mass(SEGMENTS.flip(0).int())[1])
    assert mass.shape == (2, 6, 13, 3)


def test_segments_without_a_key_have_no_mass():
    mass = sample()[-1].mass(torch.full((17,), 4))
    assert mass.shape == (2, 6, 13, 5)
    assert not mass[..., :4].any()
    torch.testing.assert_close(mass[..., 4], torch.ones(2, 6, 13))


@pytest.mark.parametrize(
    ("spans", "error", "message"),
    [
        ([(0, 18)], ValueError, r"spans\[0\] is \(0, 18\); expected an end of at most kv_len = 17"),
        ({"image": (3, 99)}, ValueError, r"spans\['image'\] is \(3, 99\); expected an end of at most kv_len = 17"),
        ([(0, 3), (5, 5)], ValueError, r"spans\[1\] is \(5, 5\); expected start < end"),
        ([(5, 2)], ValueError, r"spans\[0\] is \(5, 2\); expected start < end"),
        ([(-3, 2)], ValueError, r"the start of spans\[0\] is -3; expected a whole number of at least 0"),
        ({"a": (0.5, 2)}, TypeError, r"the start of spans\['a'\] is 0.5; expected a whole number"),
        ([], ValueError, r"spans is empty; expected \(start, end\) pairs, a dict"),
        ({}, ValueError, r"spans is empty; expected"),
        (7, TypeError, r"spans is 7; expected \(start, end\) pairs"),
        ((0, 3), TypeError, r"spans\[0\] is 0; expected \(start, end\)"),
        ([(1, 2, 3)], TypeError, r"spans\[0\] is \(1, 2, 3\); expected \(start, end\)"),
        (torch.zeros(16).long(), ValueError, r"spans has shape \(1, 16\); expected \[kv_len = 17\] or \[2, 17\]"),
        (torch.zeros(3, 17).long(), ValueError, r"spans has shape \(3, 17\); expected \[kv_len = 17\] or \[2, 17\]"),
        (torch.zeros(1, 1, 17).long(), ValueError, r"spans has shape \(1, 1, 17\); expected segment ids"),
        (torch.zeros(0).long(), ValueError, r"spans has shape \(0,\); expected segment ids"),
        (torch.zeros(17), TypeError, r"spans has dtype torch.float32; expected whole numbers"),
        (torch.full((17,), -1), ValueError, r"spans has ids from -1 to -1; expected ids from 0 on, and −1"),
        (torch.arange(17) - 2, ValueError, r"spans has ids from -2 to 14; expected ids from 0 on"),
    ],
)
def test_wrong_spans_are_refused(spans, error, message):
    weights = sample()[-1]
    for use in (weights.mass, weights.mean_heads().mass, weights.scaled(torch.ones(17)).mass):
        with pytest.raises(error, match=message):
            use(spans)
    with pytest.raises(error, match=message):
        weights.observe(spans=spans)
