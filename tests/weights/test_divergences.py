"""Tests of the Kullback–Leibler divergence of two matrices."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Window, attention
from clearhead.ops.tiled import divergence as sweeps
from clearhead.weights import divergences
from support.numerics import Case, assert_matches, poisoned
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


@given(case=cases((torch.float32, torch.bfloat16)), plain=st.booleans(), fixed=st.booleans())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_match_the_plain_formula_in_the_same_dtype(small_tiles, case, plain, fixed):
    plain = plain and not isinstance(case.bias, torch.Tensor)
    student = student_of(case, 0.7, **({"bias": None, "softcap": None} if plain else {}))
    assert_gradients_match(case, student, torch.randn(case.shape[:3]), fixed=fixed)


def assert_gradients_match(case: Case, student: Case, cotangent: torch.Tensor, *, fixed: bool) -> None:
    """Assert that gradients match float64. A fixed teacher has none."""
    case, student = (side.requiring_grad() for side in (case, student))
    results = []
    sides = [(case, student), (case.to(torch.float64), student.to(torch.float64)), (case, student)]
    for lazy, (teacher, other) in zip((True, False, False), sides, strict=True):
        if lazy:
            first, second = (attention(**side.arguments, return_weights=True)[1] for side in (teacher, other))
            result = (first.detach() if fixed else first).kl(second)
        else:
            result = kl(teacher.plain()["weights"], other.plain()["weights"])
        differentiable = (other,) if fixed else (teacher, other)
        leaves = [side.leaves[name] for side in differentiable for name in side.leaves if name != "value"]
        results.append(torch.autograd.grad(result, leaves, cotangent.to(result.dtype), allow_unused=True))
    teacher, other = (side.plain()["weights"].detach() for side in sides[1])
    rows = cotangent.abs().double()[..., None]
    teacher_sizes = case.score_gradient_terms(rows * (log(teacher).abs() + log(other).abs() + 1))
    sizes = [teacher_sizes, student.score_gradient_terms(rows * torch.ones_like(other))]
    names = [[name for name in side.leaves if name != "value"] for side in (case, student)]
    scales = [sizes[side][name] for side in range(fixed, 2) for name in names[side]]
    largest = max(teacher_sizes[name] for name in names[0])
    for scale, got, exact, naive in zip(scales, *results, strict=True):
        if got is not None or exact is not None:
            # the student's gradient m · B − A has terms of the size of the teacher's weights too
            assert_matches(got, exact, naive.nan_to_num(), scale=4 * max(scale, largest))


FUSED = {
    "plain": {},
    "causal": {"mask": Causal()},
    "documents, empty rows": {"mask": Documents([[4, 3], [5]])},
    "left padding, causal": {"mask": Causal() & Padding.left([6, 11])},
    "mask of each head": {"mask": Dense(torch.rand(1, 6, 7, 11, generator=torch.Generator().manual_seed(0)) < 0.6)},
    "sinks": {"mask": Causal(), "sinks": torch.linspace(-1, 2, 6)},
    "sinks of the teacher": {"sinks": torch.linspace(-1, 2, 6)},
    "softcap and ALiBi of the teacher": {"softcap": 2.0, "bias": ALiBi(torch.linspace(0.1, 1, 6))},
}
COTANGENTS = {  # of each row's divergence
    "equal": lambda: torch.tensor(0.3).expand(2, 6, 7),
    "by key head": lambda: torch.randn(2, 3, 1, 1).expand(2, 3, 2, 7).flatten(1, 2),
    "by head": lambda: torch.randn(2, 6, 1).expand(2, 6, 7),
    "by row": lambda: torch.randn(2, 6, 7) * (torch.arange(7) > 3),  # whole blocks are 0
}


@pytest.fixture
def sweeps_run(monkeypatch):
    """Fail if the divergence is not computed in one sweep; list the names of the sweeps that ran."""
    names = []

    def recorded(sweep):
        def run(*args):
            names.append(sweep.__name__)
            return sweep(*args)

        return run

    for sweep in (sweeps.divergence, sweeps.key_gradient):
        monkeypatch.setattr(sweeps, sweep.__name__, recorded(sweep))
    monkeypatch.setattr(divergences, "_by_products", pytest.fail)
    monkeypatch.setattr(divergences, "_by_strips", pytest.fail)
    return names


def fused_cases(name: str, kv_heads: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Case, Case]:
    """Return a teacher with 3 key heads, and a student with the same mask."""
    options = {key: option.to(dtype) if key == "sinks" else option for key, option in FUSED[name].items()}
    sizes = [(6, 7, 5), (3, 11, 5), (3, 11, 2)], [(6, 7, 3), (kv_heads, 11, 3), (kv_heads, 11, 2)]
    teacher, student = ([torch.randn(2, *size, dtype=dtype) for size in side] for side in sizes)
    kept = {} if "of the teacher" in name else options
    return Case(*teacher, **options, query_start=1), Case(*student, **kept, query_start=1)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("cotangent", COTANGENTS)
@pytest.mark.parametrize("kv_heads", [3, 6], ids=["same groups", "other groups"])
def test_a_fixed_teacher_takes_one_sweep_unless_rows_differ(small_tiles, sweeps_run, name, cotangent, kv_heads):
    teacher, student = fused_cases(name, kv_heads)
    with poisoned():
        assert_gradients_match(teacher, student, COTANGENTS[cotangent](), fixed=True)
    again = cotangent == "by row" or (cotangent == "by head" and kv_heads == 3)
    assert sweeps_run == (["divergence", "key_gradient"] if again else ["divergence"])


@pytest.mark.parametrize("name", FUSED)
def test_gradients_of_a_fused_student_match_finite_differences(small_tiles, sweeps_run, name):
    teacher, student = fused_cases(name, dtype=torch.float64)
    teacher = attention(**teacher.arguments, return_weights=True)[1]
    student = student.requiring_grad()
    names = [name for name in student.leaves if name != "value"]

    def divergence(*leaves):
        arguments = student.arguments | dict(zip(names, leaves, strict=True))
        return teacher.kl(attention(**arguments, return_weights=True)[1])

    assert gradcheck(divergence, [student.leaves[name] for name in names], fast_mode=True, atol=1e-6)
    assert "divergence" in sweeps_run


def test_large_divergences_of_sharp_heads_are_exact(small_tiles, sweeps_run):
    query, key = 100 * torch.randn(1, 2, 7, 4), torch.randn(1, 2, 11, 4)
    sharp = Case(query, key, key, Causal(), query_start=1)
    opposite = Case(-query, key, key, Causal(), query_start=1)  # its log weights underflow where the teacher has weight
    first, second = (attention(**side.arguments, return_weights=True)[1] for side in (sharp, opposite))
    exact = [side.exact() for side in (sharp, opposite)]
    logs = [np.where(sharp.allowed, side["scores"] - side["lse"][..., None], 0) for side in exact]
    expected = (exact[0]["weights"] * (logs[0] - logs[1])).sum(-1)
    assert expected.max() > 200
    naive = torch.from_numpy(expected.astype(np.float32))
    assert_matches(first.kl(second), expected, naive, scale=2 * (sharp.terms + opposite.terms))
    assert sweeps_run == ["divergence"]


def test_gradients_of_a_fused_student_change_with_neither_autocast_nor_frozen_tensors(sweeps_run):
    teacher, student = fused_cases("causal")
    student = student.requiring_grad()
    weights = [attention(**side.arguments, return_weights=True)[1] for side in (teacher, student)]
    leaves = [student.query, student.key]
    expected = torch.autograd.grad(weights[0].kl(weights[1]).mean(), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.autograd.grad(weights[0].kl(weights[1]).mean(), leaves)
    assert all(map(torch.equal, got, expected))
    frozen = attention(**student.arguments | {"key": student.key.detach()}, return_weights=True)[1]
    assert torch.equal(torch.autograd.grad(weights[0].kl(frozen).mean(), leaves[0])[0], expected[0])


@pytest.mark.parametrize("changed", ["query", "bias"])
def test_a_teacher_changed_before_backward_is_refused(sweeps_run, changed):
    teacher, student = fused_cases("plain")
    teacher.bias = torch.randn(1, 6, 1, 11)
    student = student.requiring_grad()
    first, second = (attention(**side.arguments, return_weights=True)[1] for side in (teacher, student))
    loss = first.kl(second).mean()
    getattr(teacher, changed).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_second_derivative_of_a_fused_student_is_refused(sweeps_run):
    teacher, student = fused_cases("plain")
    student = student.requiring_grad()
    first, second = (attention(**side.arguments, return_weights=True)[1] for side in (teacher, student))
    (grad,) = torch.autograd.grad(first.kl(second).sum(), student.query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"the second derivative of a function of the weights is not supported"):
        grad.sum().backward()


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
