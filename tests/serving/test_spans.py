"""Tests of the tokens that cover a text of the prompt."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.serving.spans import _DecodedPrompt, resolve_spans
from support.pretrained import smollm2
from support.served_tokenizers import START, byte_fallback, byte_level
from support.tiny_tokenizer import tokenizer as word_pieces

LETTERS = st.sampled_from([*"the old dogs.\n", "😀", "日", "本", "é", "\ufffd", "👩\u200d👧"])


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def check_by_offsets(tokenizer, text, start, length):
    """Compare the span of a part of a text with the offsets that the tokenizer returns when it encodes the text."""
    encoded = tokenizer(text, return_offsets_mapping=True)
    part = text[start : start + length]
    first = text.find(part)
    covering = [
        index
        for index, (begin, end) in enumerate(encoded["offset_mapping"])
        if begin < first + len(part) and end > first
    ]
    expected = {"a": (covering[0], covering[-1] + 1)}
    assert resolve_spans({"a": part}, encoded["input_ids"], tokenizer) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=30).map("".join), st.data())
def test_tokens_cover_any_part_of_a_text(text, data):
    start = data.draw(st.integers(0, len(text) - 1))
    check_by_offsets(byte_level(), text, start, data.draw(st.integers(1, len(text) - start)))


@pytest.mark.parametrize(
    ("tokens", "text", "span"),
    [
        (["Ġthe", "Ġold", "Ġdog"], "old", (1, 2)),
        (["Ġthe", "Ġold", "Ġdog"], "e o", (0, 2)),
        (["Ġthe", "Ġold", "Ġdog"], " ", (0, 1)),
        (["Ġthe", "Ġold", "Ġdog"], " the old dog", (0, 3)),
        (["Ġdog", "Ġthe", "Ġdog", "Ġthe"], " the", (1, 2)),
        (["a", "ð", "Ł", "ĺ", "Ģ", "b"], "😀", (1, 5)),  # one token for each byte
        (["a", "ð", "Ł", "ĺ", "Ģ", "b"], "😀b", (1, 6)),
        (["Ł", "a", "ĺ", "ĺ", "b"], "b", (4, 5)),  # bytes that are not UTF-8
        ([START, "a", START, "b"], f"{START}b", (2, 4)),
        (["a", "日本 token", "b"], "本 token", (1, 2)),
        (["a", None, "b", None, "a"], "ba", (2, 5)),
        ([None, "b", None], "b", (1, 2)),
        (["Ċ", "Ċ", "a"], "\n\n", (0, 2)),
    ],
)
def test_tokens_of_bytes(tokens, text, span):
    tokenizer = byte_level()
    unknown = len(tokenizer) + 5
    vocabulary = tokenizer.get_vocab()
    ids = [unknown if token is None else vocabulary[token] for token in tokens]
    assert resolve_spans({"a": text}, ids, tokenizer) == {"a": span}


@given(st.lists(st.integers(0, 281), max_size=20))
@settings(max_examples=50, deadline=None)
def test_bytes_of_any_ids_are_those_of_the_decoded_prompt(ids):
    prompt = _DecodedPrompt.of(ids, byte_level())
    assert prompt.text.decode("utf-8", "replace") == decode(byte_level(), ids)
    assert len(prompt.starts) == len(prompt.ends) == len(ids)


@pytest.mark.parametrize(
    ("prompt", "text", "span"),
    [
        ("the dogs", "dog", (3, 4)),
        ("the dogs", " dogs", (3, 5)),
        ("the dogs", "the", (0, 3)),
        ("the 😀 dog 😀", "😀", (4, 8)),
        ("the 😀 dog", "😀 dog", (4, 9)),
        ("é dog", "é", (1, 3)),
        ("t  d", "  ", (1, 3)),
    ],
)
def test_tokens_with_byte_fallback(prompt, text, span):
    tokenizer = byte_fallback()
    ids = tokenizer(prompt)["input_ids"]
    assert resolve_spans({"a": text}, ids, tokenizer) == {"a": span}
    assert resolve_spans({"a": text}, [1, *ids], tokenizer) == {"a": (span[0] + 1, span[1] + 1)}


@given(st.lists(st.integers(2, 257), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_tokens_that_are_not_utf8_do_not_move_the_others(ids):
    tokenizer = byte_fallback()
    vocabulary = tokenizer.get_vocab()
    prompt = [*ids, vocabulary["▁dog"], vocabulary["."], *ids]
    assert resolve_spans({"a": " dog."}, prompt, tokenizer)["a"] == (len(ids), len(ids) + 2)


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_tokenizer_without_a_backend_gives_the_same_spans(kind):
    class Slow:
        """Tokenizer that is written in Python."""

        def decode(self, ids, *, skip_special_tokens, clean_up_tokenization_spaces):
            assert (skip_special_tokens, clean_up_tokenization_spaces) == (False, False)
            return kind().decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    ids = kind()("the dog 日本 the 😀😀 dogs.")["input_ids"]
    spans = {"a": "dog", "b": "本", "c": "😀", "d": "😀 dogs", "e": "the 😀"}
    assert resolve_spans(spans, ids, Slow()) == resolve_spans(spans, ids, kind())


def test_tokens_of_word_pieces():
    tokenizer = word_pieces()
    ids = tokenizer("the dogs running.")["input_ids"]
    assert resolve_spans({"a": "dog", "b": "[CLS] the"}, ids, tokenizer) == {"a": (2, 3), "b": (0, 2)}


def test_pairs_need_no_tokenizer():
    assert resolve_spans({"a": (2, 5), "b": (0, 900)}, [1, 2, 3], None) == {"a": (2, 5), "b": (0, 900)}
    with pytest.raises(ValueError, match=r"^spans\['b'\] is a text, but the model has no tokenizer; expected \(start"):
        resolve_spans({"a": (2, 5), "b": "x"}, [1, 2, 3], None)
    assert resolve_spans({"a": (2, 5), "b": "x"}, [1, 2, 3], None, strict=False) == {"a": (2, 5)}


@pytest.mark.parametrize("text", ["cat", "the  old", "\ud800", "x" * 10_000])
def test_text_that_does_not_occur_is_named_or_omitted(text):
    ids = byte_level()("the old dog")["input_ids"]
    spans = {"a": "old", "b": text, "c": (0, 1)}
    with pytest.raises(ValueError, match=r"^spans\['b'\] is '.{1,120}', which does not occur in the prompt$"):
        resolve_spans(spans, ids, byte_level())
    assert resolve_spans(spans, ids, byte_level(), strict=False) == {"a": (1, 2), "c": (0, 1)}


def test_empty_prompt_contains_no_text():
    assert resolve_spans({"a": "x"}, [], byte_level(), strict=False) == {}
    assert resolve_spans({"a": "x"}, [], byte_fallback(), strict=False) == {}


@pytest.mark.pretrained
def test_tokens_of_smollm2():
    from clearhead.serving.tokens import load_tokenizer

    tokenizer = load_tokenizer(str(smollm2())).tokenizer
    text = "Where is the 日本語 👩\u200d👩\u200d👧 in  the\n\n\tgarden? She said: “naïve” 😀!"
    for start in range(len(text)):
        for length in (1, 2, 7):
            check_by_offsets(tokenizer, text, start, length)
