"""Text normalization before tokenization.

Corpora differ in style: one contains "i can 't come .", another "I can’t come." A normalizer maps both to one form,
and applies it to typed text too. It is saved with the model.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Normalizer:
    """Text normalizer. Without options, it composes characters (NFC) and reduces white space to single spaces.

    Normalization is idempotent: a second application changes nothing.

    Examples:
        >>> Normalizer(detokenize=True)("he said ,  '' i can 't come . ''")
        'he said, "i can\\'t come."'
        >>> Normalizer(remove_spaces=True)("New York で CD を 買 っ た 。")
        'New YorkでCDを買った。'
    """

    lowercase: bool = False
    # join the tokens of English text: "can 't ." becomes "can't."; typed text does not change
    detokenize: bool = field(default=False, metadata={"key": "untokenise"})  # key in configuration files
    # remove spaces next to characters of scripts without word spaces: Japanese, Chinese, Thai and others
    remove_spaces: bool = field(default=False, metadata={"key": "join"})
    plain: bool = False  # NFKC, ASCII quotation marks and dashes, no invisible characters

    def __call__(self, text: str) -> str:
        """Return the normalized text."""
        # Repeat until nothing changes: removing a space can join two characters that compose, or a pair of quotation
        # marks. The loop terminates because each repetition makes the text shorter.
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
    dict.fromkeys("‘’‚‛ʼ′´", "'")  # NFKC would map ´ to a space and a combining accent
    | dict.fromkeys("“”„‟″", '"')
    | dict.fromkeys("‐‑‒–—―−", "-")  # without ー, which is a letter
    | {"〜": "~"}  # NFKC maps only ～; systems differ in which of the two a keyboard writes
    | dict.fromkeys("\u00ad\u200b\u2060\ufeff")  # removed: soft hyphen and zero-width spaces
)

# Scripts without word spaces, with their punctuation: Thai and Lao, Burmese, Khmer, Chinese and Japanese. Full-width
# letters and digits (ff10–ff5a) are excluded: the space between "ｔｈａｎｋ" and "ｙｏｕ" is intended.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\ufe30-\ufe4f"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_NEEDLESS_SPACE = re.compile(f" (?=[{_SPACELESS}])|(?<=[{_SPACELESS}]) ")

_CLOSING = re.compile(r"[.,;:?!…]+|[)\]}”’]")
_OPENING = re.compile(r"[(\[{“‘]")
_CONTRACTED = re.compile(r"(?:n['’]t|['’](?:t|s|m|d|ll|re|ve))(?![\w'’])", re.IGNORECASE)  # but not 's'
_ELIDED = {"o", "ma", "y"}  # o'clock, ma'am, y'all


def _detokenize(text: str) -> str:
    """Remove the spaces that a tokenizer has inserted into English text.

    Joins only isolated punctuation marks and endings such as 't, which are rare in typed text.
    """
    words = text.replace("''", '"').replace("``", '"').split(" ")  # tokenizers write `` and '' for quotation marks
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
    """Return whether an isolated quotation mark opens a quotation; no quotation is open before it.

    The mark opens a quotation at the start of the text, or if a closing mark follows. A single mark after "the girls"
    or "goin" counts as an apostrophe.
    """
    if not previous:
        return True
    if mark == '"':
        return any('"' in word for word in following)
    return mark in following and not previous.lower().endswith(("s", "in"))


def _completes(word: str, previous: str) -> bool:
    """Return whether `word` is the second part of `previous`: don 't, o 'clock, 5 %."""
    if word == "%":
        return previous[-1:].isdigit()
    if previous.lower() in _ELIDED and word[0] in "'’":
        return word[1:2].isalpha()
    return bool(_CONTRACTED.match(word)) and previous[-1:].isalnum()


def _begins_with_digit(words: list[str]) -> bool:
    return bool(words) and words[0][0].isdigit()
