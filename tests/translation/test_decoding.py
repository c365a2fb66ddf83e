"""Tests of decoding: greedy search against a plain loop, beam search against all possible translations."""

import copy
import itertools

import pytest
import torch

from clearhead.translation._decoding import Hypothesis, beam_search, greedy
from clearhead.translation.tokenizer import END, PAD, START, UNKNOWN
from support.small_transformers import draw, favor, make_writer, sources

MAX_TOKENS = 13
FORBIDDEN_TOKENS = [PAD, START, UNKNOWN]
every_position = pytest.mark.parametrize("positions", ["sinusoidal", "rope"])


def log_probabilities(model, source, read: list[int]) -> torch.Tensor:
    """Return the log-probabilities of the allowed next tokens, computed without caches."""
    logits = model(source, torch.tensor([[START, *read]]))[0, -1]
    logits[FORBIDDEN_TOKENS] = -torch.inf
    return logits.log_softmax(dim=-1)


def plain_greedy(model, source, max_tokens: int) -> Hypothesis:
    tokens = []
    for _ in range(max_tokens):
        best = int(log_probabilities(model, source, tokens).argmax())
        if best == END:
            return Hypothesis(tuple(tokens), True)
        tokens.append(best)
    return Hypothesis(tuple(tokens), False)


def every_translation(model, source, max_tokens: int) -> dict[tuple[int, ...], float]:
    """Return all translations of at most `max_tokens` tokens, including the end, with their log-probabilities."""
    words = [token_id for token_id in range(model.embedding.num_embeddings) if token_id not in (*FORBIDDEN_TOKENS, END)]
    scores = {}
    for tokens in itertools.chain.from_iterable(itertools.product(words, repeat=n) for n in range(max_tokens)):
        steps = [log_probabilities(model, source, list(tokens[:n])) for n in range(len(tokens) + 1)]
        scores[tokens] = float(sum(log_probs[token] for log_probs, token in zip(steps, (*tokens, END), strict=True)))
    return scores


@every_position
def test_greedy_equals_a_plain_loop_over_single_sentences(positions):
    endings = set()
    for seed in range(5):
        model = make_writer(seed, positions=positions)
        source, lengths = sources()
        written = greedy(model, source, lengths, max_tokens=MAX_TOKENS)
        with torch.no_grad():
            for row, length in enumerate(lengths.tolist()):
                assert written[row] == plain_greedy(model, source[row : row + 1, :length], MAX_TOKENS)
        endings |= {(hypothesis.ended, len(hypothesis.tokens)) for hypothesis in written}
    # the test is meaningful only if some translations were cut, some ended, and at different lengths
    assert len(endings) > 3
    assert {ended for ended, _ in endings} == {True, False}


def test_one_beam_is_greedy():
    for seed in range(3):
        model = make_writer(seed)
        source, lengths = sources()
        assert beam_search(model, source, lengths, beams=1, max_tokens=MAX_TOKENS) == greedy(
            model, source, lengths, max_tokens=MAX_TOKENS
        )


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_enough_beams_find_the_best_translation(length_penalty):
    vocabulary, max_tokens, differ = 7, 3, 0
    for seed in range(5):
        model = make_writer(seed, vocabulary, encoder_layers=1, decoder_layers=1)
        source = draw(1, 5, vocabulary=vocabulary)
        with torch.no_grad():
            every = every_translation(model, source, max_tokens)
            differ += plain_greedy(model, source, max_tokens).tokens != max(every, key=every.get)
        best = max(every, key=lambda tokens: every[tokens] / (len(tokens) + 1) ** length_penalty)
        assert len(every) == 13
        # the last step has 9 prefixes with 4 next tokens each
        hypotheses = beam_search(model, source, beams=37, max_tokens=max_tokens, length_penalty=length_penalty)
        assert hypotheses == [Hypothesis(best, True)]
    assert differ  # greedy search does not find all of them


def test_a_longer_translation_can_win_after_a_shorter_one_has_ended():
    """A larger length penalty favors longer translations, and the search must continue to find them."""
    lengths = {}
    for seed in range(8):
        model = make_writer(seed, 7, encoder_layers=1, decoder_layers=1)
        source = draw(3, 5, vocabulary=7)
        for penalty in (0.0, 2.0):
            written = beam_search(model, source, beams=5, max_tokens=7, length_penalty=penalty)
            lengths.setdefault(penalty, []).extend(len(hypothesis.tokens) for hypothesis in written)
    assert sum(lengths[2.0]) > sum(lengths[0.0])
    assert all(longer >= shorter for longer, shorter in zip(lengths[2.0], lengths[0.0], strict=True))


@pytest.mark.parametrize("beams", [2, 3, 7])
def test_a_batch_gives_the_translations_of_single_sentences(beams):
    ended = []
    for seed in (0, 2, 4):
        model = make_writer(seed, positions="rope")
        source, lengths = sources()
        together = beam_search(model, source, lengths, beams=beams, max_tokens=MAX_TOKENS)
        for row, length in enumerate(lengths.tolist()):
            assert beam_search(model, source[row : row + 1, :length], beams=beams, max_tokens=MAX_TOKENS) == [
                together[row]
            ]
        ended += [len(hypothesis.tokens) for hypothesis in together]
    assert len(set(ended)) > 2


@pytest.mark.parametrize("beams", [7, 11])
def test_finds_the_best_translation_with_more_beams_than_first_tokens(beams):
    """Only one word and the end are possible. Candidates of -inf must not count as finished translations."""
    model = make_writer(0, 5)
    favor(model, [4], weight=3.0)
    source = draw(1, 3, vocabulary=5)
    with torch.no_grad():
        every = every_translation(model, source, beams)
    best = max(every, key=lambda tokens: every[tokens] / (len(tokens) + 1))
    assert len(best) == beams - 1
    assert beam_search(model, source, beams=beams, max_tokens=beams) == [Hypothesis(best, True)]


@pytest.mark.parametrize("write", [greedy, beam_search])
def test_padding_start_and_unknown_are_never_written(write):
    model = make_writer(0)
    favor(model, FORBIDDEN_TOKENS)
    source, lengths = sources()
    with torch.no_grad():
        likeliest = model(source, torch.full((5, 1), START), lengths).argmax(dim=-1)
    assert {*likeliest.flatten().tolist()} <= {*FORBIDDEN_TOKENS}
    written = write(model, source, lengths, max_tokens=MAX_TOKENS)
    assert not {token for hypothesis in written for token in hypothesis.tokens} & {*FORBIDDEN_TOKENS, END}
    assert any(hypothesis.tokens for hypothesis in written)


@pytest.mark.parametrize("write", [greedy, beam_search])
@pytest.mark.parametrize("max_tokens", [1, 5])
def test_ended_is_false_for_cut_translations(write, max_tokens):
    model = make_writer(0)
    source, _ = sources()
    other = copy.deepcopy(model)
    favor(model, [7], against=[END])
    assert write(model, source, max_tokens=max_tokens) == [Hypothesis((7,) * max_tokens, False)] * 5
    favor(other, [END])
    assert write(other, source, max_tokens=max_tokens) == [Hypothesis((), True)] * 5


def test_ablated_head_equals_a_head_with_zero_output_weights():
    model = make_writer(1)
    source, lengths = sources()
    for stack in ("encoder", "decoder", "cross"):
        cut = copy.deepcopy(model)
        layer = (cut.encoder if stack == "encoder" else cut.decoder)[1]
        with torch.no_grad():
            (layer.cross if stack == "cross" else layer.attention).output.weight[:, 10:20] = 0
        expected = greedy(cut, source, lengths, max_tokens=MAX_TOKENS)
        assert greedy(model, source, lengths, max_tokens=MAX_TOKENS, ablate=[(stack, 1, 1)]) == expected
        assert expected != greedy(model, source, lengths, max_tokens=MAX_TOKENS)


def test_rejects_wrong_beams_and_max_tokens():
    model = make_writer(0)
    source, _ = sources()
    for write in (greedy, beam_search):
        with pytest.raises(ValueError, match="max_tokens is 0; expected a whole number of at least 1"):
            write(model, source, max_tokens=0)
    with pytest.raises(ValueError, match="beams is 0; expected a whole number of at least 1"):
        beam_search(model, source, beams=0)
    with pytest.raises(TypeError, match="beams is 2.0; expected a whole number"):
        beam_search(model, source, beams=2.0)
