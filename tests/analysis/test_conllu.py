"""Tests of the CoNLL-U reader: trees over the numbered words, and errors with line numbers."""

import gzip

import pytest

from clearhead.analysis.conllu import Sentence, read_conllu
from support.paths import DATA

TINY = DATA / "tiny.conllu"


def test_reads_words_heads_and_relations():
    barking, see, eaten, please = read_conllu(TINY)
    assert barking.words == ("Small", "dogs", "were", "barking", ".")
    assert barking.heads == (1, 3, 3, -1, 3)
    assert barking.relations == ("amod", "nsubj", "aux", "root", "punct")
    assert see.words == ("I", "ca", "n't", "see", "it")
    assert see.heads == (3, 3, 3, -1, 3)
    assert len(eaten.words) == 11
    assert eaten.words[9:] == ("by", "Tom")
    assert eaten.heads[9:] == (10, 8)
    assert eaten.relations[1:6] == ("nsubj", "aux", "root", "case", "obl")
    assert please.words[0] == "Größe"


def test_reads_gzip_byte_order_mark_and_crlf(tmp_path):
    packed = tmp_path / "tiny.conllu.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + TINY.read_bytes().replace(b"\n", b"\r\n")))
    assert read_conllu(packed) == read_conllu(TINY)


def test_missing_and_extra_empty_lines_are_accepted(tmp_path):
    loose = tmp_path / "loose.conllu"
    loose.write_text("\n\n" + TINY.read_text().rstrip("\n").replace("\n\n", "\n\n\n"))
    assert read_conllu(loose) == read_conllu(TINY)
    loose.write_text("# nothing\n\n")
    assert read_conllu(loose) == []


GOOD = "1\tYes\tyes\tINTJ\t_\t_\t0\troot\t_\t_"
BROKEN = {
    "has 3 columns; expected 10": "2\tyes\tyes",
    "has 1 columns": GOOD.replace("\t", " "),
    "ID is '3'; expected 2": "3\tno\tno\tINTJ\t_\t_\t1\tconj\t_\t_",
    "ID is 'x-3'; expected 2": "x-3\tno\tno\tINTJ\t_\t_\t1\tconj\t_\t_",
    "HEAD is '_'; expected the number of a word": "2\tno\tno\tINTJ\t_\t_\t_\tconj\t_\t_",
    "HEAD is '-1'": "2\tno\tno\tINTJ\t_\t_\t-1\tconj\t_\t_",
    "HEAD is 3; expected another of the sentence's 2 words": "2\tno\tno\tINTJ\t_\t_\t3\tconj\t_\t_",
    "HEAD is 2; expected another": "2\tno\tno\tINTJ\t_\t_\t2\tconj\t_\t_",
    "DEPREL is '_'": "2\tno\tno\tINTJ\t_\t_\t1\t_\t_\t_",
}


@pytest.mark.parametrize("message", BROKEN)
def test_an_invalid_line_is_rejected_with_its_number(message, tmp_path):
    path = tmp_path / "broken.conllu"
    path.write_text(f"# yes\n{GOOD}\n\n{GOOD}\n{BROKEN[message]}\n")
    with pytest.raises(ValueError, match=f"broken.conllu, line 5: {message}"):
        read_conllu(path)


def test_invalid_utf8_gzip_and_missing_files_are_rejected(tmp_path):
    path = tmp_path / "latin.conllu"
    path.write_bytes(GOOD.encode() + b"\n\n# Gr\xf6\xdfe\n")
    with pytest.raises(ValueError, match="latin.conllu, line 3: not UTF-8"):
        read_conllu(path)
    for name, content in (
        ("half.gz", gzip.compress(TINY.read_bytes())[:-20]),
        ("none.gz", TINY.read_bytes()),
        ("bad.gz", gzip.compress(b"")[:10] + b"\xff" * 40),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}, after line .*: incomplete or damaged gzip file"):
            read_conllu(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="missing: there is no such file"):
        read_conllu(tmp_path / "missing")


def test_sentence_rejects_wrong_lengths_and_heads():
    with pytest.raises(ValueError, match="have \\(2, 1, 2\\) entries"):
        Sentence(("a", "b"), (-1,), ("root", "dep"))
    for head in (2, -2, 1):
        with pytest.raises(ValueError, match=f"the head of word 1 is {head}; expected another of the 2 words"):
            Sentence(("a", "b"), (-1, head), ("root", "dep"))
