"""Tests of the most probable next tokens: computed from logits, at once or when they are read."""

import pickle

import pytest
import torch

from clearhead.recording import DeferredNextTokens, NextTokens
from clearhead.recording.next_tokens import MAX_SAVED_POSITIONS, TopTokens


def named(logits, positions=None):
    return TopTokens.of(logits, positions).named(lambda token: f"t{token}")


def test_the_most_probable_tokens_are_those_of_the_softmax():
    logits = torch.randn(7, 31, dtype=torch.float64) * 5
    made = named(logits)
    exact = logits.softmax(1)
    for position, row in enumerate(exact):
        top = row.topk(5)
        got = made.at(position)
        assert [text for text, _ in got] == [f"t{token}" for token in top.indices.tolist()]
        assert [probability for _, probability in got] == pytest.approx(top.values.tolist(), rel=1e-5)
    assert made.at(7) == ()
    assert named(logits[:, :2]).probabilities.shape == (7, 2)


def test_masked_tokens_are_predicted_at_their_positions():
    made = named(torch.eye(3) * 9, [2, 5, 11])
    assert [made.at(position)[0][0] for position in (2, 5, 11)] == ["t0", "t1", "t2"]
    assert made.at(3) == made.at(0) == made.at(12) == ()
    with pytest.raises(ValueError, match="position is -1; expected a whole number of at least 0"):
        made.at(-1)


def test_logits_that_are_not_finite_give_no_tokens():
    assert named(torch.full((2, 7), torch.nan)) is None


def test_deferred_tokens_are_computed_once_when_they_are_read():
    asked, logits = [], torch.randn(MAX_SAVED_POSITIONS + 3, 7)

    def predict(positions):
        asked.append(tuple(positions))
        return named(logits[list(positions)], positions)

    deferred, made = DeferredNextTokens(predict, range(len(logits))), named(logits)
    assert asked == []
    assert dict(deferred.to("cpu").at(4)) == dict(deferred.at(4)) == pytest.approx(dict(made.at(4)))
    assert deferred.at(len(logits)) == ()
    assert asked == [(4,)]
    last = deferred.computed()
    assert last.positions == tuple(range(3, len(logits)))
    assert dict(last.at(len(logits) - 1)) == pytest.approx(dict(made.at(len(logits) - 1)))
    assert last.at(2) == ()
    assert repr(deferred) == "DeferredNextTokens(1,027 positions)"


def test_pickled_deferred_tokens_are_computed():
    deferred = DeferredNextTokens(lambda positions: named(torch.eye(5)[list(positions)], positions), range(5))
    read = pickle.loads(pickle.dumps(deferred))
    assert isinstance(read, NextTokens)
    assert dict(read.at(3)) == pytest.approx(dict(deferred.at(3)))
