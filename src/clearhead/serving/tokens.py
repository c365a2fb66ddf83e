"""Tokenizer of a served model, and the texts of its tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.recording.decoding import decoded
from clearhead.recording.recording import Tokens

logger = logging.getLogger("clearhead.serving")
_MAX_REASON = 200  # characters


class LoadedTokenizer(NamedTuple):
    """Tokenizer of transformers; None with the reason why it could not be loaded."""

    tokenizer: Any | None
    reason: str | None = None


def load_tokenizer(name: str, revision: str | None = None, trust_remote_code: bool = False) -> LoadedTokenizer:
    """Load the tokenizer of a served model from its local files, which the server has downloaded.

    Args:
        name: folder or hub id of the tokenizer, or a .gguf file.
        revision: revision of the hub id.
        trust_remote_code: run the code of the tokenizer, as the server was told to.
    """
    path, source = Path(name), name
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    if path.suffix == ".gguf":
        source = str(path.parent)
        options["gguf_file"] = path.name
    if revision is not None:
        options["revision"] = revision
    try:
        from transformers import AutoTokenizer

        return LoadedTokenizer(AutoTokenizer.from_pretrained(source, **options))
    except Exception as error:  # transformers and code of models raise any error; tokens are then shown as ids
        reason = " ".join(f"{name}: {type(error).__name__}: {error}".split())
        return LoadedTokenizer(None, reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}…")


def tokenizer_or_none(name: str, revision: str | None = None, trust_remote_code: bool = False) -> Any | None:
    """Return the tokenizer of `load_tokenizer`, or log why it is missing."""
    loaded = load_tokenizer(name, revision, trust_remote_code)
    if loaded.tokenizer is None:
        logger.warning("tokens are shown as ids: %s", loaded.reason)
    return loaded.tokenizer


def token_texts(ids: Sequence[int], tokenizer: Any | None) -> Tokens:
    """Return the tokens of ids; without a tokenizer, their texts are the ids."""
    return decoded(tokenizer, list(ids))
