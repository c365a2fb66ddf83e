"""Tests of the built-in grammar: one translation per sentence, links that no fixed offset finds, and no drift."""

import itertools
import zlib
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.translation.data.grammar._lexicon import (
    ADJECTIVES,
    ANIMATE_CATEGORIES,
    DEGREES,
    DETERMINERS,
    FREQUENCIES,
    MANNERS,
    NOUNS,
    PRONOUNS,
    TIMES,
    VERBS,
)
from clearhead.translation.data.grammar.generate import (
    MAX_SOURCE_TOKENS,
    MIN_SOURCE_TOKENS,
    SOURCE_RELATIONS,
    TARGET_RELATIONS,
    AnnotatedPair,
    Link,
    sentences,
    vocabulary,
)

BE = {"am", "is", "are", "was", "were"}
AUXILIARIES = {"do", "does", "did", "will"} | BE
ENDINGS = {"masu", "mashita", "deshita"}
ADVERBS = {*FREQUENCIES, *MANNERS} | {time.english for time in TIMES if " " not in time.english}
ADJECTIVE_WORDS = {adjective.english for adjective in ADJECTIVES}
PROGRESSIVES = {verb.progressive for verb in VERBS}
PAST = {verb.past for verb in VERBS} | {"did", "was", "were"}
VERB_OF = {form: verb for verb in VERBS for form in (verb.base, verb.third, verb.past, verb.progressive)}
VERB_WORDS = VERB_OF.keys() | BE | {"be"}
OBJECTS = {name for verb in VERBS for sense in verb.senses for name in sense.objects}
STEMS = {form for verb in VERBS for sense in verb.senses for form in (sense.stem, sense.progressive)} | {"i", "ari"}
JAPANESE_NOUNS = {noun.japanese for noun in NOUNS.values()}
JAPANESE_ADJECTIVES = {text.split()[0] for adjective in ADJECTIVES for text in adjective.japanese.values()}

GOLDEN = {
    7: (
        "the teacher was not breaking this plate .",
        "sensei wa kono sara o watte i masen deshita .",
        {
            "noun": [(0, 1), (3, 6)],
            "verb": [(5, 4)],
            "tense": [(8, 2)],
            "object of the verb": [(5, 6)],
            "alignment": [(0, 1), (2, 5), (3, 6), (5, 4), (6, 2), (7, 3), (8, 2), (9, 7)],
            "subject → verb": [(1, 4)],
            "verb → subject": [(4, 1)],
            "verb → object": [(4, 6)],
            "object → verb": [(6, 4)],
        },
    ),
    11: (
        "slowly a nurse will wash his shirt .",
        "kangoshi ga yukkuri kare no shatsu o arai masu .",
        {
            "noun": [(0, 2), (5, 6)],
            "verb": [(7, 4)],
            "tense": [(8, 3)],
            "alignment": [(0, 2), (2, 0), (3, 5), (5, 6), (7, 4), (8, 3), (9, 7)],
            "subject → verb": [(2, 4)],
            "verb → subject": [(4, 2)],
            "verb → object": [(4, 6)],
            "object → verb": [(6, 4)],
            "adverb → verb": [(0, 4)],
            "verb → adverb": [(4, 0)],
        },
    ),
    31: (
        "is there a student at the school that is small today ?",
        "kyou chiisai gakkou ni gakusei ga i masu ka .",
        {
            "noun": [(2, 6), (4, 3)],
            "adjective": [(1, 9)],
            "verb": [(6, 0)],
            "tense": [(7, 0)],
            "object of the verb": [(6, 3)],
            "alignment": [(0, 10), (1, 9), (2, 6), (4, 3), (6, 0), (7, 0), (8, 11), (9, 11)],
            "subject → verb": [(3, 0)],
            "verb → subject": [(0, 3)],
            "adjective → noun": [(9, 6)],
            "noun → adjective": [(6, 9)],
            "adverb → verb": [(10, 0)],
            "verb → adverb": [(0, 10)],
        },
    ),
    26: (
        "are we sending the friend a chair that is red ?",
        "watashitachi wa tomodachi ni akai isu o okutte i masu ka .",
        {
            "noun": [(2, 4), (5, 6)],
            "adjective": [(4, 9)],
            "verb": [(7, 2)],
            "tense": [(9, 0)],
            "alignment": [(0, 1), (2, 4), (4, 9), (5, 6), (7, 2), (8, 0), (9, 0), (10, 10), (11, 10)],
            "subject → verb": [(1, 2)],
            "verb → subject": [(2, 1)],
            "verb → object": [(2, 6)],
            "object → verb": [(6, 2)],
            "adjective → noun": [(9, 6)],
            "noun → adjective": [(6, 9)],
        },
    ),
}


def first(count: int, seed: int = 3, split="train") -> list[AnnotatedPair]:
    return list(itertools.islice(sentences(seed, split), count))


@pytest.fixture(scope="module")
def corpus() -> list[AnnotatedPair]:
    return first(20_000)


def linked_words(example: AnnotatedPair, relation: str) -> list[tuple[str, str]]:
    """Return the pairs of words that a relation links."""
    side = example.target if relation in TARGET_RELATIONS else example.source
    return [(side[link.at], example.source[link.to]) for link in example.links if link.relation == relation]


def answer(example: AnnotatedPair, relation: str, at: int) -> int | None:
    """Return the position that the token at `at` is linked to, or None."""
    return next((link.to for link in example.links if link[:2] == (relation, at)), None)


class TestStream:
    @pytest.mark.parametrize("seed", GOLDEN)
    def test_the_corpus_does_not_drift(self, seed):
        source, target, links = GOLDEN[seed]
        example = next(sentences(seed))
        assert (" ".join(example.source), " ".join(example.target)) == (source, target)
        expected = {Link(relation, at, to) for relation, pairs in links.items() for at, to in pairs}
        assert set(example.links) == expected
        assert len(example.links) == len(expected)

    @settings(max_examples=10, deadline=None)
    @given(seed=st.integers(0, 2**32), split=st.sampled_from(["train", "valid", "probe"]))
    def test_the_seed_determines_the_sentences(self, seed, split):
        assert first(7, seed, split) == first(7, seed, split)
        assert first(7, seed, split) != first(7, seed + 1, split)

    def test_splits_are_disjoint_for_all_seeds(self):
        sources = {
            split: {example.source for seed in (2, 5) for example in first(250, seed, split)}
            for split in ("train", "valid", "probe")
        }
        assert not sources["train"] & (sources["valid"] | sources["probe"])
        assert not sources["valid"] & sources["probe"]
        shares = {split: {zlib.crc32(" ".join(s).encode()) % 16 for s in sources[split]} for split in sources}
        assert shares == {"train": set(range(2, 16)), "valid": {1}, "probe": {0}}

    def test_the_grammar_has_more_than_a_million_sentences(self, corpus):
        """Among n uniform draws from N sentences, about n² / 2N pairs are equal. Nonuniform draws give more."""
        counts = Counter(example.source for example in corpus)
        equal_pairs = sum(count * (count - 1) // 2 for count in counts.values())
        assert len(corpus) ** 2 / (2 * equal_pairs) > 1_000_000

    def test_lengths_are_within_the_limits(self, corpus):
        lengths = [len(example.source) for example in corpus]
        assert (min(lengths), max(lengths)) == (MIN_SOURCE_TOKENS, MAX_SOURCE_TOKENS) == (4, 20)
        assert max(len(example.target) for example in corpus) <= 30


class TestVocabulary:
    def test_every_word_of_the_vocabulary_is_used(self, corpus):
        for side, words in zip(("source", "target"), vocabulary(), strict=True):
            assert words == sorted(set(words))
            assert 120 <= len(words) <= 200
            uses = Counter(word for example in corpus for word in getattr(example, side))
            assert uses.keys() == set(words)
            rarest = min(uses, key=lambda word: uses[word])
            assert uses[rarest] >= 80, f"{rarest}: {uses[rarest]}"  # 20 in every 5,000 sentences

    def test_word_classes_are_disjoint_in_japanese(self):
        adverbs = {*FREQUENCIES.values(), *MANNERS.values(), *DEGREES.values(), *PRONOUNS.values()}
        classes = (JAPANESE_NOUNS, JAPANESE_ADJECTIVES, STEMS, adverbs)
        assert sum(map(len, classes)) == len(set().union(*classes))

    def test_no_past_form_is_a_base_form(self):
        assert len(VERB_OF) == 4 * len(VERBS)


class TestTranslations:
    def test_a_source_has_one_target(self, corpus):
        answers: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
        for example in corpus:
            answers[example.source].add(example.target)
        assert len(answers) < len(corpus)  # some sources repeat, otherwise the test would be vacuous
        assert all(len(targets) == 1 for targets in answers.values())

    def test_a_translation_depends_on_the_word_and_its_linked_noun(self, corpus):
        answers: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for example in corpus:
            for token, word in linked_words(example, "noun"):
                answers["noun", word].add(token)
            for relation, at, to in example.links:
                word = example.source[to]
                if relation == "adjective":
                    noun = answer(example, "adjective → noun", to)
                    assert noun is not None
                    answers["adjective", word, example.source[noun]].add(example.target[at])
                elif relation == "verb":
                    noun = answer(example, "object of the verb", at)
                    answers["verb", word, "" if noun is None else example.source[noun]].add(example.target[at])
        assert all(len(tokens) == 1 for tokens in answers.values())
        assert answers["adjective", "old", "man"] == {"toshioita"}
        assert answers["adjective", "old", "book"] == {"furui"}
        assert answers["verb", "wore", "hat"] == {"kaburi"}
        assert answers["verb", "wearing", "coat"] == {"kite"}
        assert answers["verb", "plays", "football"] == {"shi"}
        assert answers["verb", "was", "cat"] == {"i"}
        assert answers["verb", "was", "cup"] == {"ari"}

    def test_a_verb_with_several_senses_is_linked_to_its_object(self, corpus):
        for example in corpus[:2000]:
            ((stem, word),) = linked_words(example, "verb")
            decided_by = [noun for _, noun in linked_words(example, "object of the verb")]
            if stem in ("i", "ari"):
                assert (NOUNS[decided_by[0]].category in ANIMATE_CATEGORIES) == (stem == "i")
            else:
                assert len(decided_by) == (len(VERB_OF[word].senses) > 1)


class TestLinks:
    def test_links_are_within_bounds_and_unique(self, corpus):
        for example in corpus:
            for relation, at, to in example.links:
                assert 0 <= at < len(example.target if relation in TARGET_RELATIONS else example.source)
                assert 0 <= to < len(example.source)
            assert len({link[:2] for link in example.links}) == len(example.links)

    def test_links_connect_the_right_word_classes(self, corpus):
        subjects = {*NOUNS, *PRONOUNS}
        classes = {
            "noun": (JAPANESE_NOUNS, NOUNS),
            "adjective": (JAPANESE_ADJECTIVES, ADJECTIVE_WORDS),
            "verb": (STEMS, VERB_WORDS),
            "tense": (ENDINGS, AUXILIARIES | VERB_OF.keys()),
            "object of the verb": (STEMS, NOUNS),
            "subject → verb": (subjects, VERB_WORDS),
            "verb → subject": (VERB_WORDS, subjects),
            "verb → object": (VERB_OF, OBJECTS),
            "object → verb": (OBJECTS, VERB_OF),
            "adjective → noun": (ADJECTIVE_WORDS, NOUNS),
            "noun → adjective": (NOUNS, ADJECTIVE_WORDS),
            "adverb → verb": (ADVERBS, VERB_WORDS),
            "verb → adverb": (VERB_WORDS, ADVERBS),
        }
        assert classes.keys() | {"alignment"} == {*TARGET_RELATIONS, *SOURCE_RELATIONS}
        seen = Counter()
        for example in corpus:
            for relation, (from_class, to_class) in classes.items():
                for token, word in linked_words(example, relation):
                    assert token in from_class, (relation, token)
                    assert word in to_class, (relation, word)
                    seen[relation] += 1
        assert all(seen[relation] > 5000 for relation in classes)

    def test_every_word_with_a_counterpart_is_aligned(self, corpus):
        particles = {"wa", "ga", "o", "ni", "de", "no", "na"}
        for example in corpus:
            aligned = {link.at for link in example.links if link.relation == "alignment"}
            assert aligned == {at for at, token in enumerate(example.target) if token not in particles}
            for relation in ("noun", "adjective", "verb", "tense"):
                for link in example.links:
                    if link.relation == relation:
                        assert answer(example, "alignment", link.at) == link.to

    def test_tense_is_linked_to_the_word_that_marks_it(self, corpus):
        for example in corpus:
            for ending, word in linked_words(example, "tense"):
                assert (ending in ("mashita", "deshita")) == (word in PAST)
            negative = "masen" in example.target
            assert negative == ("not" in example.source)
            assert len(linked_words(example, "tense")) == (not negative or "deshita" in example.target)

    def test_a_word_with_two_answers_has_no_link(self, corpus):
        """Two adjectives are linked to their noun, but the noun to neither."""
        double = 0
        for example in corpus:
            nouns = Counter(link.to for link in example.links if link.relation == "adjective → noun")
            alone = {link.at for link in example.links if link.relation == "noun → adjective"}
            assert alone == {noun for noun, count in nouns.items() if count == 1}
            double += sum(count > 1 for count in nouns.values())
        assert double > 1000

    def test_no_fixed_offset_finds_a_relation(self, corpus):
        offsets: dict[str, Counter[int]] = defaultdict(Counter)
        for example in corpus[:2000]:
            for link in example.links:
                offsets[link.relation][link.to - link.at] += 1
        best = {relation: max(count.values()) / count.total() for relation, count in offsets.items()}
        assert best.keys() == {*TARGET_RELATIONS, *SOURCE_RELATIONS}
        assert max(best.values()) <= 0.6, best
        assert max(best[relation] for relation in TARGET_RELATIONS) <= 0.3, best


class TestSentences:
    def test_at_least_half_of_the_sentences_have_an_auxiliary(self, corpus):
        auxiliary = sum(
            not {"do", "does", "did", "will"}.isdisjoint(example.source) or not PROGRESSIVES.isdisjoint(example.source)
            for example in corpus
        )
        assert 0.5 <= auxiliary / len(corpus) <= 0.8

    def test_every_phenomenon_occurs(self, corpus):
        phenomena = {
            "question": lambda words: words[-1] == "?",
            "negation": lambda words: "not" in words,
            "negated question": lambda words: words[-1] == "?" and "not" in words,
            "did not": lambda words: ("did", "not") in itertools.pairwise(words),
            "existence": lambda words: "there" in words,
            "future existence": lambda words: "be" in words,
            "coordination": lambda words: "and" in words,
            "degree": lambda words: not DEGREES.keys().isdisjoint(words),
            "adjective after its noun": lambda words: "that" in words,
            "two adjectives before": lambda words: any(
                set(two) <= ADJECTIVE_WORDS for two in itertools.pairwise(words)
            ),
            "progressive": lambda words: not PROGRESSIVES.isdisjoint(words),
            "future": lambda words: "will" in words,
            "past by the verb itself": lambda words: any(word in PAST and word in VERB_OF for word in words),
            "present by the verb itself": lambda words: any(word in VERB_OF and word[-1] == "s" for word in words),
            "adverb in front": lambda words: words[0] in ADVERBS,
            "adverb before the verb": lambda words: any(
                one in ADVERBS and two in VERB_OF for one, two in itertools.pairwise(words[1:])
            ),
            "adverb at the end": lambda words: words[-2] in ADVERBS,
            "recipient after": lambda words: "to" in words,
            "possession": lambda words: not {"my", "your", "his", "her"}.isdisjoint(words),
        }
        for name, occurs in phenomena.items():
            assert sum(occurs(example.source) for example in corpus) > 100, name

    def test_articles_agree_with_the_next_word(self, corpus):
        for example in corpus:
            for word, following in itertools.pairwise(example.source):
                assert word not in ("a", "an") or (word == "an") == (following[0] in "aeiou")

    def test_verbs_agree_with_pronouns(self, corpus):
        finite = {"am", "is", "are", "do", "does"} | {form for verb in VERBS for form in (verb.base, verb.third)}
        third = {"is", "does"} | {verb.third for verb in VERBS}
        seen = Counter()
        for example in corpus:
            for _, subject in linked_words(example, "verb → subject"):
                for _, carrier in linked_words(example, "tense"):
                    if subject in PRONOUNS and carrier in finite:
                        assert (carrier in third) == (subject in ("he", "she")), example.source
                        assert carrier not in BE or (carrier == "am") == (subject == "i"), example.source
                        seen[subject] += 1
        assert min(seen[pronoun] for pronoun in PRONOUNS) > 100

    def test_in_japanese_verbs_come_last_and_adjectives_before_nouns(self, corpus):
        for example in corpus:
            (stem,) = (link.at for link in example.links if link.relation == "verb")
            nouns = {link.to: link.at for link in example.links if link.relation == "noun"}
            adjectives = {link.to: link.at for link in example.links if link.relation == "adjective"}
            assert all(at < stem for at in (*nouns.values(), *adjectives.values()))
            after = set(example.target[stem + 1 :])
            assert after <= {"i", "masu", "mashita", "masen", "deshita", "ka", "."}
            for link in example.links:
                if link.relation == "object → verb":
                    assert nouns[link.at] < stem
                elif link.relation == "adjective → noun":
                    assert adjectives[link.at] < nouns[link.to]
            assert ("ka" in after) == (example.source[-1] == "?")
            assert (example.target[stem + 1] == "i") == (not PROGRESSIVES.isdisjoint(example.source))

    def test_an_adjective_after_its_noun_comes_first_in_japanese(self, corpus):
        compared = 0
        for example in corpus:
            positions = {link.to: link.at for link in example.links if link.relation == "adjective"}
            nouns = {link.at: link.to for link in example.links if link.relation == "adjective → noun"}
            for first, second in itertools.combinations(sorted(nouns), 2):
                if nouns[first] == nouns[second]:
                    assert (positions[second] < positions[first]) == (second > nouns[second]), example.source
                    compared += second > nouns[second]
        assert compared > 1000

    def test_subjects_are_marked_with_wa_or_ga(self, corpus):
        """The particle is ga after "a" and in positive sentences with "there is"; otherwise it is wa."""
        seen = Counter()
        for example in corpus:
            (marker,) = (token for token in example.target if token in ("wa", "ga"))
            if "there" in example.source:
                assert marker == ("wa" if "not" in example.source else "ga")
            for link in example.links:
                before = example.source[max(link.to - 1, 0)]
                if link.relation == "verb → subject" and "there" not in example.source and before in DETERMINERS:
                    assert marker == ("ga" if before == "a" else "wa"), example.source
                    seen[marker] += 1
        assert min(seen["wa"], seen["ga"]) > 500
