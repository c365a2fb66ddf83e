"""Removal of Markdown, HTML and LaTeX markup that changes how a text looks, but not its meaning."""

from __future__ import annotations

import html
import re

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SUB = re.compile(r"<(sub|sup)>([^<>]{0,80})</\1>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,500}>")
# commands whose first argument sets a color or a size, and commands whose only argument is the text
_OPTIONS = re.compile(
    r"\\(?:color|textcolor|colorbox|cellcolor|rowcolor|fcolorbox|phantom|hphantom|vphantom|label|tag)\s*"
    r"(?:\[[^\[\]{}]{0,40}\])?\{[^{}]{0,80}\}"
)
_FONT = re.compile(
    r"\\(?:mathbf|mathrm|mathit|mathsf|mathtt|mathcal|mathbb|boldsymbol|bm|pmb|text|textbf|textit|textrm|texttt|textsf|"
    r"emph|operatorname\*?|mbox|underline|overline|boxed|hat|tilde|bar|vec|num|fitted|textsuperscript)\s*\{([^{}]*)\}"
)
_DECLARATION = re.compile(
    r"\\(?:bf|rm|it|sf|tt|bfseries|itshape|displaystyle|textstyle|scriptstyle|footnotesize|small|normalsize|large|"
    r"left|right|bigl|bigr|Bigl|Bigr|big|Big|quad|qquad|hline|toprule|midrule|bottomrule|nopagebreak|filbreak|centering|"
    r"noindent|limits|nonumber|notag|hspace\*?\{[^{}]{0,20}\}|vspace\*?\{[^{}]{0,20}\})(?![A-Za-z])"
)
_SYMBOLS = {
    "infty": "∞",
    "top": "T",
    "intercal": "T",
    "prime": "T",
    "alpha": "α",
    "times": "×",
    "cdot": "·",
    "odot": "⊙",
    "to": "→",
    "rightarrow": "→",
    "ldots": "…",
    "cdots": "…",
    "dots": "…",
    "vdots": "…",
    "ddots": "…",
    "approx": "≈",
    "textbackslash": "\\",
    "textasciitilde": "~",
    "textasciicircum": "^",
    "textless": "<",
    "textgreater": ">",
    "textquotedbl": '"',
    "le": "≤",
    "minus": "−",
}
_SYMBOL = re.compile(r"\\(" + "|".join(sorted(_SYMBOLS, key=len, reverse=True)) + r")(?![A-Za-z])(?:\{\})?")
_DELIMITER = re.compile(r"\\[\[\]()]|(?<!\\)\$+")
_SPACE = re.compile(r"\\[,;:!> ]|(?<!\\)~")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_EMPHASIS = re.compile(r"\*\*?|~~|(?<![\w\\])__(?=\S)|(?<=\S)__(?!\w)|`")
_SCRIPTS = str.maketrans(
    {letter: f"_{{{plain}}}" for letter, plain in zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)}
) | (str.maketrans({"ᵀ": "^{T}", "⊤": "T", "¹": "^{1}", "²": "^{2}", "³": "^{3}"}))
MAX_NESTING = 8  # of LaTeX commands inside each other


def plain_text(text: str) -> str:
    r"""Return a text without markup. Subscripts and superscripts are written as in LaTeX.

    Examples:
        >>> plain_text(r"**W<sup>Q</sup>** of $\mathbf{Q}_1$")
        'W^{Q} of Q_1'
    """
    text = _COMMENT.sub("", text)
    text = _SUB.sub(lambda match: f"{'_' if match[1].lower() == 'sub' else '^'}{{{match[2]}}}", text)
    text = html.unescape(_TAG.sub("", text)).translate(_SCRIPTS)
    text = _OPTIONS.sub("", _DELIMITER.sub(" ", text))
    for _ in range(MAX_NESTING):
        text, changes = _FONT.subn(r"\1", text)
        if not changes:
            break
    text = _SYMBOL.sub(lambda match: _SYMBOLS[match[1]], _DECLARATION.sub("", text))
    text = _EMPHASIS.sub("", _SPACE.sub(" ", text))
    text = _ESCAPE.sub(r"\1", text)
    return " ".join(text.split())
