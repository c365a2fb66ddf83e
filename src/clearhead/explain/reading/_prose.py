"""Statements of the running text about the calculation: number of heads, mask, scaling and tokens."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from clearhead.explain.reading._blocks import Block, Table
from clearhead.explain.reading._markup import plain_text

_WORD_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "eight": 8, "twelve": 12, "sixteen": 16}
_HEADS = re.compile(
    r"\b(\d{1,3}|"
    + "|".join(_WORD_COUNTS)
    + r") (?:attention |parallel )?heads?\b|\bh = (\d{1,3})\b|\bheads? = (\d{1,3})\b"
)
_CAUSAL = re.compile(
    r"\bcausal(?:ly)?\b|\blook-?ahead mask|\bmasked (?:self-?|multi-?head )?attention"
    r"|\bfuture (?:tokens?|words?|positions?)"
    r"|\b(?:no|never|not|cannot|only)\b[^.]{0,60}\b(?:later|earlier|previous|preceding) (?:tokens?|words?|positions?)"
)
_NOT_MASKED = re.compile(
    r"\b(?:no|without(?: an?y?)?|non-?|not|never|unlike|would|instead of)\s*(?:\w+ ){0,2}(?:mask|causal)|\bunmasked\b"
)
_LEFT_OUT = r"(?:no|without|skip(?:s|ped|ping)?|ignor(?:e|es|ed|ing)|omit(?:s|ted|ting)?|leav(?:e|es|ing) out)"
_UNSCALED = re.compile(
    rf"\b{_LEFT_OUT} (?:any |the )?(?:scale|scaling|dividing|division)\b|\b(?:not|never) (?:be )?(?:scaled?|divided?)\b"
    r"|\b(?:don|doesn|didn)['’]t (?:scale|divide)\b|\bunscaled (?:dot|attention)"
    r"|\bscaling is (?:left out|omitted|skipped)"
)
_REMARK = re.compile(r"\b(?:would|could|might|if|why|because|grow|large|saturat|vanish|explod|gradient)")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n")
_DIVISOR = re.compile(r"(?:√|\\sqrt)\s*\{?(\d{1,4})\b|\bd_\{?k\}? = (\d{1,4})\b")
_POSITIONS = re.compile(r"\bpositional\b|\bposition (?:encoding|embedding|vector)|\b[ex] ?\+ ?pe?\b")
_ADDED = re.compile(
    r"\b[ex] ?\+ ?(?:pe?|e_\{?pos\}?)\b|\badd(?:s|ed|ing)?\b[^.]{0,60}\bposition"
    r"|\bposition[^.]{0,60}\b(?:is|are) added\b"
)
_GROUPED = re.compile(
    r"\b[gm]qa\b|\bgrouped[- ]|\bmulti-?query\b|\bkv[_ -]?heads?\b"
    r"|\bshar(?:e|es|ed|ing)\b[^.]{0,60}\b(?:keys?|values?|w_|k\b)"
    r"|\b(?:keys?|values?|k and v)\b[^.]{0,60}\bshared\b"
)
_QUOTED = re.compile(r'["“„«]([^"“”„«»]{1,300})["”“»]')


@dataclass(frozen=True)
class Statements:
    """Statements that the running text of a document makes."""

    heads: tuple[int, ...]  # numbers of heads, in the order of the text
    causal: bool
    mask_denied: bool
    unscaled: bool
    key_dims: tuple[int, ...]  # numbers under a square root, and values of d_k
    quotes: tuple[str, ...]
    positions: bool  # whether the text speaks of a positional encoding
    adds_positions: bool  # and adds it to the input
    grouped: bool  # whether heads share K and V


def read_statements(blocks: list[Block]) -> Statements:
    """Return the statements of all headings and paragraphs."""
    texts = [plain_text(block.text) for block in blocks if not isinstance(block, Table)]
    texts += [
        plain_text(text) for block in blocks if isinstance(block, Table) for text in (*block.symbols, block.caption)
    ]
    words = "\n".join(texts)
    lowered = re.sub(r"\s*=\s*", " = ", words.lower())
    heads = [_count(match) for match in _HEADS.finditer(lowered)]
    divisors = Counter(int(match[1] or match[2]) for match in _DIVISOR.finditer(lowered))
    return Statements(
        tuple(dict.fromkeys(count for count in heads if count)),
        bool(_CAUSAL.search(lowered)),
        bool(_NOT_MASKED.search(lowered)),
        any(_UNSCALED.search(sentence) and not _REMARK.search(sentence) for sentence in _SENTENCE.split(lowered)),
        tuple(divisor for divisor, _ in divisors.most_common()),
        tuple(match[1] for match in _QUOTED.finditer(words)),
        bool(_POSITIONS.search(lowered)),
        bool(_ADDED.search(lowered)),
        bool(_GROUPED.search(lowered)),
    )


def _count(match: re.Match[str]) -> int:
    text = match[1] or match[2] or match[3]
    return _WORD_COUNTS.get(text) or int(text)
