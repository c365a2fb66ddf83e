"""Tests of the vocabulary: encoding, decoding, unknown characters, word indices and files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.translation.tokenizer import END, MAX_SUBWORD_LENGTH, PAD, START, UNKNOWN, Vocabulary
from clearhead.translation.translator import Translator

ENGLISH = ["I read a book in the library.", "the man eats bread.", "don't read 1998 books!", "a big red hat, a hat"]
JAPANESE = ["私は図書館で本を読んだ。", "男はパンを食べる。", "本を1998冊読むな!", "大きな赤い帽子、帽子"]
SUBWORDS = Vocabulary.from_texts([*ENGLISH, *JAPANESE] * 3, 131)
WORDS = Vocabulary.from_words(["the", "man", "eats", "bread", "."])
CHARACTERS = sorted({*"".join([*ENGLISH, *JAPANESE])} - {" "})
both = pytest.mark.parametrize("vocabulary", [SUBWORDS, WORDS], ids=["subwords", "words"])


@given(st.lists(st.text(CHARACTERS, min_size=1, max_size=7), max_size=5))
def test_known_characters_survive_encoding_and_decoding(words):
    text = " ".join(words)
    token_ids = SUBWORDS.encode(text)
    assert SUBWORDS.decode(token_ids) == text
    assert "".join(SUBWORDS.pieces(token_ids[:-1])).strip() == text
    assert SUBWORDS.unknown(text) == []
    assert UNKNOWN not in token_ids


@pytest.mark.parametrize("text", [*ENGLISH, *JAPANESE, "", "図書館 in 1998", "bread 本!"])
def test_encode_ends_with_the_end_token_and_decode_inverts_it(text):
    token_ids = SUBWORDS.encode(text)
    assert SUBWORDS.decode(token_ids) == text
    assert token_ids[-1] == END
    assert all(UNKNOWN < token_id < len(SUBWORDS) for token_id in token_ids[:-1])
    assert SUBWORDS.encode_all([text, "a hat"]) == [token_ids, SUBWORDS.encode("a hat")]


def test_special_tokens_have_fixed_ids():
    assert (PAD, START, END, UNKNOWN) == (0, 1, 2, 3)
    for vocabulary in (SUBWORDS, WORDS):
        assert vocabulary.pieces([PAD, START, END, UNKNOWN]) == ["<pad>", "<s>", "</s>", "<unk>"]
        assert vocabulary.decode([START, PAD, END]) == ""
        assert vocabulary.encode("") == [END]


def test_special_tokens_in_a_text_are_encoded_as_text():
    vocabulary = Vocabulary.from_texts(["a < b / c > s p d k u n"] * 2, 31)
    for text in ("a </s> b", "<pad>", "<s>a"):
        token_ids = vocabulary.encode(text)
        assert vocabulary.decode(token_ids) == text
        assert min(token_ids[:-1]) > UNKNOWN
        assert vocabulary.encode_all([text]) == [token_ids]


def test_a_word_is_the_same_token_at_any_position():
    (hat,) = SUBWORDS.encode("hat")[:-1]
    assert SUBWORDS.pieces([hat]) == [" hat"]
    assert hat in SUBWORDS.encode("a hat")
    (book,) = SUBWORDS.encode("帽子")[:-1]
    assert SUBWORDS.pieces([book]) == ["帽子"]
    assert book in SUBWORDS.encode("大きな帽子")


def test_size_and_length_of_subwords_are_limited():
    assert len(SUBWORDS) <= 131
    long = Vocabulary.from_texts(["acknowledgementslessness " * 7], 97)
    pieces = long.pieces(range(4, len(long)))
    assert MAX_SUBWORD_LENGTH - 3 < max(map(len, pieces)) <= MAX_SUBWORD_LENGTH
    assert len({*pieces}) == len(pieces)


def test_digits_and_punctuation_are_single_tokens():
    pieces = SUBWORDS.pieces(SUBWORDS.encode("1998 books, 1998!"))
    assert pieces == [" ", "1", "9", "9", "8", " books", ",", " ", "1", "9", "9", "8", "!", "</s>"]


def test_from_words_encodes_whole_words():
    assert len(WORDS) == 9
    assert WORDS.encode("the man eats bread .") == [4, 5, 6, 7, 8, END]
    assert WORDS.encode("bread eats snow .") == [7, 6, UNKNOWN, 8, END]
    assert WORDS.encode_all(["the man", "snow", ""]) == [[4, 5, END], [UNKNOWN, END], [END]]
    assert WORDS.decode([START, 4, 5, END, PAD]) == "the man"
    assert WORDS.pieces([4, 5]) == ["the", "man"]


def test_unknown_returns_each_unknown_piece_once():
    assert SUBWORDS.unknown("a ☃ and a ☃ red ★ hat") == ["☃", "★"]
    assert SUBWORDS.decode(SUBWORDS.encode("red ★hat")) == "red hat"
    assert WORDS.unknown("the snow eats sand , snow") == ["snow", "sand", ","]
    assert WORDS.unknown("the man") == []


class TestWordIndices:
    def words(self, vocabulary, token_ids):
        """Return the text of each word, by index; check that the indices are consecutive."""
        texts = {}
        for word, piece in zip(vocabulary.word_indices(token_ids), vocabulary.pieces(token_ids), strict=True):
            if word is not None:
                texts[word] = texts.get(word, "") + piece
        assert sorted(texts) == list(range(len(texts)))
        return [texts[word].strip() for word in sorted(texts)]

    @pytest.mark.parametrize("prefix", [[], [START]], ids=["source", "target"])
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("I read a book in the library.", ["I", "read", "a", "book", "in", "the", "library", "."]),
            ("the man eats 1998 books", ["the", "man", "eats", "1998", "books"]),
            ("don't read", ["don", "'", "t", "read"]),
            ("a hat , a hat !", ["a", "hat", ",", "a", "hat", "!"]),
            ("男はパンを食べる。", ["男はパンを食べる", "。"]),
            ("大きな帽子、本", ["大きな帽子", "、", "本"]),
            ("私は in 1998", ["私は", "in", "1998"]),
            ("", []),
        ],
    )
    def test_subwords_are_grouped_into_words(self, text, words, prefix):
        assert self.words(SUBWORDS, [*prefix, *SUBWORDS.encode(text)]) == words

    def test_each_token_of_a_word_vocabulary_is_a_word(self):
        assert self.words(WORDS, [START, *WORDS.encode("the man eats bread .")]) == ["the", "man", "eats", "bread", "."]

    def test_special_tokens_have_no_word_index(self):
        assert list(WORDS.word_indices([START, 4, UNKNOWN, 5, END, PAD])) == [None, 0, None, 2, None, None]
        read, sky = SUBWORDS.encode("read"), SUBWORDS.encode("☃")
        token_ids = [START, *read[:-1], *sky]
        assert sky == [UNKNOWN, END]
        assert list(SUBWORDS.word_indices(token_ids)) == [None, *[0] * (len(read) - 1), None, None]


class TestFiles:
    @both
    def test_save_and_load_round_trip(self, vocabulary, tmp_path):
        vocabulary.save(tmp_path / "tokenizer.json")
        assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
        loaded = Vocabulary.load(tmp_path / "tokenizer.json")
        assert len(loaded) == len(vocabulary)
        for text in (*ENGLISH, *JAPANESE, "the snow ☃", "</s> <s>", ""):
            assert loaded.encode(text) == vocabulary.encode(text)
            assert loaded.unknown(text) == vocabulary.unknown(text)
            assert loaded.decode(loaded.encode(text)) == vocabulary.decode(vocabulary.encode(text))
            first, second = (list(each.word_indices(vocabulary.encode(text))) for each in (loaded, vocabulary))
            assert first == second

    @pytest.mark.parametrize("content", ["", "{", "[1]", '{"model": {"type": "BPE"}}', "\x00"])
    def test_a_damaged_file_is_refused_in_one_line(self, content, tmp_path):
        path = tmp_path / "broken.json"
        path.write_text(content)
        with pytest.raises(ValueError, match="broken.json: not a tokenizer ") as error:
            Vocabulary.load(path)
        assert "\n" not in str(error.value)

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="missing.json: there is no such file"):
            Vocabulary.load(tmp_path / "missing.json")
        with pytest.raises(FileNotFoundError, match="there is no such file"):
            Vocabulary.load(tmp_path)


def test_the_bundled_vocabulary_round_trips_text():
    vocabulary = Translator.load().vocabulary
    for text in ("he doesn't know where the station is.", "彼は駅がどこにあるか知らない。"):
        assert vocabulary.decode(vocabulary.encode(text)) == text
        assert vocabulary.unknown(text) == []
