"""Tests of relation scores: attention between words, visible words, and selection on held-out sentences."""

import weakref

import pytest
import torch

from clearhead import Causal, attention
from clearhead.analysis.conllu import Sentence, read_conllu
from clearhead.analysis.relations import BASELINE_OFFSETS, RelationScore, relation_scores, wilson
from clearhead.recording.recording import Recording, Stack
from support.crafted_recordings import looking_at, recording, tokens, weights_of
from support.paths import DATA

TINY = DATA / "tiny.conllu"
# "small dogs bark": each word depends on the next
CHAIN = Sentence(("small", "dogs", "bark"), (1, 2, -1), ("amod", "nsubj", "root"))
# "dogs small bark": the adjective is after its noun
TURNED = Sentence(("dogs", "small", "bark"), (2, 0, -1), ("nsubj", "amod", "root"))
UP, DOWN = "dependent → head", "head → dependent"


def scores_of(recordings, sentences, minimum=1) -> dict[tuple[str, str], RelationScore]:
    scores = relation_scores(recordings, sentences, minimum=minimum)
    assert len({(score.relation, score.direction) for score in scores}) == len(scores)
    return {(score.relation, score.direction): score for score in scores}


def following(sentence: Sentence, mask=None) -> Recording:
    """Return two layers of two heads. Head (1, 1) attends to the head of each word, the others to the first word."""
    count = len(sentence.words)
    first, tree = looking_at([0] * count), looking_at([max(head, 0) for head in sentence.heads])
    return recording(weights_of(torch.stack([first, first]), mask), weights_of(torch.stack([first, tree]), mask))


def test_a_head_that_follows_the_tree_has_accuracy_1():
    sentences = [sentence for sentence in read_conllu(TINY) for _ in range(2)]  # each sentence is in both halves
    scores = scores_of((following(sentence) for sentence in sentences), sentences)
    amod = scores["amod", UP]
    assert amod.address == ("encoder", 1, 1)
    assert amod.accuracy == 1
    assert (amod.baseline, amod.offset) == (1, 1)  # Small → dogs: always the next word
    assert (amod.low, amod.high) == wilson(amod.count, amod.count)
    assert "root" not in {relation for relation, _ in scores}
    assert "punct" not in {relation for relation, _ in scores}
    assert {"nsubj", "obl", "aux"} <= {relation for relation, _ in scores}


def test_counts_accuracy_and_baseline_of_a_known_corpus():
    """The even half has three chains. The odd half has two chains and a reversed one, where the offset is wrong."""
    sentences = [CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, TURNED]
    scores = scores_of(map(following, sentences), sentences)
    amod = scores["amod", UP]
    assert (amod.address, amod.accuracy, amod.count) == (("encoder", 1, 1), 1, 3)
    assert (amod.baseline, amod.offset) == (pytest.approx(2 / 3), 1)
    # from "dogs" to the first word, which is "small" in a chain, but "dogs" itself in the reversed sentence
    down = scores["amod", DOWN]
    assert (down.address, down.count, down.offset) == (("encoder", 0, 0), 3, -1)
    assert down.accuracy == pytest.approx(2 / 3)


def test_heads_are_selected_on_even_sentences_and_scored_on_odd_ones():
    next_word, last_word = looking_at([1, 2, 0]), looking_at([2, 0, 1])
    right_on_even = [torch.stack([next_word, last_word]), torch.stack([last_word, next_word])]
    sentences = [CHAIN] * 8
    scores = scores_of((recording(weights_of(right_on_even[n % 2])) for n in range(8)), sentences)
    assert scores["amod", UP].address == ("encoder", 0, 0)  # right on 0, 2, 4, 6
    assert scores["amod", UP].accuracy == 0
    assert scores["amod", UP].count == 4
    assert scores["amod", UP].baseline == 1
    turned = [CHAIN, TURNED] * 4
    scores = scores_of((recording(weights_of(right_on_even[0])) for _ in range(8)), turned)
    assert (scores["amod", UP].offset, scores["amod", UP].baseline) == (1, 0)


def test_attention_is_summed_over_tokens_of_the_key_word_and_averaged_over_those_of_the_query_word():
    """Word 0 (two tokens) depends on word 1 (two tokens); words 2 and 3 have one token each."""
    sentence = Sentence(tuple("abcd"), (1, -1, 1, 1), ("amod", "root", "obj", "obj"))
    texts = tokens(["[CLS]", "a", "a", "b", "b", "c", "d"], [None, 0, 0, 1, 1, 2, 3])
    # averaged over the tokens of a, b receives 0.24 + 0.24 = 0.48, and c and d receive 0.26 each
    head = torch.full((7, 7), 1 / 7)
    head[1] = torch.tensor([0, 0, 0, 0.24, 0.24, 0.52, 0])
    head[2] = torch.tensor([0, 0, 0, 0.24, 0.24, 0, 0.52])
    scores = scores_of([recording(weights_of(head[None]), texts=texts)] * 2, [sentence] * 2)
    assert scores["amod", UP].accuracy == 1
    # now b receives 0.24, less than c and d
    head[1:3, 3:5] = 0.12
    scores = scores_of([recording(weights_of(head[None]), texts=texts)] * 2, [sentence] * 2)
    assert scores["amod", UP].accuracy == 0


def test_the_word_itself_and_special_tokens_are_excluded():
    texts = tokens(["[CLS]", "small", "dogs", "bark", "[SEP]"])
    row = torch.tensor([[0.3, 0.4, 0.07, 0.03, 0.2]])  # from "small": most to itself, then to the special tokens
    head = torch.cat([torch.ones(1, 5), row, torch.ones(3, 5)])
    scores = scores_of([recording(weights_of(head[None]), texts=texts)] * 2, [CHAIN] * 2)
    assert scores["amod", UP].accuracy == 1


def test_any_dependent_of_the_relation_is_a_right_answer():
    sentence = Sentence(("big", "red", "dogs", "now"), (2, 2, -1, 2), ("amod", "amod", "root", "advmod"))
    for chosen, accuracy in ((0, 1), (1, 1), (3, 0)):
        head = looking_at([2, 2, chosen, 2])
        scores = scores_of([recording(weights_of(head[None]))] * 2, [sentence] * 2)
        assert scores["amod", DOWN].accuracy == accuracy
        assert scores["amod", DOWN].count == 1
        assert scores["amod", UP].count == 2


class TestVisibility:
    def test_questions_about_later_words_are_skipped_in_a_causal_decoder(self):
        sentences = [CHAIN, TURNED] * 2
        scores = scores_of((following(sentence, Causal()) for sentence in sentences), sentences)
        # only "small" of the reversed sentences has its head before it, and these are all in the scored half
        assert ("amod", UP) not in scores
        assert ("nsubj", UP) not in scores
        assert scores["nsubj", DOWN].count == 2
        turned = [TURNED] * 4
        scores = scores_of((following(sentence, Causal()) for sentence in turned), turned)
        assert (scores["amod", UP].count, scores["amod", UP].accuracy) == (2, 1)

    def test_later_dependents_are_not_right_answers_for_an_offset(self):
        sentence = Sentence(("a", "old", "dogs", "here"), (2, 0, -1, 2), ("amod", "dep", "root", "amod"))
        for mask, offset in ((Causal(), -2), (None, 1)):  # the nearer offset, 1, wins if later words are visible
            scores = scores_of((following(sentence, mask) for _ in range(2)), [sentence] * 2)
            assert (scores["amod", DOWN].offset, scores["amod", DOWN].baseline) == (offset, 1)

    def test_words_with_underflowed_weights_are_visible_and_a_head_without_weight_is_wrong(self):
        scores = torch.full((1, 1, 3, 3), -200.0)  # exp() underflows to 0 in float32
        scores[..., range(3), range(3)] = 0
        x = torch.zeros(1, 1, 3, 1)
        weights = attention(x, x, x, bias=scores, return_weights=True)[1]
        assert weights[0, 0, 0, 1] == 0
        scores = scores_of([recording(weights)] * 2, [CHAIN] * 2)
        assert (scores["amod", UP].count, scores["amod", UP].accuracy) == (1, 0)
        # argmax of all zeros is the first word, which would be right
        assert (scores["amod", DOWN].count, scores["amod", DOWN].accuracy) == (1, 0)


class TestStacks:
    def model(self, decoder: list[str]) -> Recording:
        words, other = tokens(["small", "dogs", "bark"]), tokens(decoder)
        encoder = weights_of(looking_at([2, 0, 1])[None])
        size = len(decoder)
        decoder = weights_of(looking_at([0, 0, 1, 2][:size])[None], Causal())
        cross = weights_of(looking_at([1] * size, 3)[None])
        stacks = {"encoder": Stack((encoder,), words, words), "decoder": Stack((decoder,), other, other)}
        return Recording("crafted", stacks | {"cross": Stack((cross,), other, words)})

    def test_a_decoder_with_another_text_is_not_scored(self):
        scores = relation_scores([self.model(["kleine", "Hunde", "bellen"])] * 2, [CHAIN] * 2, minimum=1)
        assert {score.address[0] for score in scores} == {"encoder"}

    def test_a_decoder_with_the_same_text_has_separate_scores(self):
        scores = relation_scores([self.model(["[BOS]", "small", "dogs", "bark"])] * 2, [CHAIN] * 2, minimum=1)
        accuracies = {(s.relation, s.direction): s.accuracy for s in scores if s.address[0] == "decoder"}
        assert accuracies == {("amod", DOWN): 1, ("nsubj", DOWN): 1}
        assert {s.address[0] for s in scores} == {"encoder", "decoder"}

    def test_rejects_recordings_without_self_attention(self):
        cross = Recording("crafted", {"cross": self.model(["a", "b"])["cross"]})
        with pytest.raises(ValueError, match="recordings\\[0\\] has cross; expected self-attention"):
            relation_scores([cross], [CHAIN])


def test_scores_are_sorted_and_rare_relations_omitted():
    words = tuple("abcdefgh")
    relations = ("root", "obj", "obj", "obj", "advmod", "aux", "amod", "amod")
    sentence = Sentence(words, (-1, 0, 0, 0, 0, 0, 0, 0), relations)
    recordings = [recording(weights_of(torch.ones(1, 8, 8)))] * 4
    order = [(s.relation, s.count) for s in relation_scores(recordings, [sentence] * 4, minimum=1)]
    assert order == [
        ("aux", 2),
        ("aux", 2),
        ("amod", 4),
        ("amod", 2),
        ("advmod", 2),
        ("advmod", 2),
        ("obj", 6),
        ("obj", 2),
    ]
    assert [s.relation for s in relation_scores(recordings, [sentence] * 4, minimum=4)] == ["amod", "obj"]
    assert relation_scores(recordings, [sentence] * 4) == []


def test_baseline_offsets_reach_five_words_in_both_directions():
    assert sorted(BASELINE_OFFSETS) == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
    far = Sentence(tuple("abcdefg"), (5, 6, -1, 2, 2, 2, 2), ("amod", "aux", "root", *["dep"] * 4))
    scores = scores_of([recording(weights_of(torch.ones(1, 7, 7)))] * 2, [far] * 2)
    assert (scores["amod", UP].offset, scores["amod", UP].baseline) == (5, 1)
    assert (scores["amod", DOWN].offset, scores["amod", DOWN].baseline) == (-5, 1)


def test_an_offset_outside_the_sentence_is_wrong():
    """The selected offset is −2; in the scored sentence it is before the first word."""
    choosing = Sentence(tuple("abc"), (-1, 0, 0), ("root", "dep", "amod"))
    scoring = Sentence(tuple("abc"), (-1, 0, 0), ("root", "amod", "dep"))
    scores = scores_of([recording(weights_of(torch.ones(1, 3, 3)))] * 2, [choosing, scoring])
    assert (scores["amod", UP].offset, scores["amod", UP].baseline) == (-2, 0)


def test_wilson_intervals_match_known_values():
    low, high = wilson(50, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert wilson(0, 20) == (0, pytest.approx(0.1611, abs=1e-4))
    assert wilson(20, 20)[1] == 1


def test_recordings_are_not_kept():
    alive: list[weakref.ref] = []

    def made():
        for _ in range(9):
            assert sum(ref() is not None for ref in alive) <= 1  # the one read last
            one = following(CHAIN)
            alive.append(weakref.ref(one))
            yield one
            del one

    assert relation_scores(made(), [CHAIN] * 9, minimum=1)
    assert not any(ref() for ref in alive)


class TestArguments:
    def test_rejects_a_recording_of_other_words(self):
        longer = Sentence((*CHAIN.words, "now"), (*CHAIN.heads, 2), (*CHAIN.relations, "advmod"))
        with pytest.raises(
            ValueError, match="recordings\\[1\\] has 3 words, but its sentence has 4 \\(small dogs bark now"
        ):
            relation_scores([following(CHAIN)] * 2, [CHAIN, longer])

    def test_rejects_wrong_counts_and_types(self):
        one = following(CHAIN)
        with pytest.raises(ValueError, match="recordings has no entries"):
            relation_scores([], [])
        with pytest.raises(ValueError, match="sentences has 1 entries, but recordings has more"):
            relation_scores([one] * 2, [CHAIN])
        with pytest.raises(ValueError, match="recordings has 2 entries, but sentences has more"):
            relation_scores([one] * 2, [CHAIN] * 3)
        with pytest.raises(TypeError, match="recordings is a single Recording"):
            relation_scores(one, [CHAIN])
        with pytest.raises(TypeError, match="recordings\\[1\\] is 'two'; expected a Recording"):
            relation_scores([one, "two"], [CHAIN] * 2)
        with pytest.raises(TypeError, match="sentences\\[0\\] is 'dogs bark'; expected a Sentence"):
            relation_scores([one], ["dogs bark"])
        with pytest.raises(ValueError, match="minimum is 0"):
            relation_scores([one], [CHAIN], minimum=0)

    def test_rejects_recordings_of_different_models(self):
        other = recording(weights_of(torch.ones(2, 3, 3)))
        with pytest.raises(ValueError, match="recordings\\[1\\] is of 'crafted' with 2 heads, but .* with 4; expected"):
            relation_scores([following(CHAIN), other], [CHAIN] * 2)
        renamed = Recording("another", following(CHAIN).stacks)
        with pytest.raises(ValueError, match="is of 'another' with 4 heads, but recordings\\[0\\] is of 'crafted'"):
            relation_scores([following(CHAIN), renamed], [CHAIN] * 2)
