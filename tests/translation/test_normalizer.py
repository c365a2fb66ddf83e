"""Tests of text normalization: each option, typed text that must not change, and idempotence."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.translation.normalizer import Normalizer

EVERY = [Normalizer(*flags) for flags in product((False, True), repeat=4)]


def test_white_space_and_composition_are_always_normalized():
    assert Normalizer()(" \tone\u3000 two\u2028\r\n three \n") == "one two three"
    assert Normalizer()("Cafe\u0301 “é” Ａ…") == "Café “é” Ａ…"
    assert Normalizer()(" \n ") == ""


def test_default_options_change_nothing_else():
    text = "He said , '' I can 't — １０ ％ . '' CD プレーヤー"
    assert Normalizer()(text) == text


def test_lowercase_includes_full_width_letters():
    assert Normalizer(lowercase=True)("Tom ÄSS ＣＤ") == "tom äss ｃｄ"


TOKENIZED = {
    "i can 't come .": "i can't come.",
    "i 'm sure you 'll say they 've gone , and we 're late .": "i'm sure you'll say they've gone, and we're late.",
    "i 'd go if it 's fine ; isn 't it ?": "i'd go if it's fine; isn't it?",
    "I CA N'T ! DON 'T !": "I CAN'T! DON'T!",
    "it is ten o 'clock , ma 'am .": "it is ten o'clock, ma'am.",
    "'' you talk too much , '' he said .": '"you talk too much," he said.',
    "'' that 's right '' , said john .": '"that\'s right", said john.',
    "they call robert '' bob '' , not '' rob '' .": 'they call robert "bob", not "rob".',
    "`` yes '' and \" no \" .": '"yes" and "no".',
    "''Nice watch you 've got there . '' ''Go ahead . ''": '"Nice watch you\'ve got there." "Go ahead."',
    "“ yes ” , ‘ no ’ .": "“yes”, ‘no’.",
    "he said to me , ' don 't make such a noise . '": "he said to me, 'don't make such a noise.'",
    "the dog is called ' spot ' by the family .": "the dog is called 'spot' by the family.",
    "she goes to a girls ' high school .": "she goes to a girls' high school.",
    "the girls ' and the boys ' shoes": "the girls' and the boys' shoes",
    "we 're goin ' home .": "we're goin' home.",
    "goin ' and comin ' back": "goin' and comin' back",
    "' tis so": "'tis so",
    "here 's $ 5 , or £ 3 , or $ x .": "here's $5, or £3, or $ x.",
    "5 % ( or so ) of 10,000": "5% (or so) of 10,000",
    "year followed year ...": "year followed year...",
    "again ? not again ! !": "again? not again!!",
    "mr. brown left the u.s. at four p.m.": "mr. brown left the u.s. at four p.m.",
    "tom is taller than i.": "tom is taller than i.",
    "one more than this : to know yourself .": "one more than this: to know yourself.",
    '" what': '"what',
    'what "': 'what"',
    'a 5 " pipe': 'a 5" pipe',
}


@pytest.mark.parametrize("tokenized", TOKENIZED)
def test_detokenize_joins_tokenized_english(tokenized):
    assert Normalizer(detokenize=True)(tokenized) == TOKENIZED[tokenized]


TYPED = [
    "I'm here, ok?",
    "'tis true that the dogs' food is rock 'n' roll.",
    "The letter 's' comes before 't'.",
    '"When do you watch TV?" "I watch TV after dinner."',
    "\"Not 'training pants'. 'Rehab pants'.\" \"Got 'em.\"",
    "It's 5% of $1,000.50 (or so); at 10:30 p.m. Mr. Smith's well-known son-in-law goes to Tokyo-Office '97.",
    "Love is like measles - everyone should have it & E->J.",
    "… and e.g. Amazon.com, info@example.com :)",
    "L'Auberge, O'Brien, y'all — “yes”, ‘no’.",
    "'Tom' + 's = 'Tom's'",
    "The % of men and the $ sign.",
]


@pytest.mark.parametrize("text", TYPED)
def test_detokenize_does_not_change_typed_english(text):
    assert Normalizer(detokenize=True)(text) == text


@pytest.mark.parametrize(
    ("spaced", "joined"),
    [
        ("彼女 は ８ 時 前 に 帰 っ て き た 。", "彼女は８時前に帰ってきた。"),
        ("「 行 っ た 」 、 と （ １０ ） ？ ！", "「行った」、と（１０）？！"),
        ("CD プレーヤー", "CDプレーヤー"),
        ("New York で air と heir を 12 回 。", "New Yorkでairとheirを12回。"),
        ("「 ｔｈａｎｋ ｙｏｕ 」", "「ｔｈａｎｋ ｙｏｕ」"),
        ("Beyoncé est là", "Beyoncé est là"),
        ("ผม รัก คุณ", "ผมรักคุณ"),
        ("𠮷 野 家", "𠮷野家"),
    ],
)
def test_remove_spaces_joins_scripts_without_word_spaces(spaced, joined):
    assert Normalizer(remove_spaces=True)(spaced) == joined


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ("It’s “fine”, isn´t ‘it’?", "It's \"fine\", isn't 'it'?"),
        ("1990–95 — −3 e‑mail", "1990-95 - -3 e-mail"),
        ("ＣＤ１２！", "CD12!"),
        ("ﾎﾟｯﾄ … ℃", "ポット ... °C"),
        ("プレーヤー", "プレーヤー"),
        ("２～３ ２〜３", "2~3 2~3"),
        ("\ufeffRail\u200broad co\u00adop", "Railroad coop"),
    ],
)
def test_plain_maps_to_keyboard_characters(typed, plain):
    assert Normalizer(plain=True)(typed) == plain


def test_two_styles_normalize_to_the_same_text():
    english = Normalizer(lowercase=True, detokenize=True, plain=True)
    assert english("he said , '' i can 't . ''") == english("He said, “I can’t.”") == 'he said, "i can\'t."'
    assert english("don ’t !") == "don't!"


def test_removing_a_space_can_compose_characters():
    """か and a combining mark compose once the space between them is removed."""
    assert Normalizer(remove_spaces=True)("か \u3099") == "が"


WORDS = """ ' '' `` " “ ” ’ ´ … . , ?! ( ) $ 5 % 't n't 's 'clock o girls in don a İ Σ か \u3099 ｶ ﾞ ー １ — é ¨ """


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
@given(st.text() | st.lists(st.sampled_from(["", *WORDS.split()])).map(" ".join))
def test_normalization_is_idempotent(normalizer, text):
    once = normalizer(text)
    assert normalizer(once) == once
    assert once == " ".join(once.split())
