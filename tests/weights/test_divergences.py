"""Tests of the Kullback–Leibler divergence of two matrices."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from clearhead import Causal, Dense, Padding, Window, attention
from support.numerics import Case, assert_matches
from support.strategies import cases
from support.weights import PROBLEMS, Problem, assert_same, sample


def log(weights):
    """Return ln A, or 0 where A is 0."""
    if isinstance(weights, np.ndarray):
        return np.log(np.where(weights > 0, weights, 1))
    return torch.where(weights > 0, weights, 1.0).log()


def kl(teacher, student):
    return (teacher * (log(teacher) - log(student))).sum(-1)


def student_of(case: Case, scale: float, **options) -> Case:
    """Return a call with the mask and bias of another, with other queries and keys."""
    query, key = (scale * torch.randn(t.shape, dtype=torch.float64).to(t.dtype) for t in (case.query, case.key))
    options = {"bias": case.bias, "softcap": case.softcap, "sinks": case.sinks} | options
    return Case(query, key, case.value, case.mask, query_start=case.query_start, **options)


@given(case=cases((torch.float32, torch.float64, torch.bfloat16)), plain=st.booleans(), mean=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kl_matches_extended_precision(small_tiles, case, plain, mean):
    if isinstance(case.bias, torch.Tensor) and plain:
        plain = False  # a bias may hide keys, which a student without a bias attends to
    if (
        mean
        and case.allowed.shape[1] > 1
        and not torch.equal(*torch.broadcast_tensors(case.allowed, case.allowed[:, :1]))
    ):
        mean = False  # a mean attends to the keys of all heads
    student = student_of(case, 0.7, **({"bias": None, "softcap": None} if plain else {}))
    teachers = [side.exact()["weights"] for side in (case, student)]
    naive = [side.statistics()["weights"] for side in (case, student)]
    if mean:
        teachers[0], naive[0] = teachers[0].mean(axis=1, keepdims=True), naive[0].mean(dim=1, keepdim=True)
    first, second = (attention(**side.arguments, return_weights=True)[1] for side in (case, student))
    got = (first.mean_heads() if mean else first).kl(second)
    terms = case.terms + student.terms + 2 * np.log(2 + case.shape[3])
    assert_matches(got, kl(*teachers), kl(*naive), scale=2 * terms)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("heads", [(4, 2), pytest.param((4, 4), marks=pytest.mark.slow), (1, 1)])
@pytest.mark.parametrize("teacher_heads", ["all", "mean", "one"])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}], ids=["plain", "softcap"])
def test_values_and_gradients_are_those_of_the_dense_formula(small_tiles, name, heads, teacher_heads, options):
    problem, student = Problem(name), Problem(heads=heads[0], kv_heads=heads[1], key_dim=2)
    student.mask, student.query_start, student.softcap = problem.mask, problem.query_start, options.get("softcap")
    if "bias" in options:
        student.tensors["bias"] = torch.randn(1, 1, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher, dense = problem.weights(), problem.dense()
    if teacher_heads == "mean":
        teacher, dense = teacher.mean_heads(), dense.mean(1, keepdim=True)
    elif teacher_heads == "one":
        teacher, dense = teacher.part(heads=1), dense[:, 1:2]
    assert_same(teacher.kl(student.weights()), kl(dense, student.dense()), [*problem.leaves, *student.leaves])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_of_both_sides_match_finite_differences(small_tiles, name, softcap):
    problem, student = Problem(name), Problem(key_dim=2)
    student.mask, student.query_start, student.softcap = problem.mask, problem.query_start, softcap
    count = len(problem.leaves)
    for mean in (False, True):

        def divergence(*leaves, mean=mean):
            teacher = problem.weights(*leaves[:count])
            return (teacher.mean_heads() if mean else teacher).kl(student.weights(*leaves[count:]))

        assert gradcheck(divergence, [*problem.leaves, *student.leaves], fast_mode=True, atol=1e-6)


@given(case=cases((torch.float32, torch.bfloat16)), plain=st.booleans())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_match_the_plain_formula_in_the_same_dtype(small_tiles, case, plain):
    plain = plain and not isinstance(case.bias, torch.Tensor)
    student = student_of(case, 0.7, **({"bias": None, "softcap": None} if plain else {})).requiring_grad()
    case = case.requiring_grad()
    results, cotangent = [], torch.randn(case.shape[:3])
    sides = [(case, student), (case.to(torch.float64), student.to(torch.float64)), (case, student)]
    for lazy, (teacher, other) in zip((True, False, False), sides, strict=True):
        if lazy:
            first, second = (attention(**side.arguments, return_weights=True)[1] for side in (teacher, other))
            result = first.kl(second)
        else:
            result = kl(teacher.plain()["weights"], other.plain()["weights"])
        leaves = [side.leaves[name] for side in (teacher, other) for name in side.leaves if name != "value"]
        results.append(torch.autograd.grad(result, leaves, cotangent.to(result.dtype), allow_unused=True))
    teacher, other = (side.plain()["weights"].detach() for side in sides[1])
    rows = cotangent.abs().double()[..., None]
    sizes = [
        list(case.score_gradient_terms(rows * (log(teacher).abs() + log(other).abs() + 1)).items()),
        list(student.score_gradient_terms(rows * torch.ones_like(other)).items()),
    ]
    names = [[name for name in side.leaves if name != "value"] for side in (case, student)]
    scales = [dict(sizes[side])[name] for side in range(2) for name in names[side]]
    for scale, got, exact, naive in zip(scales, *results, strict=True):
        if got is not None or exact is not None:
            # the student's gradient m · B − A has terms of the size of the teacher's weights too
            assert_matches(got, exact, naive.nan_to_num(), scale=4 * max(scale, *scales[: len(names[0])]))


def test_equal_matrices_have_no_divergence():
    weights = sample(dtype=torch.float64)[-1]
    torch.testing.assert_close(weights.kl(weights), torch.zeros(2, 6, 13, dtype=torch.float64))


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0)])
@pytest.mark.parametrize("mask", [None, Window(1, 1)])
def test_empty_matrices_have_no_divergence(lengths, mask):
    teacher, student = sample(*lengths, mask=None)[-1], sample(*lengths, mask=mask)[-1]
    for matrix in (teacher, teacher.mean_heads()):
        assert torch.equal(matrix.kl(student), torch.zeros(2, 6, lengths[0]))


MASKS = {
    "window": (None, Window(2, 2), None),
    "narrower window": (Causal(), Window(3, 0), None),
    "padding": (Causal(), Causal() & Padding([9, 17]), None),
    "positions": (Causal(), Causal(), 0),  # the default for 13 queries and 17 keys is 4
    "heads": (None, Dense(torch.rand(1, 6, 13, 17, generator=torch.Generator().manual_seed(0)) < 0.8), None),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("mean", [False, True])
def test_a_student_that_may_not_attend_is_refused_unless_ignored(small_tiles, name, softcap, mean):
    mask, other, start = MASKS[name]
    query, key, value, _, teacher = sample(mask=mask, dtype=torch.float64)
    student = attention(query, -key, value, mask=other, softcap=softcap, query_start=start, return_weights=True)[1]
    dense, allowed = teacher.dense(), student.dense()
    if mean:
        teacher, dense = teacher.mean_heads(), dense.mean(1, keepdim=True)
    with pytest.raises(
        ValueError, match=r"the teacher puts up to .* of a row on keys that the student may not .*ignore"
    ):
        teacher.kl(student)
    ignored = teacher.kl(student, ignore=True)
    torch.testing.assert_close(ignored, kl(dense * (allowed > 0), torch.where(allowed > 0, allowed, 1.0)))


def test_a_mask_of_each_head_is_compared_with_every_head_of_a_mean():
    allowed = torch.ones(1, 2, 3, 3, dtype=torch.bool)
    allowed[0, 0, :, 0] = False
    x = torch.randn(1, 2, 3, 4)
    weights = attention(x, x, x, mask=Dense(allowed), return_weights=True)[1]
    assert weights.kl(weights).shape == (1, 2, 3)  # head by head, both have the same mask
    with pytest.raises(ValueError, match=r"the student may not attend to"):
        weights.mean_heads().kl(weights)


def test_a_student_may_attend_to_more():
    query, key, value, _, teacher = sample(dtype=torch.float64)
    student = attention(query, -key, value, return_weights=True)[1]
    torch.testing.assert_close(teacher.kl(student), kl(teacher.dense(), student.dense()))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 13, 17), r"student has shape \[2, 3, 13, 17\]; expected \[2, 6 or 1, 13, 17\], that of the teacher"),
        ((1, 6, 13, 17), r"student has shape \[1, 6, 13, 17\]; expected"),
        ((2, 6, 12, 17), r"student has shape \[2, 6, 12, 17\]; expected"),
        ((2, 6, 13, 16), r"student has shape \[2, 6, 13, 16\]; expected"),
    ],
)
def test_other_shapes_are_refused(shape, message):
    batch, heads, q_len, kv_len = shape
    key = torch.randn(batch, heads, kv_len, 4)
    student = attention(torch.randn(batch, heads, q_len, 4), key, key, return_weights=True)[1]
    weights = sample()[-1]
    with pytest.raises(ValueError, match=message):
        weights.kl(student)
    if heads == 6:
        with pytest.raises(ValueError, match=r"student has shape .*; expected \[2, any, 13, 17\]"):
            weights.mean_heads().kl(student)


def test_wrong_students_are_refused():
    weights = sample()[-1]
    with pytest.raises(TypeError, match=r"student is a Tensor; expected an AttentionWeights"):
        weights.kl(weights.dense())
    with pytest.raises(TypeError, match=r"ignore is 1; expected True or False"):
        weights.kl(weights, ignore=1)
    with pytest.raises(ValueError, match=r"student is a scaled matrix or hides keys; expected rows of a softmax"):
        weights.kl(weights.hiding(0))
    with pytest.raises(ValueError, match=r"student is on meta; expected cpu, the device of the teacher"):
        weights.kl(weights.to("meta"))
