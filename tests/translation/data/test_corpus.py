"""Tests of parallel text: file formats, notes about pairs that are left out, and errors with line numbers."""

import gzip

import pytest

from clearhead.translation.data._corpus import Corpus, Pair, prepare_corpus, read_pairs
from clearhead.translation.normalizer import Normalizer

UNCHANGED = Normalizer()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a file to an empty current folder, so that messages contain short paths."""
    monkeypatch.chdir(tmp_path)

    def written(name: str, content: str | bytes) -> None:
        raw = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)

    return written


def test_columns_and_parallel_files_are_read_in_order(write):
    write("tatoeba.tsv", "Good.\tよい。\nBad.\t悪い。\n")
    write("train.en", "one\ntwo\nthree\n")
    write("train.ja", "一\n二\n三\n")
    assert read_pairs(["train.en,train.ja", "tatoeba.tsv"]) == Corpus(
        (Pair("one", "一"), Pair("two", "二"), Pair("three", "三"), Pair("Good.", "よい。"), Pair("Bad.", "悪い。")), ()
    )


def test_gzip_files_are_read(write):
    write("a.tsv.gz", "one\t一\n")
    write("b.en.gz", "two\n")
    write("b.ja", "二\n")
    assert read_pairs(["a.tsv.gz", "b.en.gz,b.ja"]).pairs == (("one", "一"), ("two", "二"))


def test_byte_order_marks_and_line_ends_are_removed(write):
    write("a.tsv", b"\xef\xbb\xbf" + "one\t一\r\ntwo\t二".encode())
    write("b.en", b"\xef\xbb\xbfthree\r\nfour")
    write("b.ja", "三\n四\n")
    assert read_pairs(["a.tsv", "b.en,b.ja"]).pairs == (("one", "一"), ("two", "二"), ("three", "三"), ("four", "四"))


def test_only_a_line_feed_ends_a_line(write):
    sentence = "one\u2028two\x85three\x0cfour\x0bfive\x1csix"
    write("a.tsv", f"{sentence}\t一\n")
    write("b.en", f"{sentence}\nseven\n")
    write("b.ja", "二\n七\n")
    assert read_pairs(["a.tsv", "b.en,b.ja"]).pairs == ((sentence, "一"), (sentence, "二"), ("seven", "七"))


def test_a_file_name_may_contain_a_comma(write):
    write("a,b", "one\t一\n")
    write("a", "wrong\n")
    write("b", "違う\n")
    assert read_pairs(["a,b"]).pairs == (("one", "一"),)


def test_an_empty_side_is_left_out_and_noted(write):
    write("a.en", "one\n\nthree\n \nfive\n")
    write("a.ja", "一\n二\n\n\n五\n")
    write("b.tsv", "six\t六\nseven\t\n")
    corpus = read_pairs(["a.en,a.ja", "b.tsv"])
    assert corpus.pairs == (("one", "一"), ("five", "五"), ("six", "六"))
    assert corpus.notes == (
        "a.en: 3 pairs with an empty side left out (the first in line 2)",
        "b.tsv: 1 pair with an empty side left out (the first in line 2)",
    )


@pytest.mark.parametrize(
    ("english", "japanese", "message"),
    [
        (3, 2, "a.en has 3 lines and a.ja 2; line 3 of a.en has no counterpart"),
        (1, 4, "a.en has 1 line and a.ja 4; line 2 of a.ja has no counterpart"),
        (0, 1, "a.en has 0 lines and a.ja 1; line 1 of a.ja has no counterpart"),
    ],
)
def test_files_of_different_lengths_are_refused(write, english, japanese, message):
    write("a.en", "one\n" * english)
    write("a.ja", "一\n" * japanese)
    with pytest.raises(ValueError, match=f"^{message}$"):
        read_pairs(["a.en,a.ja"])


@pytest.mark.parametrize(
    ("line", "columns"), [("no tab", "1 column"), ("", "1 column"), ("two\t二\tCC-BY", "3 columns")]
)
def test_a_line_without_two_columns_is_refused(write, line, columns):
    write("a.tsv", f"one\t一\n{line}\nthree\t三\n")
    with pytest.raises(ValueError, match=f"^a.tsv, line 2: has {columns}; expected 2, separated by a tab$"):
        read_pairs(["a.tsv"])


def test_text_that_is_not_utf8_is_refused(write):
    write("a.tsv", b"one\t1\nGr\xf6\xdfe\t2\n")
    with pytest.raises(ValueError, match="^a.tsv, line 2: not UTF-8"):
        read_pairs(["a.tsv"])
    write("b.en", "one\ntwo\n")
    write("b.ja.gz", "一\n".encode() + "二\n".encode("shift-jis"))
    with pytest.raises(ValueError, match="^b.ja.gz, line 2: not UTF-8"):
        read_pairs(["b.en,b.ja.gz"])


def test_a_missing_file_is_named(write):
    write("a.en", "one\n")
    for path, missing in (("a.en,a.ja", "a.ja"), ("b.en,a.en", "b.en"), ("c.tsv", "c.tsv"), ("a.en,", "'a.en,'")):
        with pytest.raises(FileNotFoundError) as error:
            read_pairs([path])
        assert str(error.value) == f"{missing}: there is no such file"


def test_a_folder_is_refused(write, tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match="^data: a folder; expected a file$"):
        read_pairs(["data"])


def test_damaged_gzip_is_refused(write, tmp_path):
    packed = gzip.compress(b"one\t1\n" * 1000)
    for content in (packed[:-6], packed[:20] + b"\xff" * 40, b"one\t1\n"):
        (tmp_path / "a.tsv.gz").write_bytes(content)
        with pytest.raises(ValueError, match="^a.tsv.gz, after line [0-9]+: incomplete or damaged gzip file"):
            read_pairs(["a.tsv.gz"])


def test_three_files_are_refused(write):
    for name in ("a", "b", "c"):
        write(name, "one\n")
    with pytest.raises(ValueError, match="^a,b,c: 3 files separated by commas; expected two"):
        read_pairs(["a,b,c"])


def test_files_without_pairs_and_strings_are_refused(write):
    write("a.en", "\n")
    write("a.ja", "\n")
    write("b.tsv", "")
    with pytest.raises(ValueError, match="^a.en,a.ja; b.tsv: no pairs; expected at least one"):
        read_pairs(["a.en,a.ja", "b.tsv"])
    with pytest.raises(ValueError, match="^paths: no pairs"):
        read_pairs([])
    with pytest.raises(TypeError, match="^paths is the string 'a.en,a.ja'; expected a list"):
        read_pairs("a.en,a.ja")


def test_prepare_corpus_normalizes_each_side():
    corpus = Corpus((Pair("He CAN 'T .", "行 か な い 。 A B"),), ())
    got = prepare_corpus(corpus, Normalizer(lowercase=True, detokenize=True), Normalizer(remove_spaces=True))
    assert got == Corpus((Pair("he can't.", "行かない。A B"),), ())


def test_prepare_corpus_notes_the_pairs_it_leaves_out():
    pairs = [
        Pair("Yes.", "はい。"),
        Pair("No.", "いいえ。"),
        Pair("yes .", "は い 。"),  # equals the first one after normalization
        Pair("Yes.", "うん。"),  # another translation
        Pair("\u200b", "空"),  # empty after normalization
        Pair("no.", "いいえ。"),  # held out, so not counted as a duplicate
        Pair("Yes.", "はい。"),
    ]
    english = Normalizer(lowercase=True, detokenize=True, plain=True)
    held_out = (pair for pair in [Pair("NO .", "いい え 。"), Pair("Never.", "いいえ。")])
    got = prepare_corpus(
        Corpus(tuple(pairs), ("an earlier note",)), english, Normalizer(remove_spaces=True), without=held_out
    )
    assert got.pairs == (Pair("yes.", "はい。"), Pair("yes.", "うん。"))
    assert got.notes == (
        "an earlier note",
        "1 pair with a side that is empty after normalization left out (the first: '\\u200b')",
        "2 pairs that are held out for validation left out (the first: 'No.')",
        "2 pairs that are duplicates left out (the first: 'yes .')",
    )


def test_prepare_corpus_keeps_a_normalized_corpus():
    corpus = Corpus((Pair("a", "あ"), Pair("b", "い")), ())
    assert prepare_corpus(corpus, UNCHANGED, UNCHANGED) == corpus


def test_a_corpus_without_remaining_pairs_is_refused():
    corpus = Corpus((Pair("a", "あ"),) * 2, ())
    with pytest.raises(ValueError, match="^no pairs remain of 2: 2 pairs that are held out for validation left out"):
        prepare_corpus(corpus, UNCHANGED, UNCHANGED, without=corpus.pairs)
    with pytest.raises(ValueError, match="^no pairs remain of 0: the corpus is empty$"):
        prepare_corpus(Corpus((), ()), UNCHANGED, UNCHANGED)
