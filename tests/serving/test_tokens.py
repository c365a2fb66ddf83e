"""Tests of the tokenizer of a served model, and of the texts of its tokens."""

import pytest

from clearhead.serving.tokens import load_tokenizer, token_texts
from support.served_tokenizers import START, byte_level


def test_loads_the_files_of_a_folder(tmp_path):
    byte_level().save_pretrained(tmp_path)
    tokenizer, reason = load_tokenizer(str(tmp_path))
    assert reason is None
    assert tokenizer("the 😀")["input_ids"] == byte_level()("the 😀")["input_ids"]


@pytest.mark.parametrize("name", ["someone/something", "/nowhere", "", "\0", "x" * 5000, "/nowhere/model.gguf"])
def test_missing_tokenizer_has_a_reason(name):
    tokenizer, reason = load_tokenizer(name, revision="main")
    assert tokenizer is None
    assert name[:50] in reason
    assert len(reason) <= 201
    assert "\n" not in reason


def test_texts_of_tokens():
    tokenizer = byte_level()
    tokens = token_texts(tokenizer(f"{START} the the old")["input_ids"], tokenizer)
    assert tokens.texts == (START, " the", " the", " old")
    assert tokens.special == (True, False, False, False)
    assert tokens.words == (None,) * 4


def test_ids_are_the_texts_without_a_tokenizer():
    tokens = token_texts((7, 7, 11), None)
    assert tokens.texts == ("7", "7", "11")
    assert not any(tokens.special)
