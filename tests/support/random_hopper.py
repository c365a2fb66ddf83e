"""Random problems for the kernels for Hopper GPUs, compared with float64 by the rule of `assert_matches`."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch

from clearhead.ops.arguments import build_call
from clearhead.ops.hopper import forward, query_blocks, support, sweep, topk
from clearhead.ops.statistics import StatisticsRequest
from clearhead.ops.triton.statistics import compute_statistics
from support.random_checks import compare
from support.random_problems import Family, Problem

LONGEST = 2000  # queries or keys


def draw(seed: int) -> Problem:
    """Draw a problem that the kernels support.

    In some problems, later products exceed those of the first tile of keys, also by more than the exponents of floats.
    """
    choices = random.Random(seed)
    family, width = Family.draw(choices), choices.choice(support.WIDTHS)
    family = replace(
        family,
        dtype=choices.choice(list(support.DTYPES)),
        key_dim=width,
        value_dim=width,
        masks=tuple(mask for mask in family.masks if mask != "dense"),
        bias="none",
        softcap=False,
        dropout=False,
    )
    problem = Problem.draw(family, seed, "cuda", LONGEST)
    with torch.no_grad():
        problem.tensors[1][:, :, query_blocks.TILE_KEYS :] *= choices.choice((1, 1, 1, 4, 16))
    return problem


def check_output(problem: Problem) -> None:
    """Compute output and log-sum-exp, and assert that they match."""
    exact, single, naive = (problem.plain(dtype) for dtype in (torch.float64, torch.float32, problem.family.dtype))
    call = build_call(*(tensor.detach() for tensor in problem.tensors), **problem.options)
    assert forward.unsupported_reasons(call) == []
    with other_gpu(problem.seed):
        output, lse = forward.forward(call)
    logs = _logarithms(problem)
    compare("output", output, exact["output"], naive["output"], logs)
    empty = exact["lse"] == -math.inf
    assert torch.equal(lse == -math.inf, empty), "log-sum-exp: other rows are empty"
    compare("log-sum-exp", lse[~empty], exact["lse"][~empty], single["lse"][~empty], logs, terms=1.0)


def check_statistics(problem: Problem) -> None:
    """Compute column sums and, at random, row sums, and assert that they match."""
    exact, single = (problem.plain(dtype) for dtype in (torch.float64, torch.float32))
    call = build_call(*(tensor.detach() for tensor in problem.tensors), **problem.options)
    assert sweep.unsupported_reasons(call) == []
    choices = random.Random(problem.seed)
    requested = [name for name in ("entropy", "distance") if choices.random() < 0.8]
    request = StatisticsRequest(received=True, **dict.fromkeys(requested, True))
    with other_gpu(problem.seed):
        found = compute_statistics(call, exact["lse"].detach().float(), request)
    for name in ("received", *requested):
        compare(name, getattr(found, name), exact[name], single[name], _logarithms(problem), terms=1.0)


def check_top(problem: Problem) -> None:
    """Find the largest weights, and assert that they and the weights of their keys match."""
    exact, single = (problem.plain(dtype)["weights"].detach() for dtype in (torch.float64, torch.float32))
    call = build_call(*(tensor.detach() for tensor in problem.tensors), **problem.options)
    count = random.Random(problem.seed).choice((1, 5, 16, 32))
    assert topk.unsupported_reasons(call, count) == []
    with other_gpu(problem.seed):
        top = topk.top_weights(call, problem.plain(torch.float64)["lse"].detach().float(), count)
    assert top is not None, "too many products reach the bound of a row"
    logs, existing = _logarithms(problem), min(count, exact.shape[3])
    largest, naive = (cells.topk(existing).values for cells in (exact, single))
    compare("largest weights", top.weights[..., :existing], largest, naive, logs)
    at_keys, naive = (cells.gather(-1, top.keys.clamp(min=0)) * (top.keys >= 0) for cells in (exact, single))
    compare("weights of their keys", top.weights, at_keys, naive, logs)
    assert (top.keys >= 0).sum(dim=-1).equal((exact > 0).sum(dim=-1).clamp(max=count)), "other keys are missing"
    keys = top.keys.sort().values
    assert ((keys.diff() > 0) | (keys[..., 1:] < 0)).all(), "a key occurs twice"


@contextmanager
def other_gpu(seed: int) -> Iterator[None]:
    """Let the kernels expect a GPU of another size, so that thread blocks process several items, in another order."""
    choices = random.Random(f"other GPU {seed}")  # not the numbers that chose the problem
    processors, streamed, heads = (
        choices.choice((1, 5, 132)),
        choices.choice((1, 2**18, 2**24)),
        choices.choice((1, 16)),
    )
    with (
        patch.object(support, "processor_count", lambda device: processors),
        patch.object(support, "STREAMED_BYTES", streamed),
        patch.object(sweep, "MASKED_HEADS", heads),
    ):
        yield


def _logarithms(problem: Problem) -> float:
    """Return the largest logarithm of a weight, which scales rounding errors, plus a term for sums of tiles."""
    query, key = (tensor.detach().double().abs() for tensor in problem.tensors[:2])
    products = query @ key.repeat_interleave(problem.family.group, dim=1).mT
    largest = float(products.max()) * problem.family.key_dim**-0.5 + math.log(2 + key.shape[2])
    return largest + max(query.shape[2], key.shape[2]) / sweep.TILE.queries / 4  # sums of tiles are rounded too
