"""Lexicon of the built-in corpus: English words and their Japanese translations.

Some translations depend on another word of the sentence. Spaces separate the tokens of a translation: "shizuka na" is
an adjective and a particle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NounCategory = Literal["person", "animal", "thing", "clothing", "text", "food", "drink", "medicine", "place", "sport"]
# "many": plural in form, such as "shoes"; "mass": without article and plural
GrammaticalNumber = Literal["one", "many", "mass"]
Tense = Literal["present", "past", "future"]


@dataclass(frozen=True)
class Noun:
    """Noun and its translation."""

    english: str
    japanese: str
    category: NounCategory
    grammatical_number: GrammaticalNumber = "one"


@dataclass(frozen=True)
class Adjective:
    """Adjective, whose translation depends on its noun: an old man is toshioita, an old book furui."""

    english: str
    group: int  # adjectives of one noun come from different groups, in the order of the groups
    japanese: dict[NounCategory, str]


@dataclass(frozen=True)
class Sense:
    """Translation of a verb with certain objects: the stem before -masu, and the form before imasu."""

    stem: str
    progressive: str
    objects: tuple[str, ...] = ()  # empty for an intransitive verb


@dataclass(frozen=True)
class Verb:
    """Verb. Its object selects the sense if there are several."""

    base: str
    third: str
    past: str
    progressive: str
    senses: tuple[Sense, ...]
    particle: str = "o"  # particle of the object
    subjects: tuple[NounCategory, ...] = ("person",)
    recipient: bool = False  # allows a recipient
    manner: bool = True  # allows an adverb of manner


@dataclass(frozen=True)
class Time:
    """Adverbial of time, and the tenses it combines with."""

    english: str
    japanese: str
    tenses: tuple[Tense, ...] = ("present", "past", "future")


def _nouns(category: NounCategory, grammatical_number: GrammaticalNumber = "one", **words: str) -> tuple[Noun, ...]:
    return tuple(Noun(english, japanese, category, grammatical_number) for english, japanese in words.items())


NOUNS: dict[str, Noun] = {
    noun.english: noun
    for noun in (
        *_nouns("person", man="otoko", woman="onna", child="kodomo", teacher="sensei", student="gakusei"),
        *_nouns("person", doctor="isha", singer="kashu", nurse="kangoshi", friend="tomodachi"),
        *_nouns("animal", dog="inu", cat="neko", horse="uma"),
        *_nouns("clothing", hat="boushi", helmet="herumetto", coat="kooto", shirt="shatsu"),
        *_nouns("clothing", "many", shoes="kutsu", trousers="zubon", glasses="megane"),
        *_nouns("thing", piano="piano", guitar="gitaa", flute="furuuto", drum="taiko"),
        *_nouns("thing", door="doa", window="mado", umbrella="kasa", chair="isu", cup="koppu", plate="sara"),
        *_nouns("thing", clock="tokei", bicycle="jitensha", train="densha"),
        *_nouns("text", book="hon", letter="tegami", photo="shashin", plan="keikaku", lesson="jugyou"),
        *_nouns("food", cake="keeki", apple="ringo"),
        *_nouns("drink", "mass", tea="ocha", coffee="koohii", soup="suupu"),
        *_nouns("medicine", "mass", medicine="kusuri"),
        *_nouns("sport", "mass", football="sakkaa", tennis="tenisu"),
        *_nouns("place", garden="niwa", park="kouen", kitchen="daidokoro", room="heya", library="toshokan"),
        *_nouns("place", station="eki", school="gakkou", hospital="byouin"),
    )
}
AT_PLACES = ("station", "school")  # places with "at"; the others take "in"
PEOPLE = tuple(noun.english for noun in NOUNS.values() if noun.category == "person")
PLACES = tuple(noun.english for noun in NOUNS.values() if noun.category == "place")
ANIMATE_CATEGORIES: tuple[NounCategory, ...] = ("person", "animal")  # "there is" is i for these, ari for the others
_CLOTHES = ("hat", "helmet", "coat", "shirt", "shoes", "trousers", "glasses")
_GOODS = (*_CLOTHES, "guitar", "umbrella", "chair", "cup", "plate", "clock", "bicycle", "book", "cake", "apple")
_FOOD = ("tea", "coffee", "soup", "medicine")
EXISTENCE_NOUNS = (*PEOPLE, "dog", "cat", "horse", *_GOODS, "letter", "piano", "flute", "drum", "train", *_FOOD)

_THING_CATEGORIES: tuple[NounCategory, ...] = ("thing", "clothing", "text", "place")


def _adjective(english: str, group: int, *translations: tuple[str, tuple[NounCategory, ...]]) -> Adjective:
    return Adjective(
        english, group, {category: japanese for japanese, categories in translations for category in categories}
    )


ADJECTIVES = (
    _adjective("kind", 0, ("shinsetsu na", ("person",))),
    _adjective("famous", 0, ("yuumei na", ("person", "text", "place"))),
    _adjective("important", 0, ("taisetsu na", ("text",))),
    _adjective("beautiful", 0, ("utsukushii", ("person", "animal", *_THING_CATEGORIES))),
    _adjective("expensive", 0, ("takai", ("thing", "clothing", "drink", "medicine"))),
    _adjective("quiet", 0, ("otonashii", ("person", "animal")), ("shizuka na", ("place",))),
    _adjective("bright", 0, ("kashikoi", ("person",)), ("akarui", ("place",))),
    _adjective("strong", 0, ("tsuyoi", ("person", "animal", "medicine")), ("koi", ("drink",))),
    _adjective("big", 1, ("ookii", ("person", "animal", "thing", "clothing", "food", "place"))),
    _adjective("small", 1, ("chiisai", ("person", "animal", "thing", "clothing", "food", "place"))),
    _adjective("hot", 1, ("atsui", ("drink",))),
    _adjective("old", 2, ("toshioita", ("person", "animal")), ("furui", _THING_CATEGORIES)),
    _adjective("young", 2, ("wakai", ("person", "animal"))),
    _adjective("new", 2, ("atarashii", (*_THING_CATEGORIES, "medicine"))),
    _adjective("white", 3, ("shiroi", ("animal", "thing", "clothing"))),
    _adjective("black", 3, ("kuroi", ("animal", "thing", "clothing"))),
    _adjective("red", 3, ("akai", ("thing", "clothing"))),
    _adjective("sweet", 3, ("amai", ("food", "drink", "medicine"))),
)

VERBS = (
    Verb(
        "wear",
        "wears",
        "wore",
        "wearing",
        (
            Sense("kaburi", "kabutte", ("hat", "helmet")),
            Sense("ki", "kite", ("coat", "shirt")),
            Sense("haki", "haite", ("shoes", "trousers")),
            Sense("kake", "kakete", ("glasses",)),
        ),
        manner=False,
    ),
    Verb(
        "play",
        "plays",
        "played",
        "playing",
        (
            Sense("hiki", "hiite", ("piano", "guitar")),
            Sense("fuki", "fuite", ("flute",)),
            Sense("tataki", "tataite", ("drum",)),
            Sense("shi", "shite", ("football", "tennis")),
        ),
    ),
    Verb(
        "take",
        "takes",
        "took",
        "taking",
        (
            Sense("tori", "totte", ("photo",)),
            Sense("nomi", "nonde", ("medicine",)),
            Sense("uke", "ukete", ("lesson",)),
        ),
    ),
    Verb(
        "make",
        "makes",
        "made",
        "making",
        (
            Sense("tsukuri", "tsukutte", ("cake", "chair")),
            Sense("ire", "irete", ("tea", "coffee")),
            Sense("tate", "tatete", ("plan",)),
        ),
    ),
    Verb(
        "open",
        "opens",
        "opened",
        "opening",
        (Sense("ake", "akete", ("door", "window")), Sense("hiraki", "hiraite", ("book", "umbrella"))),
    ),
    Verb(
        "break",
        "breaks",
        "broke",
        "breaking",
        (Sense("wari", "watte", ("cup", "plate", "window")), Sense("kowashi", "kowashite", ("clock", "chair"))),
    ),
    Verb(
        "eat",
        "eats",
        "ate",
        "eating",
        (Sense("tabe", "tabete", ("cake", "apple")), Sense("nomi", "nonde", ("soup",))),
        subjects=ANIMATE_CATEGORIES,
    ),
    Verb("buy", "buys", "bought", "buying", (Sense("kai", "katte", (*_GOODS, *_FOOD)),)),
    Verb("write", "writes", "wrote", "writing", (Sense("kaki", "kaite", ("letter", "book", "plan")),)),
    Verb(
        "wash",
        "washes",
        "washed",
        "washing",
        (Sense("arai", "aratte", ("shirt", "cup", "plate", "horse", "dog", "cat")),),
    ),
    Verb("ride", "rides", "rode", "riding", (Sense("nori", "notte", ("horse", "bicycle", "train")),), particle="ni"),
    Verb("meet", "meets", "met", "meeting", (Sense("ai", "atte", PEOPLE),), particle="ni"),
    Verb("give", "gives", "gave", "giving", (Sense("age", "agete", (*_GOODS, "photo")),), recipient=True),
    Verb("send", "sends", "sent", "sending", (Sense("okuri", "okutte", (*_GOODS, "letter")),), recipient=True),
    Verb("show", "shows", "showed", "showing", (Sense("mise", "misete", (*_GOODS, "plan", "flute")),), recipient=True),
    Verb("sleep", "sleeps", "slept", "sleeping", (Sense("ne", "nete"),), subjects=ANIMATE_CATEGORIES, manner=False),
    Verb("work", "works", "worked", "working", (Sense("hataraki", "hataraite"),)),
    Verb("dance", "dances", "danced", "dancing", (Sense("odori", "odotte"),)),
)

PRONOUNS = {
    "i": "watashi",
    "you": "anata",
    "he": "kare",
    "she": "kanojo",
    "we": "watashitachi",
    "they": "karera",
}
DETERMINERS = {
    "the": "",
    "a": "",  # "an" before a vowel; no article before plural and mass nouns
    "this": "kono",
    "my": "watashi no",
    "your": "anata no",
    "his": "kare no",
    "her": "kanojo no",
}
DEGREES = {"very": "totemo", "quite": "kanari"}
FREQUENCIES = {"often": "yoku", "sometimes": "tokidoki", "usually": "taitei"}
MANNERS = {
    "slowly": "yukkuri",
    "quickly": "subayaku",
    "quietly": "sotto",
    "carefully": "chuuibukaku",
    "happily": "tanoshiku",
    "secretly": "kossori",
}
TIMES = (
    Time("yesterday", "kinou", ("past",)),
    Time("tomorrow", "ashita", ("future",)),
    Time("today", "kyou"),
    Time("in the morning", "asa"),
    Time("in the evening", "yuugata"),
    Time("on monday", "getsuyoubi ni"),
    Time("on friday", "kinyoubi ni"),
    Time("on sunday", "nichiyoubi ni"),
)
