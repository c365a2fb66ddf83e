"""Tests of the end of an answer."""

from types import SimpleNamespace

import pytest

from clearhead.serving.answers import StopRules, end_of_answer


def letters(ids):
    return "".join(chr(ord("a") + each) for each in ids)


@pytest.mark.parametrize(
    ("written", "rows", "rules", "end"),
    [
        ([1, 2, 3], 3, StopRules(tokens=frozenset({3})), (3, "stop")),
        ([1, 3, 2], 3, StopRules(tokens=frozenset({3})), (2, "stop")),
        ([1, 2, 3], 3, StopRules(max_tokens=3), (3, "length")),
        ([1, 2, 3, 4], 4, StopRules(max_tokens=3), (3, "length")),
        ([1, 2], 3, StopRules(max_tokens=3), (3, "length")),  # the last one is unknown
        ([1, 2, 3], 3, StopRules(tokens=frozenset({3}), max_tokens=3), (3, "stop")),
        ([1, 2, 3, 4], 4, StopRules(texts=("x", "cd")), (3, "stop")),
        ([1, 2, 3, 1, 2, 3, 4], 7, StopRules(texts=("cd",), min_tokens=4), (4, "stop")),
        ([1, 2, 3], 3, StopRules(texts=("cd",), max_tokens=3), (3, "stop")),
        ([1, 2, 3], 3, StopRules(texts=("x",)), (3, "abort")),
        ([1, 2], 3, StopRules(texts=("x",)), (3, None)),
        ([], 0, StopRules(max_tokens=3), (0, "abort")),
    ],
)
def test_ends(written, rows, rules, end):
    assert end_of_answer(written, rows, rules, letters) == end


def test_rules_of_vllm():
    sampling = SimpleNamespace(eos_token_id=2, stop_token_ids=[5], stop=["\n"], min_tokens=3, max_tokens=100)
    assert StopRules.of(sampling, 7, 64) == StopRules(frozenset({2, 5}), ("\n",), 3, 57)
    sampling = SimpleNamespace(stop="end", eos_token_id=None, max_tokens=8, skip_special_tokens=False)
    assert StopRules.of(sampling, 7, None) == StopRules(texts=("end",), max_tokens=8, skip_special_tokens=False)
    assert StopRules.of(None, 7, None) == StopRules()
