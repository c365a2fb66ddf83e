"""Words that name a matrix in headings, captions and sentences, such as "attention weights of head 2"."""

from __future__ import annotations

import re

from clearhead.explain.reading._markup import plain_text
from clearhead.explain.reading._symbols import Meaning, merge, read_equation, read_formula

MAX_DESCRIPTION_LETTERS = 2000
MAX_NAME_LETTERS = 400
_PROJECTIONS = r"(?:weights?|weight matri(?:x|ces)|projections?|projection matri(?:x|ces)|parameters?)"
# patterns with their steps, the likeliest step first; an earlier pattern wins at the same position
_PHRASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # no matrix: names of the whole calculation, and "key" as an adjective
    (r"(?:scaled )?dot[- ]product attention|key (?:insights?|points?|ideas?|takeaways?|steps?)", ()),
    (r"quer(?:y|ies) bias(?:es)?|bias(?:es)? (?:of|for) (?:the )?quer(?:y|ies)", ("query_bias",)),
    (r"keys? bias(?:es)?|bias(?:es)? (?:of|for) (?:the )?keys?", ("key_bias",)),
    (r"values? bias(?:es)?|bias(?:es)? (?:of|for) (?:the )?values?", ("value_bias",)),
    (r"output bias(?:es)?|bias(?:es)? (?:of|for) (?:the )?output", ("output_bias",)),
    (rf"quer(?:y|ies) {_PROJECTIONS}|{_PROJECTIONS} (?:of|for) (?:the )?quer(?:y|ies)", ("query_weight",)),
    (rf"keys? {_PROJECTIONS}|{_PROJECTIONS} (?:of|for) (?:the )?keys?", ("key_weight",)),
    (rf"values? {_PROJECTIONS}|{_PROJECTIONS} (?:of|for) (?:the )?values?", ("value_weight",)),
    (
        rf"(?:final )?output {_PROJECTIONS}(?! of)|{_PROJECTIONS} (?:of|for) (?:the )?output|output matrix",
        ("output_weight", "output"),
    ),
    (r"(?:attention )?(?:scores?|logits) after (?:the |applying )*soft-?max|soft-?maxed scores?|normali[sz]ed scores?",
     ("weights",)),
    (r"masked (?:and scaled |attention |scaled )?scores?|scores? (?:after|with) (?:the )?mask(?:ing)?", ("masked",)),
    (r"encoder (?:hidden )?(?:outputs?|states?|memory)|outputs? of the encoder|memory", ("memory",)),
    (r"(?:raw|unscaled|unnormali[sz]ed|plain) (?:attention )?scores?|dot[- ]products?", ("scores",)),
    (r"scaled (?:attention |dot[- ]product )?(?:scores?|logits)", ("scaled",)),
    (r"(?:attention )?(?:scores?|logits) (?:\S+ ){0,3}?(?:divided|scaled|after scaling)|after scaling", ("scaled",)),
    (r"(?:scale|divide) the scores|scaling", ("scaled",)),
    (r"attention (?:weights?|matri(?:x|ces)|patterns?|probability|probabilities|maps?|distributions?)", ("weights",)),
    (r"soft-?max|probability distributions?|weights after", ("weights",)),
    (r"attention scores?|scores?|logits|similarit(?:y|ies)", ("scores", "scaled")),
    (r"concatenat\w*|concat\b|(?:all )?heads side by side|joined heads", ("concat",)),
    (r"(?:final|layer|block|multi-?head|overall|model) (?:attention )?(?:outputs?|result)|final (?:linear )?projection",
     ("output",)),
    (r"outputs? of (?:the )?(?:\w+ )?(?:attention )?head|head outputs?|context (?:vectors?|matrix)", ("head_output",)),
    (r"weighted (?:sums?|values?|averages?|means?)", ("head_output",)),
    (r"attention outputs?|outputs?|results?", ("head_output", "output")),
    (r"mask(?:ing)?(?: matrix)?", ("mask",)),
    (r"quer(?:y|ies)", ("query",)),
    (r"keys?", ("key",)),
    (r"values?(?! of)", ("value",)),
    (r"(?:inputs?|embeddings?|vectors?) (?:with|plus|\+|after adding|after|including) (?:the )?"
     r"position\w*(?: encodings?| embeddings?)?", ("input",)),
    (r"position(?:al)? (?:encodings?|embeddings?|vectors?|matrix)|pos enc|sinusoidal encodings?", ("positions",)),
    (r"slices?|split", ("slice",)),
    (r"(?:input|token|word) (?:matrix|vectors?|embeddings?)|inputs?|embeddings?", ("input",)),
)  # fmt: skip
_WORDS = re.compile("|".join(rf"(?P<p{index}>\b(?:{pattern})\b)" for index, (pattern, _) in enumerate(_PHRASES)))
_JOINT = re.compile(r"[\s,;/&+]*(?:and|or)?[\s,;/&]*(?:the|their|its)?\s*")
_HEAD = re.compile(r"\bhead[\s_#]*(?:no\.?\s*)?\{?(\d{1,3})\b|\bhead[\s_]*(one|two|three|four)\b")
_ORDINAL = re.compile(r"\b(first|second|third|fourth|1st|2nd|3rd|4th) (?:attention )?head\b")
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "1st": 1, "2nd": 2, "3rd": 3, "4th": 4}
# symbols in running text: letters that are words too, such as A, only as formulas or in bold
_MARKED = re.compile(r"\$([^$]{1,120})\$|\\\((.{1,120}?)\\\)|\*\*([^*]{1,60})\*\*|`([^`]{1,60})`")
_BARE = re.compile(r"(?<![\w\\{^])(W(?:[_^]\{?|)[QKVO]\S{0,8}|[QKVX](?:[_^]\S{1,8}|\d{0,2}(?![\w'])))")
_WEIGHT_NAME = re.compile(r"[wW]_?([qQ]|query|[kK]|key|[vV]|value|[oO]|out|output)_?(\d{1,3})?")
_IDENTIFIER = re.compile(r"([A-Za-z_]{1,60}?)_?(\d{1,3})?")
_SYMBOL_ONLY = re.compile(r"[A-ZW][\w{}^()'⊤ᵀ₀-₉,]*")


def read_name(text: str) -> Meaning | None:
    """Return the meaning of the name of a matrix: a formula, or a name in code such as `w_query` or `attn_scores`."""
    plain = plain_text(text[:MAX_NAME_LETTERS])
    if match := _WEIGHT_NAME.fullmatch(plain):
        steps = {"q": "query_weight", "k": "key_weight", "v": "value_weight", "o": "output_weight"}
        return Meaning((steps[match[1][0].lower()],), int(match[2]) if match[2] else None)
    if match := _IDENTIFIER.fullmatch(plain):
        meaning = _read_words(match[1].replace("_", " ").strip().lower())
        if meaning is not None:
            return Meaning(meaning.steps, int(match[2]) if match[2] else None)
        if len(match[1].strip("_")) == 1:
            return read_formula(plain[:1].upper() + plain[1:])
    return read_formula(text) or describe(text)


def describe(text: str) -> Meaning | None:
    """Return the meaning of a heading, a caption or a sentence from its symbols and words, or None."""
    text = text[-MAX_DESCRIPTION_LETTERS:]
    words = plain_text(text).lower()
    equation = read_equation(text) if "=" in text else None
    meanings = [equation or _read_symbol(text), _read_words(words)]
    meaning = merge(meanings)
    head = head_index(words)
    if meaning is None:
        return None
    return Meaning(meaning.steps, meaning.head if head is None else head, meaning.transposed)


def head_index(words: str) -> int | None:
    """Return the head that a text names, as printed, or None if it names several or none."""
    lowered = words[:MAX_DESCRIPTION_LETTERS].lower()
    heads = {int(match[1]) if match[1] else _COUNTS[match[2]] for match in _HEAD.finditer(lowered)}
    heads |= {_ORDINALS[match[1]] for match in _ORDINAL.finditer(lowered)}
    return heads.pop() if len(heads) == 1 else None


def _read_words(words: str) -> Meaning | None:
    """Return the steps of the first phrase, and of those that "and", "or" or a comma joins to it."""
    steps: list[str] = []
    end = 0
    for match in _WORDS.finditer(words):
        phrase_steps = _PHRASES[int((match.lastgroup or "p0")[1:])][1]
        if steps and not (phrase_steps and _JOINT.fullmatch(words, end, match.start())):
            break
        steps += [step for step in phrase_steps if step not in steps]
        end = match.end()
    return Meaning(tuple(steps)) if steps else None


def _read_symbol(text: str) -> Meaning | None:
    """Return the meaning of the first symbol or formula in a text."""
    for match in _MARKED.finditer(text):
        formula = next(group for group in match.groups() if group is not None)
        marked_as_formula = match[1] is not None or match[2] is not None
        if marked_as_formula or _SYMBOL_ONLY.fullmatch(plain_text(formula).replace(" ", "")):
            meaning = read_equation(formula) or read_formula(formula)
            if meaning is not None:
                return meaning
    bare = _BARE.search(plain_text(text))
    return read_formula(bare[1]) if bare else None
