"""Named spans of a prompt: their checks, and the tokens that cover a text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from clearhead._utils.checks import check_int, describe

SpanLike = tuple[int, int] | str
MAX_SPANS = 64
MAX_NAME = 100  # characters
MAX_TEXT = 100_000  # characters
_NAME = f"a printable name of 1 to {MAX_NAME} characters"
_SPAN = "(start, end) or a text of the prompt"
_INCOMPLETE = "\ufffd"  # decoded in place of a character whose last bytes are missing
_MAX_GROUP = 8  # tokens; a character has at most 4 bytes, but invalid bytes would be held back without a limit


def checked_spans(name: str, spans: object) -> dict[str, SpanLike]:
    """Validate spans by name, which a client of a server may have sent.

    Args:
        name: name of the argument, for errors.
        spans: (start, end) in tokens, or a text of the prompt, for each name.
    """
    if not isinstance(spans, Mapping):
        raise TypeError(f"{name} is {describe(spans)}; expected {_SPAN} for each name")
    if len(spans) > MAX_SPANS:
        raise ValueError(f"{name} has {len(spans)} entries; expected at most {MAX_SPANS}")
    for label in spans:
        if not isinstance(label, str) or not 0 < len(label) <= MAX_NAME or not label.isprintable():
            raise ValueError(f"{name} has the name {describe(label)}; expected {_NAME}")
    return {label: _checked_span(f"{name}[{label!r}]", span) for label, span in spans.items()}


def _checked_span(name: str, span: object) -> SpanLike:
    if isinstance(span, str):
        if not 0 < len(span) <= MAX_TEXT:
            raise ValueError(f"{name} has {len(span):,} characters; expected 1 to {MAX_TEXT:,}")
        return span
    if not isinstance(span, list | tuple) or len(span) != 2:
        raise TypeError(f"{name} is {describe(span)}; expected {_SPAN}")
    start, end = check_int(f"the start of {name}", span[0], 0), check_int(f"the end of {name}", span[1], 0)
    if start >= end:
        raise ValueError(f"{name} is ({start}, {end}); expected start < end, because an empty span has no attention")
    return start, end


def resolve_spans(
    spans: Mapping[str, SpanLike], prompt_ids: Sequence[int], tokenizer: Any, *, strict: bool = True
) -> dict[str, tuple[int, int]]:
    """Return (start, end) in tokens for each span.

    A text becomes the smallest range of tokens that covers its first occurrence in the decoded prompt.

    Args:
        spans: checked spans by name.
        prompt_ids: token ids of the prompt.
        tokenizer: tokenizer of the model; None if it cannot be loaded.
        strict: raise for a text that does not occur, or without a tokenizer. False omits the text.
    """
    resolved: dict[str, tuple[int, int]] = {}
    prompt: _DecodedPrompt | None = None
    for name, span in spans.items():
        if not isinstance(span, str):
            resolved[name] = span
            continue
        if tokenizer is not None:
            prompt = prompt or _DecodedPrompt.of(list(prompt_ids), tokenizer)
        covered = None if prompt is None else prompt.cover(span)
        if covered is not None:
            resolved[name] = covered
        elif strict and prompt is None:
            raise ValueError(f"spans[{name!r}] is a text, but the model has no tokenizer; expected (start, end)")
        elif strict:
            raise ValueError(f"spans[{name!r}] is {describe(span)}, which does not occur in the prompt")
    return resolved


@dataclass(frozen=True)
class _DecodedPrompt:
    """Prompt in UTF-8, and the bytes of each token: `text[starts[i]:ends[i]]`.

    Tokens whose bytes cannot be separated, such as those of one character, all have the same range.
    """

    text: bytes
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, ids: list[int], tokenizer: Any) -> _DecodedPrompt:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        is_byte_level = type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"
        return cls._from_bytes(ids, tokenizer) if is_byte_level else cls._from_decoding(ids, tokenizer)

    @classmethod
    def _from_bytes(cls, ids: list[int], tokenizer: Any) -> _DecodedPrompt:
        """Return the prompt of a byte-level tokenizer, which writes each byte as one letter."""
        table = _byte_letters()
        tokens = {token: _token_bytes(tokenizer.convert_ids_to_tokens(token), table) for token in set(ids)}
        pieces = [tokens[token] for token in ids]
        ends = list(accumulate(map(len, pieces)))
        return cls(b"".join(pieces), [0, *ends][: len(ends)], ends)

    @classmethod
    def _from_decoding(cls, ids: list[int], tokenizer: Any) -> _DecodedPrompt:
        """Return the prompt of any tokenizer, by decoding each token with the tokens before it as context.

        The context decides about spaces. It is only the last group of tokens that complete a character, so that the
        time is linear.
        """
        pieces: list[bytes] = []
        starts: list[int] = []
        ends: list[int] = []
        context, known = 0, ""  # first token of the context, and the text of the context
        held: list[str] = []  # decoded texts that end within a character
        for end in range(1, len(ids) + 1):
            text = _decode(tokenizer, ids[context:end])
            held.append(text)
            if text.endswith(_INCOMPLETE) and len(held) < _MAX_GROUP and end < len(ids):
                continue
            first, count = end - len(held), 0
            for decoded in held:
                count += 1
                if text.startswith(decoded):  # else the character was completed by a later token
                    pieces.append(decoded[len(known) :].encode("utf-8", "replace"))
                    start = ends[-1] if ends else 0
                    starts += [start] * count
                    ends += [start + len(pieces[-1])] * count
                    known, count = decoded, 0
            context, known, held = first, _decode(tokenizer, ids[first:end]), []
        return cls(b"".join(pieces), starts, ends)

    def cover(self, text: str) -> tuple[int, int] | None:
        """Return the smallest range of tokens that covers the first occurrence of a text; None without one."""
        encoded = text.encode("utf-8", "surrogatepass")
        start = self.text.find(encoded)
        if start < 0:
            return None
        return bisect_right(self.ends, start), bisect_left(self.starts, start + len(encoded))


def _decode(tokenizer: Any, ids: list[int]) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # three times as fast as the method of transformers
        return backend.decode(ids, skip_special_tokens=False)
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _byte_letters() -> dict[str, int]:
    """Return the byte of each letter of a byte-level vocabulary: printable Latin-1, then letters from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _token_bytes(token: str | None, table: Mapping[str, int]) -> bytes:
    """Return the bytes of a token of a byte-level vocabulary. Added tokens with other letters are plain text."""
    if token is None:  # an id beyond the vocabulary, which decodes to nothing
        return b""
    letters = [table.get(letter) for letter in token]
    return token.encode() if None in letters else bytes(letter for letter in letters if letter is not None)
