"""`Normalizer`: brings text into one form before it is split into tokens. It is saved with a model.

Two corpora seldom write alike: one says "i can 't come .", the other "I can’t come." A model that is to learn from
both, and then to read what people type, needs one form for all three.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Normalizer:
    """Text in one form: composed (NFC), with no white space but single spaces between words.

    A second application changes nothing, so text that may have been normalised before is safe to normalise again.

    >>> Normalizer(detokenize=True)("he said ,  '' i can 't come . ''")
    'he said, "i can\\'t come."'
    >>> Normalizer(remove_spaces=True)("New York で CD を 買 っ た 。")
    'New YorkでCDを買った。'
    """

    lowercase: bool = False
    # English that was tokenized: "can 't ." becomes "can't."; typed text stays as it is
    detokenize: bool = field(default=False, metadata={"key": "untokenise"})  # its name in files
    # Japanese, Chinese, Thai and the like: no space beside a letter of theirs
    remove_spaces: bool = field(default=False, metadata={"key": "join"})
    plain: bool = False  # NFKC, quotation marks and dashes as on a keyboard, nothing invisible

    def __call__(self, text: str) -> str:
        # A removed space can bring two characters together that compose, or a quotation mark to its partner: only a
        # form that stays is final. It is reached, since all that repeats is that something gets shorter.
        previous, text = text, self._apply_once(text)
        while text != previous:
            previous, text = text, self._apply_once(text)
        return text

    def _apply_once(self, text: str) -> str:
        if self.plain:
            text = unicodedata.normalize("NFKC", text.translate(_PLAIN_CHARACTERS))
        if self.lowercase:
            text = text.lower()
        text = " ".join(text.split())
        if self.detokenize:
            text = _detokenize(text)
        if self.remove_spaces:
            text = _NEEDLESS_SPACE.sub("", text)
        return unicodedata.normalize("NFC", text)


_PLAIN_CHARACTERS = str.maketrans(
    dict.fromkeys("‘’‚‛ʼ′´", "'")  # NFKC would make ´ a space with an accent on it
    | dict.fromkeys("“”„‟″", '"')
    | dict.fromkeys("‐‑‒–—―−", "-")  # not ー, a letter
    | {"〜": "~"}  # NFKC does so with ～, which other systems write for the same key
    | dict.fromkeys("\u00ad\u200b\u2060\ufeff")  # soft hyphen, spaces of no width: removed
)

# Scripts that put no space between words, with their punctuation: Thai and Lao, Burmese, Khmer, Chinese and Japanese.
# Full-width letters and digits (ff10–ff5a) are not among them: between "ｔｈａｎｋ" and "ｙｏｕ" the space is meant.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_NEEDLESS_SPACE = re.compile(f" (?=[{_SPACELESS}])|(?<=[{_SPACELESS}]) ")

_CLOSING = re.compile(r"[.,;:?!…]+|[)\]}”’]")
_OPENING = re.compile(r"[(\[{“‘]")
_CONTRACTED = re.compile(r"(?:n['’]t|['’](?:t|s|m|d|ll|re|ve))(?![\w'’])", re.IGNORECASE)  # not the 's' of 's'
_ELIDED = {"o", "ma", "y"}  # o'clock, ma'am, y'all


def _detokenize(text: str) -> str:
    """Remove the spaces of `text` where English writes none.

    Only marks that stand alone, and endings such as 't, are moved: typed text hardly has any.
    """
    words = text.replace("''", '"').replace("``", '"').split(" ")  # what tokenizers write for a quotation mark
    opened = {'"': False, "'": False}
    joined, adjoins = "", True  # adjoins: no space before the next word
    for index, word in enumerate(words):
        previous, following = words[index - 1] if index else "", words[index + 1 :]
        if word in opened:
            opens = not opened[word] and _opens(word, previous, following)
            opened[word] = opens
            closes = not opens
        else:
            opened['"'] ^= word.count('"') % 2 == 1
            opens = bool(_OPENING.fullmatch(word)) or (word in {"$", "£", "€", "¥"} and _begins_with_digit(following))
            closes = bool(_CLOSING.fullmatch(word)) or _completes(word, previous)
        joined += word if adjoins or closes else f" {word}"
        adjoins = opens
    return joined


def _opens(mark: str, previous: str, following: list[str]) -> bool:
    """Whether a quotation mark that stands alone, outside quotation marks, begins a quotation.

    At the start it does; elsewhere if there is one to end it. A single one may also be an apostrophe: after
    "the girls" or "goin" it is taken for one.
    """
    if not previous:
        return True
    if mark == '"':
        return any('"' in word for word in following)
    return mark in following and not previous.lower().endswith(("s", "in"))


def _completes(word: str, previous: str) -> bool:
    """Whether `word` is the rest of `previous`: don 't, o 'clock, 5 %."""
    if word == "%":
        return previous[-1:].isdigit()
    if previous.lower() in _ELIDED and word[0] in "'’":
        return word[1:2].isalpha()
    return bool(_CONTRACTED.match(word)) and previous[-1:].isalnum()


def _begins_with_digit(words: list[str]) -> bool:
    return bool(words) and words[0][0].isdigit()
