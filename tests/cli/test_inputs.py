"""Tests of the texts that commands take: names of models and files are not read as texts."""

import pytest

from clearhead.cli.inputs import texts_to_read


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a folder current that contains a model and a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    (tmp_path / "book.txt").write_text("A text.")
    return tmp_path


@pytest.mark.parametrize("text", ["mine", "./mine", "en-ja", "missing.gguf"])
def test_name_of_a_model_is_refused(folder, text):
    with pytest.raises(ValueError, match=f"TEXT is '{text}', which is a model; expected --model {text}"):
        texts_to_read(text, None)


def test_name_of_a_file_is_refused(folder):
    with pytest.raises(ValueError, match=r"TEXT is 'book\.txt', which is a file; expected --file book\.txt"):
        texts_to_read("book.txt", None)


def test_hub_id_is_read_as_a_text_with_a_hint(folder, capsys):
    text = "sentence-transformers/all-MiniLM-L6-v2"
    assert texts_to_read(text, None) == [text]
    assert capsys.readouterr().err == f"reading '{text}' as a text; if it is a model, write --model {text}\n"


@pytest.mark.parametrize("text", ["A text.", "and/or", "either / or", "mine is here", "x" * 5000, "a\0b"])
def test_texts_are_read_without_a_hint(folder, capsys, text):
    assert texts_to_read(text, None) == [text]
    assert capsys.readouterr().err == ""
