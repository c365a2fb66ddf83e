"""Tests of head roles: statistics against closed forms, thresholds of labels, and JSON."""

import json
import math
import weakref

import pytest
import torch

from clearhead import Causal, Dense, Prefix, Window, attention
from clearhead.analysis.relations import RelationScore
from clearhead.analysis.roles import MIN_VISIBLE_KEYS, SCORE_NAMES, SINK_THRESHOLD, HeadStatistics, Roles, head_roles
from clearhead.analysis.statistics import MAX_OFFSET
from clearhead.recording.recording import Recording, Stack
from support.crafted_recordings import looking_at, recording, tokens, weights_of

SIZE = 17  # with a causal mask: 9 visible keys per query on average
HARMONIC = sum(1 / n for n in range(1, SIZE + 1))
UP = "dependent → head"


def previous(size: int) -> torch.Tensor:
    return looking_at([max(position - 1, 0) for position in range(size)])


def near(value: float):
    return pytest.approx(value, rel=1e-6, abs=1e-9)


class TestCausalHeads:
    """Three heads in two layers, which attend to the previous token, to all tokens uniformly, to the first token."""

    def roles(self) -> Roles:
        first = weights_of(torch.stack([previous(SIZE), torch.ones(SIZE, SIZE)]), Causal())
        second = weights_of(looking_at([0] * SIZE)[None], Causal())
        return head_roles([recording(first, second, name="decoder")])

    def test_head_on_the_previous_token_is_a_previous_token_head(self):
        roles = self.roles()
        statistics = roles.heads["decoder", 0, 0]
        assert (statistics.queries, statistics.keys) == (SIZE, (SIZE + 1) / 2)
        # the first query can only attend to itself
        assert (statistics.previous, statistics.self, statistics.next) == (near(1), near(1 / SIZE), 0)
        assert statistics.sink == near(2 / SIZE)
        assert (statistics.offset, statistics.positional) == (-1, 1)
        assert statistics.distance == near((SIZE - 1) / SIZE)
        assert (statistics.entropy, statistics.spread) == (near(0), near(0))
        assert statistics.delimiter is statistics.duplicate is statistics.induction is None
        assert roles.labels(("decoder", 0, 0)) == ("previous token", "positional −1", "sharp")

    def test_uniform_head_is_broad(self):
        roles = self.roles()
        statistics = roles.heads["decoder", 0, 1]
        assert statistics.entropy == near(math.log(math.factorial(SIZE)) / SIZE)
        assert statistics.spread == near(1)
        assert statistics.distance == near((SIZE - 1) / 4)
        assert (statistics.self, statistics.sink) == (near(HARMONIC / SIZE), near(HARMONIC / SIZE))
        assert statistics.previous == near((HARMONIC - 1) / (SIZE - 1))
        assert roles.labels(("decoder", 0, 1)) == ("broad",)

    def test_head_on_the_first_token_is_a_sink(self):
        roles = self.roles()
        statistics = roles.heads["decoder", 1, 0]
        assert (statistics.sink, statistics.self, statistics.previous) == (
            near(1),
            near(1 / SIZE),
            near(1 / (SIZE - 1)),
        )
        assert statistics.distance == near((SIZE - 1) / 2)
        assert (statistics.offset, statistics.positional) == (
            0,
            near(1 / SIZE),
        )  # each offset occurs once; the nearest wins
        assert roles.label(("decoder", 1, 0)) == "sink"

    def test_heads_are_listed_by_layer_and_index(self):
        assert list(self.roles().heads) == [("decoder", 0, 0), ("decoder", 0, 1), ("decoder", 1, 0)]


class TestEncoderHeads:
    TEXTS = tokens(["[CLS]", *(f"w{n}" for n in range(8)), "[SEP]"])

    def head(self, matrix) -> tuple[HeadStatistics, tuple[str, ...]]:
        roles = head_roles([recording(weights_of(matrix[None]), texts=self.TEXTS)])
        address = ("encoder", 0, 0)
        return roles.heads[address], roles.labels(address)

    def test_head_on_the_next_token_is_a_next_token_head(self):
        statistics, labels = self.head(looking_at([*range(1, 10), 9]))
        assert (statistics.next, statistics.self, statistics.offset, statistics.positional) == (
            near(1),
            near(1 / 10),
            1,
            1,
        )
        assert statistics.delimiter == near(1 / 8)  # the last of the eight words attends to [SEP]
        assert labels[:2] == ("next token", "positional +1")

    def test_head_on_the_diagonal_is_a_self_head(self):
        statistics, labels = self.head(torch.eye(10))
        assert (statistics.self, statistics.offset, statistics.positional, statistics.distance) == (near(1), 0, 1, 0)
        assert labels == ("self", "positional 0", "sharp")

    def test_delimiter_is_the_total_weight_on_special_tokens_without_special_queries(self):
        matrix = torch.full((10, 10), 0.4 / 8)
        matrix[:, 0], matrix[:, 9] = 0.2, 0.4
        matrix[[0, 9]] = looking_at([4, 4], 10).float()  # special queries attend to other tokens, and are not counted
        statistics, labels = self.head(matrix)
        assert statistics.delimiter == near(0.6)
        assert labels == ("delimiter",)

    def test_positional_head_with_offset_minus_3(self):
        statistics, labels = self.head(looking_at([(position - 3) % 10 for position in range(10)]))
        assert (statistics.offset, statistics.positional) == (-3, 1)  # over the seven queries that have a key there
        assert labels[0] == "positional −3"
        keys = [(position - 3) % 10 for position in range(10)]
        statistics, labels = self.head(looking_at([*keys[:9], 9]))
        assert statistics.positional == near(6 / 7)
        assert labels == ("sharp",)


def test_delimiter_is_none_without_special_tokens():
    plain, marked = tokens(list("abc")), tokens(["[CLS]", "b", "c"])
    layer = weights_of(looking_at([0, 0, 0])[None])
    assert head_roles([recording(layer, texts=plain)]).heads["encoder", 0, 0].delimiter is None
    mixed = head_roles([recording(layer, texts=plain), recording(layer, texts=marked)])
    assert mixed.heads["encoder", 0, 0].delimiter == near(1)


def test_every_query_has_the_same_weight():
    short = recording(weights_of(torch.eye(5)[None]))
    long = recording(weights_of(looking_at([*range(1, 15), 0])[None]))
    statistics = head_roles([short, long]).heads["encoder", 0, 0]
    assert statistics.queries == 20
    assert statistics.self == near(5 / 20)
    assert statistics.next == near(14 / (4 + 14))
    assert statistics.distance == near((14 + 14) / 20)
    assert statistics.keys == near((5 * 5 + 15 * 15) / 20)
    assert (statistics.offset, statistics.positional) == (1, near(14 / 18))


def test_spread_is_relative_to_the_visible_keys():
    rows = torch.zeros(1, SIZE, SIZE)
    rows[0] = torch.eye(SIZE) + torch.diag(torch.ones(SIZE - 1), -1)  # uniform over two of the three keys in the window
    statistics = head_roles([recording(weights_of(rows, Window(before=2)))]).heads["encoder", 0, 0]
    assert statistics.keys == near((1 + 2 + 3 * (SIZE - 2)) / SIZE)
    assert statistics.entropy == near((SIZE - 1) * math.log(2) / SIZE)
    assert statistics.spread == near((SIZE - 1) * math.log(2) / (math.log(2) + (SIZE - 2) * math.log(3)))


@pytest.mark.parametrize(
    "mask", [None, Causal(), Window(2, 1) | Prefix(1), Dense(torch.arange(SIZE) % 3 > 0) & Causal()], ids=repr
)
@pytest.mark.parametrize("bias", [None, torch.where(torch.arange(SIZE) == 4, -torch.inf, 1.0)], ids=["", "bias"])
def test_keys_is_the_mean_number_of_visible_keys(mask, bias):
    x = torch.randn(1, 2, SIZE, 3)
    weights = attention(x, x, x, mask=mask, bias=bias, return_weights=True)[1]
    assert head_roles([recording(weights)]).heads["encoder", 0, 1].keys == near(float((weights[0, 1] > 0).sum()) / SIZE)


def test_visible_keys_do_not_depend_on_the_block_size(monkeypatch):
    one = recording(weights_of(torch.ones(1, SIZE, SIZE), Window(before=2)))
    whole = head_roles([one])
    monkeypatch.setattr("clearhead.analysis.statistics.MAX_SCORE_CELLS", 3 * SIZE)
    assert head_roles([one]) == whole


def test_short_texts_give_no_labels():
    """With nine causal tokens, uniform attention gives the first token more than the sink threshold."""
    roles = head_roles([recording(weights_of(torch.ones(1, 9, 9), Causal()))])
    statistics = roles.heads["encoder", 0, 0]
    assert statistics.sink > SINK_THRESHOLD
    assert statistics.keys < MIN_VISIBLE_KEYS
    assert roles.label(("encoder", 0, 0)) == ""


LENGTH = 11
RANDOM = [f"t{index}" for index in range(LENGTH)]


class TestRepeatedTokens:
    def recording(self, texts: list[str], length: int, lead: int) -> Recording:
        """Return a head with weight 0.75 on the key after the earlier occurrence and 0.25 on that occurrence.

        The last query of the first copy attends to the key at the induction offset too, and must not be counted.
        """
        size = len(texts)
        matrix = torch.eye(size)
        start = lead + length
        matrix[start - 1] = looking_at([lead], size)[0]
        for query in range(start, min(start + length, size)):
            matrix[query] = 0
            matrix[query, query - length + 1], matrix[query, query - length] = 0.75, 0.25
        return recording(weights_of(matrix[None], Causal()), texts=tokens(texts))

    @pytest.mark.parametrize(("lead", "tail"), [([], []), (["[BOS]"], []), (["[a]", "[b]"], ["[SEP]"])])
    def test_only_queries_of_the_second_copy_count(self, lead, tail):
        roles = head_roles([self.recording([*lead, *RANDOM, *RANDOM, *tail], LENGTH, len(lead))])
        statistics = roles.heads["encoder", 0, 0]
        assert (statistics.induction, statistics.duplicate) == (near(0.75), near(0.25))
        assert roles.labels(("encoder", 0, 0)) == ("induction",)
        assert statistics == HeadStatistics(0, duplicate=statistics.duplicate, induction=statistics.induction)

    def test_head_on_the_first_copy_is_a_duplicate_token_head(self):
        matrix = looking_at([*range(LENGTH), *range(LENGTH)], 2 * LENGTH)
        roles = head_roles([recording(weights_of(matrix[None]), texts=tokens(RANDOM * 2))])
        statistics = roles.heads["encoder", 0, 0]
        assert (statistics.induction, statistics.duplicate) == (0, near(1))
        assert roles.label(("encoder", 0, 0)) == "duplicate token"

    @pytest.mark.parametrize(
        "texts",
        [
            [*RANDOM, *RANDOM[:-1], "other"],
            [*RANDOM, *RANDOM[:-1]],
            RANDOM[:7] * 2,
            ["[BOS]"] * 2 * LENGTH,
            [*RANDOM, "[SEP]", *RANDOM],
        ],
        ids=["one token differs", "one token is missing", "too short", "only special tokens", "with a gap"],
    )
    def test_other_texts_are_ordinary(self, texts):
        statistics = head_roles([self.recording(texts, len(texts) // 2, 0)]).heads["encoder", 0, 0]
        assert statistics.induction is statistics.duplicate is None
        assert statistics.queries == len(texts)

    def test_ordinary_texts_and_repetitions_give_separate_statistics(self):
        ordinary = recording(weights_of(previous(SIZE)[None], Causal()))
        repeated = self.recording(RANDOM * 2, LENGTH, 0)
        alone, both = head_roles([ordinary]), head_roles([repeated, ordinary, repeated])
        statistics, expected = both.heads["encoder", 0, 0], alone.heads["encoder", 0, 0]
        assert (statistics.induction, statistics.duplicate) == (near(0.75), near(0.25))
        for name in set(SCORE_NAMES) - {"duplicate", "induction"}:
            assert getattr(statistics, name) == getattr(expected, name)

    def test_repetitions_of_different_lengths_are_weighted_by_their_queries(self):
        matrix = torch.eye(16)
        eye = recording(weights_of(matrix[None], Causal()), texts=tokens(RANDOM[:8] * 2))
        statistics = head_roles([eye, self.recording(RANDOM * 2, LENGTH, 0)]).heads["encoder", 0, 0]
        assert statistics.induction == near(0.75 * LENGTH / (LENGTH + 8))


class TestCrossAttention:
    def model(self) -> Recording:
        source, target = tokens(["[x]", *"abcdefghijk"]), tokens(list("ABCDEFG"))
        cross = weights_of(looking_at([position + 2 for position in range(7)], 12)[None])
        statistics = weights_of(torch.eye(7)[None], Causal())
        return Recording(
            "crafted", {"decoder": Stack((statistics,), target, target), "cross": Stack((cross,), target, source)}
        )

    def test_statistics_of_neighbors_and_sink_are_none(self):
        roles = head_roles([self.model()])
        statistics = roles.heads["cross", 0, 0]
        assert (statistics.keys, statistics.entropy, statistics.spread, statistics.delimiter) == (
            12,
            near(0),
            near(0),
            0,
        )
        assert (statistics.offset, statistics.positional) == (2, 1)
        assert statistics.distance == near(3)  # by default the last query is at the last key: position 5 + query
        assert all(getattr(statistics, name) is None for name in ("self", "previous", "next", "sink"))
        assert roles.label(("cross", 0, 0)) == "positional +2"
        assert roles.heads["decoder", 0, 0].self == near(1)

    def test_attention_from_a_text_to_its_copy_has_no_self_or_induction(self):
        texts = tokens(RANDOM * 2)
        stack = Stack((weights_of(torch.eye(2 * LENGTH)[None]),), texts, texts)
        statistics = head_roles([Recording("crafted", {"cross": stack})]).heads["cross", 0, 0]
        assert statistics.self is statistics.induction is None
        assert statistics.queries == 2 * LENGTH


def test_offsets_beyond_the_maximum_are_ignored():
    size = MAX_OFFSET + 5
    far = looking_at([(position + MAX_OFFSET + 1) % size for position in range(size)])
    statistics = head_roles([recording(weights_of(far[None]))]).heads["encoder", 0, 0]
    assert statistics.offset == MAX_OFFSET + 1 - size  # the keys that wrap around are near
    only = looking_at([position + MAX_OFFSET + 1 for position in range(3)], size)
    cross = Stack((weights_of(only[None]),), tokens(list("abc")), tokens([f"w{n}" for n in range(size)]))
    statistics = head_roles([Recording("crafted", {"cross": cross})]).heads["cross", 0, 0]
    assert (statistics.offset, statistics.positional) == (None, 0)


def test_rows_without_visible_keys_count_as_zero():
    """Queries 0 and 1 have no visible keys; each of the others has one."""
    x = torch.zeros(1, 1, 5, 1)
    allowed = torch.eye(5, dtype=torch.bool)
    allowed[:2] = False
    weights = attention(x, x, x, mask=allowed, return_weights=True)[1]
    statistics = head_roles([recording(weights)]).heads["encoder", 0, 0]
    assert (statistics.self, statistics.positional, statistics.offset) == (near(3 / 5), near(3 / 5), 0)
    assert (statistics.entropy, statistics.spread, statistics.keys) == (0, None, near(3 / 5))
    nothing = attention(x, x, x, mask=torch.zeros(5, 5, dtype=torch.bool), return_weights=True)[1]
    statistics = head_roles([recording(nothing)]).heads["encoder", 0, 0]
    assert (statistics.self, statistics.positional, statistics.offset) == (0, 0, None)


def test_statistics_of_texts_too_long_for_a_dense_matrix():
    size = 17_000
    x = torch.zeros(1, 1, size, 1)
    weights = attention(x, x, x, mask=Causal(), return_weights=True)[1]
    with pytest.raises(ValueError, match="more than the limit"):
        weights.dense()
    texts = tokens(["[BOS]", *map(str, range(size - 1))])
    statistics = head_roles([recording(weights, texts=texts)]).heads["encoder", 0, 0]
    harmonic = sum(1 / n for n in range(1, size + 1))
    assert statistics.spread == pytest.approx(1, rel=1e-4)
    assert statistics.sink == pytest.approx(harmonic / size, rel=1e-4)
    assert statistics.delimiter == pytest.approx((harmonic - 1) / (size - 1), rel=1e-4)
    assert statistics.distance == pytest.approx((size - 1) / 4, rel=1e-4)


def score(low: float, baseline: float, head: int = 0, relation: str = "amod") -> RelationScore:
    return RelationScore(relation, UP, ("encoder", 0, head), low + 0.1, low, low + 0.2, 50, baseline, -1)


class TestRelationLabels:
    def labels(self, *scores: RelationScore) -> list[tuple[str, ...]]:
        one = recording(weights_of(torch.stack([torch.eye(3), torch.eye(3)])))
        roles = head_roles([one], relations=scores)
        assert roles.relations == scores
        return [roles.labels(address) for address in roles.heads]

    def test_labels_require_a_margin_above_the_baseline(self):
        assert self.labels(score(0.56, 0.5, 1)) == [(), ("amod: dependent → head",)]
        assert self.labels(score(0.54, 0.5, 1)) == [(), ()]
        assert self.labels(score(0.8, 0.97)) == [(), ()]

    def test_labels_are_sorted_by_strength(self):
        weak, strong = score(0.6, 0.5, relation="amod"), score(0.7, 0.5, relation="obj")
        for scores in ((weak, strong), (strong, weak)):
            assert self.labels(*scores)[0] == ("obj: dependent → head", "amod: dependent → head")

    def test_scores_of_other_heads_are_rejected(self):
        with pytest.raises(ValueError, match="relations\\[0\\] is of head \\('encoder', 0, 7\\)"):
            self.labels(score(0.6, 0.5, 7))
        with pytest.raises(TypeError, match="relations\\[0\\] is 'amod'; expected a RelationScore"):
            self.labels("amod")


def made_up(**scores: float) -> Roles:
    return Roles("made up", {("decoder", 0, 0): HeadStatistics(100, keys=50.0, **scores)})


@pytest.mark.parametrize(
    ("name", "threshold", "label"),
    [
        ("self", 0.4, "self"),
        ("previous", 0.4, "previous token"),
        ("next", 0.4, "next token"),
        ("sink", 0.3, "sink"),
        ("delimiter", 0.5, "delimiter"),
        ("induction", 0.3, "induction"),
        ("duplicate", 0.3, "duplicate token"),
        ("spread", 0.9, "broad"),
    ],
)
def test_a_label_requires_a_score_above_its_threshold(name, threshold, label):
    assert made_up(**{name: threshold + 0.01}).labels(("decoder", 0, 0)) == (label,)
    assert made_up(**{name: threshold - 0.01}).labels(("decoder", 0, 0)) == ()


def test_labels_are_sorted_by_strength_with_broad_last():
    roles = made_up(sink=0.4, previous=0.55, spread=0.95, induction=0.9)
    assert roles.labels(("decoder", 0, 0)) == ("induction", "previous token", "sink", "broad")
    with pytest.raises(KeyError, match="made up has no head \\('decoder', 0, 1\\)"):
        roles.label(("decoder", 0, 1))


def test_top_returns_the_highest_scores_without_none():
    heads = {
        ("decoder", 0, head): HeadStatistics(9, previous=value) for head, value in enumerate((0.1, None, 0.7, 0.3))
    }
    roles = Roles("made up", heads)
    assert roles.top("previous", 2) == [(("decoder", 0, 2), 0.7), (("decoder", 0, 3), 0.3)]
    assert len(roles.top("previous")) == 3
    assert roles.top("induction") == []
    with pytest.raises(ValueError, match="name is 'prev'; expected one of entropy, .*induction"):
        roles.top("prev")
    with pytest.raises(ValueError, match="count is 0"):
        roles.top("previous", 0)


def test_json_round_trip_and_rejects_other_text():
    ordinary = recording(weights_of(torch.stack([previous(SIZE), torch.ones(SIZE, SIZE)]), Causal()))
    roles = head_roles([ordinary], relations=[score(0.6, 0.5, 1)])
    text = roles.to_json()
    assert Roles.from_json(text) == roles
    rows = json.loads(text)
    assert rows == roles.to_dict()
    assert (rows["heads"][1]["stack"], rows["heads"][1]["layer"], rows["heads"][1]["head"]) == ("encoder", 0, 1)
    assert rows["heads"][1]["labels"] == ["amod: dependent → head", "broad"]
    assert rows["heads"][0]["induction"] is None
    assert rows["relations"][0]["head"] == 1
    for wrong in ("{", "[]", "{}", text.replace("entropy", "entrophy"), text.replace('"layer"', '"lair"')):
        with pytest.raises(ValueError, match="text is not from Roles.to_json"):
            Roles.from_json(wrong)


def test_recordings_are_not_kept():
    alive: list[weakref.ref] = []

    def made():
        for _ in range(5):
            assert sum(ref() is not None for ref in alive) <= 1  # the one read last
            one = recording(weights_of(torch.eye(5)[None]))
            alive.append(weakref.ref(one["encoder"].layers[0]))
            yield one
            del one

    assert head_roles(made()).heads["encoder", 0, 0].queries == 25
    assert not any(ref() is not None for ref in alive)


def test_head_roles_rejects_wrong_recordings():
    one, other = (recording(weights_of(torch.ones(heads, 3, 3))) for heads in (1, 2))
    with pytest.raises(ValueError, match="recordings has no entries; expected at least one Recording"):
        head_roles([])
    with pytest.raises(ValueError, match="recordings\\[1\\] is of 'crafted' with 2 heads, but recordings\\[0\\]"):
        head_roles([one, other])
    with pytest.raises(TypeError, match="recordings is a single Recording"):
        head_roles(one)
    with pytest.raises(TypeError, match="recordings\\[0\\] is 3; expected a Recording"):
        head_roles([3])
