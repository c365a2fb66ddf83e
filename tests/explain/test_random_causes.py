"""Tests of causes on random texts: injected mistakes are named, and random errors get no false cause."""

import pytest

from support.mistaken_texts import FAILURES, mistaken_outcome, mistaken_text, random_error_outcome
from support.parameters import slow_except
from support.random_worked_texts import random_text

CHUNK = 10


@pytest.mark.parametrize(
    "start", slow_except({f"from {seed}": seed for seed in range(0, 60, CHUNK)}, "from 0", "from 10")
)
def test_injected_mistakes_are_found_and_named(start):
    for seed in range(start, start + CHUNK):
        counts, _ = mistaken_outcome(mistaken_text(seed))
        assert not {name: counts[name] for name in FAILURES if counts[name]}, f"mistaken_text({seed})"


@pytest.mark.parametrize(
    "start", slow_except({f"from {seed}": seed for seed in range(0, 60, CHUNK)}, "from 0", "from 10")
)
def test_random_errors_have_no_false_cause(start):
    for seed in range(start, start + CHUNK):
        counts = random_error_outcome(random_text(seed))
        assert not counts["false causes"], f"random_text({seed})"
