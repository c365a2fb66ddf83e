"""Heads against trees: word-level attention, what is visible, and choosing apart from scoring."""

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
# "small dogs bark": each word hangs on the next
CHAIN = Sentence(("small", "dogs", "bark"), (1, 2, -1), ("amod", "nsubj", "root"))
# "dogs small bark": the adjective follows its noun
TURNED = Sentence(("dogs", "small", "bark"), (2, 0, -1), ("nsubj", "amod", "root"))
UP, DOWN = "dependent → head", "head → dependent"


def scores_of(recordings, sentences, minimum=1) -> dict[tuple[str, str], RelationScore]:
    scores = relation_scores(recordings, sentences, minimum=minimum)
    assert len({(score.relation, score.direction) for score in scores}) == len(scores)
    return {(score.relation, score.direction): score for score in scores}


def following(sentence: Sentence, mask=None) -> Recording:
    """Two layers of two heads; the last, (1, 1), attends from each word to its head, the others to the first word."""
    count = len(sentence.words)
    first, tree = looking_at([0] * count), looking_at([max(head, 0) for head in sentence.heads])
    return recording(weights_of(torch.stack([first, first]), mask), weights_of(torch.stack([first, tree]), mask))


def test_a_head_that_follows_the_tree_is_found():
    sentences = [sentence for sentence in read_conllu(TINY) for _ in range(2)]  # one of each in either half
    scores = scores_of((following(sentence) for sentence in sentences), sentences)
    amod = scores["amod", UP]
    assert amod.address == ("encoder", 1, 1)
    assert amod.accuracy == 1
    assert (amod.baseline, amod.offset) == (1, 1)  # Small → dogs, always the next word
    assert (amod.low, amod.high) == wilson(amod.count, amod.count)
    assert "root" not in {relation for relation, _ in scores}
    assert "punct" not in {relation for relation, _ in scores}
    assert {"nsubj", "obl", "aux"} <= {relation for relation, _ in scores}


def test_counts_accuracy_and_baseline_of_a_known_corpus():
    """Even: three chains. Odd: two chains and one turned round, which the offset misses and the head does not."""
    sentences = [CHAIN, CHAIN, CHAIN, CHAIN, CHAIN, TURNED]
    scores = scores_of(map(following, sentences), sentences)
    amod = scores["amod", UP]
    assert (amod.address, amod.accuracy, amod.count) == (("encoder", 1, 1), 1, 3)
    assert (amod.baseline, amod.offset) == (pytest.approx(2 / 3), 1)
    # downwards, from "dogs" to the first word: "small" in a chain, but in the turned sentence itself, so no other
    down = scores["amod", DOWN]
    assert (down.address, down.count, down.offset) == (("encoder", 0, 0), 3, -1)
    assert down.accuracy == pytest.approx(2 / 3)


def test_chosen_on_even_sentences_and_scored_on_odd_ones():
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


def test_attention_to_a_split_word_is_summed_and_from_it_averaged():
    """Word 0, of two pieces, hangs on word 1, of two pieces too; words 2 and 3 are whole."""
    sentence = Sentence(tuple("abcd"), (1, -1, 1, 1), ("amod", "root", "obj", "obj"))
    texts = tokens(["[CLS]", "a", "a", "b", "b", "c", "d"], [None, 0, 0, 1, 1, 2, 3])
    # its pieces give b 0.24 + 0.24, less than c to either; the first gives c more, the second d more
    head = torch.full((7, 7), 1 / 7)
    head[1] = torch.tensor([0, 0, 0, 0.24, 0.24, 0.52, 0])
    head[2] = torch.tensor([0, 0, 0, 0.24, 0.24, 0, 0.52])
    scores = scores_of([recording(weights_of(head[None]), texts=texts)] * 2, [sentence] * 2)
    assert scores["amod", UP].accuracy == 1
    # 0.26 to each of the others, once b's pieces have less than that together
    head[1:3, 3:5] = 0.12
    scores = scores_of([recording(weights_of(head[None]), texts=texts)] * 2, [sentence] * 2)
    assert scores["amod", UP].accuracy == 0


def test_the_word_itself_and_what_is_no_word_are_not_chosen():
    texts = tokens(["[CLS]", "small", "dogs", "bark", "[SEP]"])
    row = torch.tensor([[0.3, 0.4, 0.07, 0.03, 0.2]])  # from "small": most to itself, then to the special tokens
    head = torch.cat([torch.ones(1, 5), row, torch.ones(3, 5)])
    scores = scores_of([recording(weights_of(head[None]), texts=texts)] * 2, [CHAIN] * 2)
    assert scores["amod", UP].accuracy == 1


def test_any_dependent_of_the_relation_is_right():
    sentence = Sentence(("big", "red", "dogs", "now"), (2, 2, -1, 2), ("amod", "amod", "root", "advmod"))
    for chosen, accuracy in ((0, 1), (1, 1), (3, 0)):
        head = looking_at([2, 2, chosen, 2])
        scores = scores_of([recording(weights_of(head[None]))] * 2, [sentence] * 2)
        assert scores["amod", DOWN].accuracy == accuracy
        assert scores["amod", DOWN].count == 1
        assert scores["amod", UP].count == 2


class TestVisibility:
    def test_in_a_causal_decoder_only_what_lies_before_is_asked_for(self):
        sentences = [CHAIN, TURNED] * 2
        scores = scores_of((following(sentence, Causal()) for sentence in sentences), sentences)
        # upwards, only "small" of the turned sentences has its head before it: never on the half that chooses
        assert ("amod", UP) not in scores
        assert ("nsubj", UP) not in scores
        assert scores["nsubj", DOWN].count == 2
        turned = [TURNED] * 4
        scores = scores_of((following(sentence, Causal()) for sentence in turned), turned)
        assert (scores["amod", UP].count, scores["amod", UP].accuracy) == (2, 1)

    def test_dependents_behind_are_no_right_answers_for_an_offset_either(self):
        sentence = Sentence(("a", "old", "dogs", "here"), (2, 0, -1, 2), ("amod", "dep", "root", "amod"))
        for mask, offset in ((Causal(), -2), (None, 1)):  # 1 is nearer, and taken where it may be
            scores = scores_of((following(sentence, mask) for _ in range(2)), [sentence] * 2)
            assert (scores["amod", DOWN].offset, scores["amod", DOWN].baseline) == (offset, 1)

    def test_a_weight_that_rounds_to_zero_is_visible_and_a_head_without_any_has_not_chosen(self):
        scores = torch.full((1, 1, 3, 3), -200.0)  # of which exp is 0 in float32
        scores[..., range(3), range(3)] = 0
        x = torch.zeros(1, 1, 3, 1)
        weights = attention(x, x, x, bias=scores, return_weights=True)[1]
        assert weights[0, 0, 0, 1] == 0
        scores = scores_of([recording(weights)] * 2, [CHAIN] * 2)
        assert (scores["amod", UP].count, scores["amod", UP].accuracy) == (1, 0)
        assert (scores["amod", DOWN].count, scores["amod", DOWN].accuracy) == (
            1,
            0,
        )  # the first word, had it chosen one


class TestStacks:
    def model(self, decoder: list[str]) -> Recording:
        words, other = tokens(["small", "dogs", "bark"]), tokens(decoder)
        encoder = weights_of(looking_at([2, 0, 1])[None])
        size = len(decoder)
        decoder = weights_of(looking_at([0, 0, 1, 2][:size])[None], Causal())
        cross = weights_of(looking_at([1] * size, 3)[None])
        stacks = {"encoder": Stack((encoder,), words, words), "decoder": Stack((decoder,), other, other)}
        return Recording("crafted", stacks | {"cross": Stack((cross,), other, words)})

    def test_a_decoder_of_another_text_takes_no_part(self):
        scores = relation_scores([self.model(["kleine", "Hunde", "bellen"])] * 2, [CHAIN] * 2, minimum=1)
        assert {score.address[0] for score in scores} == {"encoder"}

    def test_a_decoder_of_the_same_text_has_rows_of_its_own(self):
        scores = relation_scores([self.model(["[BOS]", "small", "dogs", "bark"])] * 2, [CHAIN] * 2, minimum=1)
        accuracies = {(s.relation, s.direction): s.accuracy for s in scores if s.address[0] == "decoder"}
        assert accuracies == {("amod", DOWN): 1, ("nsubj", DOWN): 1}
        assert {s.address[0] for s in scores} == {"encoder", "decoder"}

    def test_no_self_attention_is_refused(self):
        cross = Recording("crafted", {"cross": self.model(["a", "b"])["cross"]})
        with pytest.raises(ValueError, match="recordings\\[0\\] has cross; expected self-attention"):
            relation_scores([cross], [CHAIN])


def test_order_and_minimum():
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


def test_offsets_reach_five_words_and_start_near():
    assert sorted(BASELINE_OFFSETS) == [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]
    far = Sentence(tuple("abcdefg"), (5, 6, -1, 2, 2, 2, 2), ("amod", "aux", "root", *["dep"] * 4))
    scores = scores_of([recording(weights_of(torch.ones(1, 7, 7)))] * 2, [far] * 2)
    assert (scores["amod", UP].offset, scores["amod", UP].baseline) == (5, 1)
    assert (scores["amod", DOWN].offset, scores["amod", DOWN].baseline) == (-5, 1)


def test_an_offset_that_leaves_the_sentence_is_not_right():
    """Chosen where the head lies two words before; scored where that would be before the first word."""
    choosing = Sentence(tuple("abc"), (-1, 0, 0), ("root", "dep", "amod"))
    scoring = Sentence(tuple("abc"), (-1, 0, 0), ("root", "amod", "dep"))
    scores = scores_of([recording(weights_of(torch.ones(1, 3, 3)))] * 2, [choosing, scoring])
    assert (scores["amod", UP].offset, scores["amod", UP].baseline) == (-2, 0)


def test_wilson():
    low, high = wilson(50, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert wilson(0, 20) == (0, pytest.approx(0.1611, abs=1e-4))
    assert wilson(20, 20)[1] == 1


def test_recordings_are_not_kept():
    alive: list[weakref.ref] = []

    def made():
        for _ in range(9):
            assert sum(ref() is not None for ref in alive) <= 1  # the one just read
            one = following(CHAIN)
            alive.append(weakref.ref(one))
            yield one
            del one

    assert relation_scores(made(), [CHAIN] * 9, minimum=1)
    assert not any(ref() for ref in alive)


class TestBadInput:
    def test_words_that_do_not_match(self):
        longer = Sentence((*CHAIN.words, "now"), (*CHAIN.heads, 2), (*CHAIN.relations, "advmod"))
        with pytest.raises(
            ValueError, match="recordings\\[1\\] has 3 words, but its sentence has 4 \\(small dogs bark now"
        ):
            relation_scores([following(CHAIN)] * 2, [CHAIN, longer])

    def test_other_counts_and_types(self):
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

    def test_different_models(self):
        other = recording(weights_of(torch.ones(2, 3, 3)))
        with pytest.raises(ValueError, match="recordings\\[1\\] is of 'crafted' with 2 heads, but .* with 4; expected"):
            relation_scores([following(CHAIN), other], [CHAIN] * 2)
        renamed = Recording("another", following(CHAIN).stacks)
        with pytest.raises(ValueError, match="is of 'another' with 4 heads, but recordings\\[0\\] of 'crafted'"):
            relation_scores([following(CHAIN), renamed], [CHAIN] * 2)
