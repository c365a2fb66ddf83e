"""Tests of the random problems that `benchmarks/check_gpu.py` draws, at small sizes in Triton's interpreter."""

import random
from dataclasses import replace

import pytest
import torch

from clearhead import AttentionWeights
from clearhead.ops.gradients import Gradients
from clearhead.weights import autograd, matrix
from support import random_checks
from support.random_checks import check
from support.random_problems import Family, Problem


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 4))])
def test_kernels_match_the_equation_on_a_random_problem(seed):
    family = Family.draw(random.Random(seed))
    check(Problem.draw(family, seed, "cpu", longest=24))


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_wrong_output_is_found(monkeypatch, factor):
    attention = random_checks.attention

    def wrong(*arguments, **options):
        output, weights = attention(*arguments, **options)
        return output * factor, weights

    monkeypatch.setattr(random_checks, "attention", wrong)
    problem = Problem.draw(Family.draw(random.Random(2)), 2, "cpu", longest=24)
    with pytest.raises(AssertionError, match="output: "):
        check(problem)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_wrong_gradient_is_found(monkeypatch, seed):
    attention = random_checks.attention

    def wrong(*arguments, **options):
        output, weights = attention(*arguments, **options)
        output.register_hook(lambda gradient: -gradient)
        return output, weights

    monkeypatch.setattr(random_checks, "attention", wrong)
    problem = Problem.draw(Family.draw(random.Random(seed)), seed, "cpu", longest=24)
    with pytest.raises(AssertionError, match="gradient of "):
        check(problem)


@pytest.mark.parametrize(
    ("operator", "owner", "name"),
    [
        pytest.param("product", matrix, "product", marks=pytest.mark.slow),
        pytest.param("transposed product", matrix, "transposed_product", marks=pytest.mark.slow),
        pytest.param("mass", AttentionWeights, "mass", marks=pytest.mark.slow),
        ("gradient", autograd, "score_gradients"),
    ],
)
def test_wrong_operator_is_found(monkeypatch, operator, owner, name):
    right = getattr(owner, name)

    def wrong(*arguments, **options):
        results = right(*arguments, **options)
        return (
            -results
            if isinstance(results, torch.Tensor)
            else Gradients(*(None if part is None else -part for part in results))
        )

    monkeypatch.setattr(owner, name, wrong)
    family = replace(Family.draw(random.Random(3)), operator=operator)
    with pytest.raises(AssertionError, match=operator):
        check(Problem.draw(family, 3, "cpu", longest=24))


def test_family_and_seed_determine_a_problem():
    first, second = (Problem.draw(Family.draw(random.Random(3)), 3, "cpu", longest=24) for _ in range(2))
    assert first.describe() == second.describe()
    assert all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))
