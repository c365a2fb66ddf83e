"""Tests of the head that page 9 trains in the browser: its gradients equal torch's, and it learns as the page says."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from support.live_layers import call

COLORS = 4
MODULE = 'import * as training from "clearhead/head_training.js";\n'


def loss_of(query, key, value, problems):
    """Return the mean loss of one head on problems, in torch."""
    total = torch.zeros((), dtype=torch.float64)
    for problem in problems:
        x = torch.zeros(COLORS, key.shape[0], dtype=torch.float64)
        for index, (color, letter) in enumerate(zip(problem["colors"], problem["letters"], strict=True)):
            x[index, color] = x[index, COLORS + letter] = 1
        weights = torch.softmax(query @ (x @ key).T / key.shape[1] ** 0.5, dim=-1)
        right = [problem["letters"][problem["colors"].index(color)] for color in range(COLORS)]
        total = total + cross_entropy(weights @ (x @ value), torch.tensor(right))
    return total / len(problems)


def test_gradients_equal_those_of_torch():
    code = """
    const states = [1, 2, 3].map((seed) => {
      let weights = training.randomWeights(seed);
      for (let step = 0; step < 20 * seed; step++) weights = training.stepDown(weights, training.gradientsOf(weights, training.problemsOf(seed, step)).gradients, 2);
      const problems = training.problemsOf(seed, 1000);
      return { weights, problems, ...training.gradientsOf(weights, problems) };
    });
    answer(states);
    """  # noqa: E501
    for state in call(MODULE + code):
        weights = {
            name: torch.tensor(values, dtype=torch.float64, requires_grad=True)
            for name, values in state["weights"].items()
        }
        loss = loss_of(**weights, problems=state["problems"])
        assert state["loss"] == pytest.approx(float(loss.detach()), rel=1e-12)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for name, gradient in zip(weights, gradients, strict=True):
            assert float(gradient.abs().max()) > 1e-4
            expected = torch.tensor(state["gradients"][name], dtype=torch.float64)
            torch.testing.assert_close(expected, gradient, rtol=1e-9, atol=1e-12)


def test_head_learns_with_fitting_learning_rates():
    code = """
    const shown = { colors: [1, 0, 3, 2], letters: [1, 0, 3, 2] };
    const history = (rate, seed) => {
      let weights = training.randomWeights(seed);
      const losses = [];
      for (let step = 0; step <= 120; step++) {
        const result = training.runHead(weights, shown);
        losses.push([result.loss, Math.min(...result.weights.map((row, color) => row[shown.colors.indexOf(color)]))]);
        weights = training.stepDown(weights, training.gradientsOf(weights, training.problemsOf(seed, step)).gradients, rate);
      }
      return losses;
    };
    answer({ fitting: [1, 2, 3, 4, 5].map((seed) => history(1, seed)), fast: history(4, 1), slow: history(0.1, 1), wild: history(30, 1) });
    """  # noqa: E501
    histories = call(MODULE + code)
    for history in histories["fitting"]:
        assert history[0][0] > 1.2
        assert history[10][0] > 1.2  # hardly anything happens in the first steps
        assert history[120][0] < 0.1
        assert history[120][1] > 0.9
    assert histories["fast"][25][0] < 0.1 < histories["fitting"][0][25][0]
    assert histories["slow"][120][0] > 1.3
    assert min(loss for loss, _ in histories["wild"][100:]) > 0.5
    assert max(loss for loss, _ in histories["wild"][100:]) > 3
    assert max(weight for _, weight in histories["wild"][100:]) < 0.5
