"""A name, folder, file or hub id becomes a model with its tokenizer; `record` runs one on a text.

Nothing is fetched from the network unless it is asked for: what is given by a hub id is read from the local Hugging
Face cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from clearhead.checks import whole_number
from clearhead.recording import Recording, Stack, Tokens
from clearhead.weights import AttentionWeights

NEW_TOKENS = 128  # that an encoder–decoder writes at most, where no target is given


@dataclass(frozen=True, eq=False)
class Loaded:
    """A transformers model that runs on clearhead, with its tokenizer."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        return self.model.device


def load(
    name: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> Loaded:
    """A model by its folder of Hugging Face files, its GGUF file, or its hub id.

    Args:
        dtype: float32 by default.
        download: fetch it from the hub where it is not in the local cache.
    """
    from clearhead.huggingface import attention_modules  # isort: skip, it says what to install where it is missing
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

    path = Path(name)
    source = str(name)
    options: dict[str, Any] = {"local_files_only": not download, "dtype": dtype or torch.float32}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"{name}: there is no such file")
        source = str(path.parent)
        options |= {"gguf_file": path.name, "local_files_only": True}
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{name}: a folder without a config.json; expected one of Hugging Face files")
    elif path.exists():
        raise ValueError(f"{name}: expected a folder of Hugging Face files, a .gguf file or a hub id")
    try:
        with _bars_on_terminals_only():
            config = AutoConfig.from_pretrained(source, **options)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            maker = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModel
            model = maker.from_pretrained(source, attn_implementation="clearhead", **options)
    except (OSError, ValueError, SafetensorError) as error:
        if path.exists() or download:
            raise ValueError(f"{name}: {' '.join(str(error).split())[:300]}") from None
        raise ValueError(
            f"{name}: there is no such folder or file, and the local Hugging Face cache has no model of that name;"
            " with --download (download=True) it is fetched from the hub"
        ) from None
    attention_modules(model)
    return Loaded(path.name if path.exists() else str(name), model.to(device).eval(), tokenizer)


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """transformers draws its progress bars into files and pipes too."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def record(
    model: Loaded | str | os.PathLike[str] | nn.Module,
    text: str | Sequence[str],
    *,
    tokenizer: Any = None,
    target: str | None = None,
    values: bool = False,
) -> Recording:
    """Run a model on a text and keep its attention: (query, key, log-sum-exp) of every layer.

    Args:
        model: what `load` gives or takes, or a transformers model, with its `tokenizer`.
        text: a string, or its words, which are then joined by spaces and numbered.
        target: what an encoder–decoder is to write; by default what it does write, greedily.
        values: keep the values too, for each key's contribution to the output.
    """
    if isinstance(model, str | os.PathLike):
        model = load(model)
    if isinstance(model, nn.Module):
        if tokenizer is None:
            raise ValueError("tokenizer is None; a model that was not loaded here needs its own")
        model = Loaded(getattr(model, "name_or_path", "") or type(model).__name__, model, tokenizer)
    return _record(model, prepare(model, text, target), values)


def record_repeated(model: Loaded, length: int = 64, *, seed: int = 0) -> Recording:
    """Random tokens, twice in a row: what induction heads and duplicate-token heads are found by.

    What the tokenizer puts before and after a text stands there too.
    """
    length = whole_number("length", length, least=2)
    special = set(model.tokenizer.all_special_ids)
    ordinary = [number for number in range(len(model.tokenizer)) if number not in special]
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.tensor(ordinary)[torch.randperm(len(ordinary), generator=generator)[:length]]
    around = model.tokenizer("a", return_tensors="pt", return_special_tokens_mask=True)
    own = (around["special_tokens_mask"][0] == 0).nonzero().flatten()
    before, after = around["input_ids"][0, : own[0]], around["input_ids"][0, own[-1] + 1 :]
    ids = torch.cat([before, chosen, chosen, after])
    source = _tokens(model.tokenizer, ids, [None] * len(ids))
    inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
    return _record(model, _prepared(model, inputs, source, None), values=False)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a model is called with for one text, and the tokens of each stack: queries and keys."""

    inputs: dict[str, Tensor]
    axes: dict[str, tuple[Tokens, Tokens]]


def prepare(model: Loaded, text: str | Sequence[str], target: str | None = None) -> Prepared:
    """A text as tokens; for an encoder–decoder, also what it writes, or is told to write."""
    words = None if isinstance(text, str) else list(text)
    whole = text if isinstance(text, str) else " ".join(text)
    tokenizer = model.tokenizer
    encoded = tokenizer(whole, return_tensors="pt", return_offsets_mapping=tokenizer.is_fast)
    offsets = encoded.pop("offset_mapping")[0].tolist() if tokenizer.is_fast else None
    ids = encoded["input_ids"]
    if ids.shape[1] == 0:
        raise ValueError("text has no tokens; expected at least one")
    longest = _most_tokens(model.model.config)
    if ids.shape[1] > longest:
        raise ValueError(f"text has {ids.shape[1]} tokens, but {model.name} takes at most {longest}")
    source = _tokens(tokenizer, ids[0], _word_numbers(whole, words, offsets, encoded))
    return _prepared(model, {**encoded}, source, target)


def _prepared(loaded: Loaded, encoded: dict[str, Tensor], source: Tokens, target: str | None) -> Prepared:
    model = loaded.model
    inputs = {name: tensor.to(model.device) for name, tensor in encoded.items()}
    axes = {"encoder": (source, source), "decoder": (source, source)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = written = _written(model, loaded.tokenizer, inputs, target)
        own = _tokens(loaded.tokenizer, written[0], [None] * written.shape[1])
        axes |= {"decoder": (own, own), "cross": (own, source)}
    elif target is not None:
        raise ValueError(f"target is given, but {loaded.name} is no encoder–decoder")
    return Prepared(inputs, axes)


def _most_tokens(config: Any) -> float:
    """How many positions a model has learned; those that rotate, or count distances, have no end."""
    rotates = any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
    most = getattr(config, "max_position_embeddings", None)
    return float("inf") if rotates or most is None else most


def _record(loaded: Loaded, prepared: Prepared, values: bool) -> Recording:
    from clearhead.huggingface.modules import attention_modules, tapped

    modules = attention_modules(loaded.model)
    kept: dict[nn.Module, AttentionWeights] = {}
    taps = {attention.module: _Keeper(kept, values) for attention in modules}
    with torch.no_grad(), tapped(loaded.model, taps):
        loaded.model(**prepared.inputs, use_cache=False)
    silent = [attention.name for attention in modules if attention.module not in kept]
    if silent:
        raise RuntimeError(f"{loaded.name}: {silent[0]} did not run, so there is nothing to record of it")
    stacks = {}
    for stack in dict.fromkeys(attention.stack for attention in modules):
        layers = tuple(kept[attention.module] for attention in modules if attention.stack == stack)
        stacks[stack] = Stack(layers, *prepared.axes[stack])
    return Recording(loaded.name, stacks)


@torch.no_grad()
def _written(model: Any, tokenizer: Any, inputs: dict[str, Tensor], target: str | None) -> Tensor:
    """What the decoder of an encoder–decoder reads: its start token, and what it has written before each next token."""
    if target is None:
        return model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)[:, :-1]
    labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(model.device)
    start = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
    return torch.cat([start, labels[:, :-1]], dim=1)


class _Keeper:
    """Keeps the weights it is shown."""

    needs_weights = True

    def __init__(self, kept: dict[nn.Module, AttentionWeights], values: bool) -> None:
        self.kept, self.values = kept, values

    def __call__(self, module: nn.Module, weights: AttentionWeights | None, output: Tensor) -> Tensor:
        assert weights is not None
        self.kept[module] = weights if self.values else weights.without_values()
        return output


def _tokens(tokenizer: Any, ids: Tensor, words: list[int | None]) -> Tokens:
    numbers, special = ids.tolist(), set(tokenizer.all_special_ids)
    texts = tuple(tokenizer.decode([number], clean_up_tokenization_spaces=False) for number in numbers)
    return Tokens(texts, tuple(number in special for number in numbers), tuple(words))


def _word_numbers(
    text: str, words: list[str] | None, offsets: list[tuple[int, int]] | None, encoded: Any
) -> list[int | None]:
    """The word each token is a part of: of the words given, or of those the tokenizer sees; None if it is unknown."""
    if offsets is None:
        return [None] * encoded["input_ids"].shape[1]
    if words is None:
        return encoded.word_ids(0)
    places = [number for number, word in enumerate(words) for _ in range(len(word) + 1)]  # and the space after it
    found = []
    for start, end in offsets:
        start += len(text[start:end]) - len(
            text[start:end].lstrip()
        )  # a token may begin with the space before its word
        found.append(places[start] if start < end else None)
    return found
