"""Tests of the fused divergence and the entropy of a mean over heads in Triton, against plain torch over tiles."""

import pytest
import torch

from clearhead import ALiBi, Causal, Dense, Documents, attention
from clearhead.ops import dispatch
from clearhead.weights import divergences
from support.parameters import slow_except
from support.triton_calls import DENSE, HEADS, KEYS, QUERIES, UNION, random

TEACHERS = {
    "causal": {"mask": Causal()},
    "union": {"mask": UNION},
    "dense": {"mask": Dense(DENSE)},
    "sinks and softcap": {"mask": Causal(), "sinks": torch.linspace(-1, 1, HEADS), "softcap": 2.0},
    "alibi": {"bias": ALiBi(torch.linspace(0.1, 1, HEADS)), "mask": Documents([[20, 33], [53]])},
    "negative scale": {"scale": -0.5},
}
# groups of the teacher (None: its heads), heads of the student
HEAD_COUNTS = {
    "heads": (None, HEADS),
    "one student": (None, 1),
    "mean": (1, 1),
    "groups": (2, 2),
    "mean to heads": (1, 2),
}
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2}
CASES = {
    f"{name}, {heads}": (TEACHERS[name], *HEAD_COUNTS[heads], torch.bfloat16 if name == "causal" else torch.float32)
    for name, heads in [
        ("causal", "mean"),
        ("causal", "one student"),
        ("union", "heads"),
        ("dense", "groups"),
        ("sinks and softcap", "heads"),
        ("sinks and softcap", "mean to heads"),
        ("alibi", "mean"),
        ("negative scale", "heads"),
    ]
}


@pytest.fixture
def fused(monkeypatch):
    """Compute statistics on the CPU in Triton's interpreter; fail if the fused kernels are not used."""

    def use():
        monkeypatch.setitem(dispatch.STATISTICS, "cpu", ("triton", "streaming"))
        monkeypatch.setattr(divergences, "_by_products", pytest.fail)
        monkeypatch.setattr(divergences, "_by_strips", pytest.fail)

    return use


def teacher_and_student(options, groups, heads, dtype):
    query, key = (random(2, HEADS, n, 20, dtype=dtype, seed=n) for n in (QUERIES, KEYS))
    teacher = attention(query, key, key, return_weights="keep_qk", backend="streaming", **options)[1]
    leaves = [random(2, h, n, 12, dtype=dtype, seed=n + 1) for h, n in ((heads, QUERIES), (1, KEYS))]
    for leaf in leaves:
        leaf.requires_grad_()
    kept = {name: option for name, option in options.items() if name in ("mask", "scale")}
    query, key = leaves
    student = attention(query, key, key.detach(), return_weights="keep_qk", backend="streaming", **kept)[1]
    return teacher if groups is None else teacher.mean_heads(groups=groups), student, leaves


@pytest.mark.parametrize(
    ("options", "groups", "heads", "dtype"), slow_except(CASES, "causal, mean", "sinks and softcap, heads")
)
def test_fused_divergence_and_its_gradients_match_tiles(fused, options, groups, heads, dtype):
    teacher, student, leaves = teacher_and_student(options, groups, heads, dtype)
    expected = teacher.kl(student)
    cotangent = random(*expected.shape, seed=3)
    expected_grads = torch.autograd.grad(expected, leaves, cotangent)
    fused()
    actual = teacher.kl(student)
    atol = 2e-6 * max(1.0, float(expected.detach().max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
    torch.testing.assert_close(teacher.kl(student.detach()), expected.detach(), rtol=0, atol=atol)
    for got, wanted in zip(torch.autograd.grad(actual, leaves, cotangent), expected_grads, strict=True):
        size = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0, atol=TOLERANCE[dtype] * size)


@pytest.mark.parametrize("name", ["union", "sinks and softcap"])
def test_entropy_of_a_mean_over_heads_matches_tiles(fused, name):
    mean = teacher_and_student(TEACHERS[name], 2, 1, torch.bfloat16)[0]
    expected = mean.entropy()
    fused()
    torch.testing.assert_close(mean.entropy(), expected, rtol=0, atol=5e-6)


def test_second_derivative_is_refused(fused):
    teacher, student, leaves = teacher_and_student({}, None, HEADS, torch.float32)
    fused()
    (grad,) = torch.autograd.grad(teacher.kl(student).sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        grad.sum().backward()
