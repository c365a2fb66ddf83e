"""Attention to earlier occurrences of a token in ordinary text, against the dense matrix in float64."""

import pytest
import torch

from clearhead import Causal, Dense, Window, attention
from clearhead.analysis import HeadStatistics, Roles, head_roles, measure_layer, measure_queries, repeated_tokens
from clearhead.analysis.repeated_tokens import RepeatedTokens
from clearhead.recording import Stack
from support.crafted_recordings import looking_at, recording, tokens, weights_of

TEXT = ["[s]", "a", "b", "a", "a", "c", "b", "a", "[e]", "a", "[s]", "b", "d"]
LONG = [f"w{(index * index) % 23}" for index in range(97)]


def dense_scores(dense: torch.Tensor, texts: list[str]) -> dict[str, float]:
    """Return the scores of one head by a loop over all pairs of tokens."""
    totals: dict[str, list[float]] = {"text_duplicate": [], "text_induction": []}
    for query, text in enumerate(texts):
        earlier = [key for key in range(query) if texts[key] == text and not text.startswith("[")]
        for name, keys in (
            ("text_duplicate", earlier),
            ("text_induction", [key + 1 for key in earlier if key + 1 < query]),
        ):
            if keys:
                totals[name].append(float(dense[query, keys].sum()))
    return {name: sum(values) / len(values) for name, values in totals.items()}


def random_weights(length: int, mask, heads: int = 4):
    generator = torch.Generator().manual_seed(length)
    query, key = (
        torch.randn(1, count, length, 5, generator=generator, dtype=torch.float64) for count in (heads, heads // 2)
    )
    return attention(2 * query, key, key, mask=mask, return_weights="keep_qk")[1]


@pytest.mark.parametrize("mask", [None, Causal()], ids=repr)
@pytest.mark.parametrize("texts", [TEXT, LONG], ids=["short", "long"])
def test_scores_are_those_of_the_dense_matrix(mask, texts):
    weights = random_weights(len(texts), mask)
    stack = Stack((weights,), tokens(texts), tokens(texts))
    for head, statistics in enumerate(measure_layer("decoder", stack, 0)):
        for name, score in dense_scores(weights.dense()[0, head], texts).items():
            assert getattr(statistics, name) == pytest.approx(score, rel=1e-12)


def test_scores_of_sampled_queries_are_means_over_those_queries():
    weights = random_weights(len(LONG), Causal()).part(heads=1)
    stack = Stack((weights,), tokens(LONG), tokens(LONG))
    queries = torch.tensor([3, 40, 77, 95])
    rows = weights[0, 0, queries]
    statistics = measure_queries("decoder", stack, weights, queries, rows, torch.zeros(4))
    expected = []
    for query, row in zip(queries.tolist(), rows, strict=True):
        keys = [key + 1 for key in range(query) if LONG[key] == LONG[query] and key + 1 < query]
        expected += [float(row[keys].sum())] if keys else []
    assert statistics.text_induction == pytest.approx(sum(expected) / len(expected), rel=1e-12)


BAND = torch.ones(len(LONG), len(LONG), dtype=torch.bool).tril().triu(-20)


@pytest.mark.parametrize(
    "mask", [Causal(), Window(20, 0), Causal() & Window(20, 20), Dense(BAND)], ids=["causal", "window", "both", "dense"]
)
def test_chance_is_the_score_of_uniform_attention(mask):
    same = torch.zeros(1, 1, len(LONG), 2, dtype=torch.float64)
    weights = attention(same, same, same, mask=mask, return_weights="keep_qk")[1]
    uniform = recording(weights, texts=tokens(LONG))
    statistics = head_roles([uniform]).heads["encoder", 0, 0]
    assert statistics.text_chance == pytest.approx(statistics.text_induction, rel=1e-6)
    assert 0 < statistics.text_chance < 1
    assert "broad" in head_roles([uniform]).labels(("encoder", 0, 0))
    assert "induction" not in head_roles([uniform]).labels(("encoder", 0, 0))
    queries = torch.arange(0, len(LONG), 3)
    sampled = measure_queries(
        "encoder", uniform["encoder"], weights, queries, weights[0, 0, queries], torch.zeros(len(queries))
    )
    assert sampled.text_chance == pytest.approx(sampled.text_induction, rel=1e-6)


def test_scores_are_none_without_a_repeated_token():
    weights = weights_of(torch.ones(2, 3, 3), Causal())
    once = head_roles([recording(weights, texts=tokens(["[s]", "a", "[s]"]))]).heads["encoder", 0, 1]
    assert (once.text_induction, once.text_duplicate, once.text_chance, once.text_repeats) == (None, None, None, 0)
    twice = head_roles([recording(weights, texts=tokens(["b", "a", "a"]))]).heads["encoder", 0, 1]
    assert (twice.text_induction, twice.text_repeats) == (None, 1)  # the key after the first "a" is the query
    assert twice.text_duplicate == pytest.approx(1 / 3)


def test_texts_with_many_repeats_use_evenly_spaced_queries(monkeypatch):
    monkeypatch.setattr(repeated_tokens, "MAX_PAIRS", 1000)
    pairs = RepeatedTokens.from_tokens(tokens(["x"] * 501))
    assert 500 < len(pairs.queries) < 2000
    assert set(pairs.queries.diff().tolist()) == {0, 126}
    assert (pairs.keys < pairs.queries).all()


class TestLabels:
    def test_head_on_the_token_after_an_earlier_occurrence(self):
        texts = [f"w{(index * 7) % 31 % 13}" for index in range(80)]
        after = {}
        keys = []
        for index, text in enumerate(texts):
            keys.append(after.get(text, 0))
            after[text] = index + 1
        roles = head_roles([recording(weights_of(looking_at(keys)[None], Causal()), texts=tokens(texts))])
        assert roles.heads["encoder", 0, 0].text_induction > 0.9
        assert "induction" in roles.labels(("encoder", 0, 0))
        assert roles.top("text_induction")[0][0] == ("encoder", 0, 0)

    @pytest.mark.parametrize(
        ("scores", "labels"),
        [
            ({"text_induction": 0.31}, ("induction",)),
            ({"text_induction": 0.29}, ()),
            ({"text_duplicate": 0.31}, ("duplicate token",)),
            ({"text_induction": 0.9, "text_repeats": 15}, ()),
            ({"text_induction": 0.9, "induction": 0.1}, ()),  # repeated random sequences have priority
        ],
    )
    def test_label_needs_a_clear_score_over_enough_queries(self, scores, labels):
        statistics = HeadStatistics(100, **{"text_chance": 0.2, "text_repeats": 16, **scores})
        assert Roles("made up", {("decoder", 0, 0): statistics}).labels(("decoder", 0, 0)) == labels
