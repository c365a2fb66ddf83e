"""A name, folder, file or hub id becomes a model with its tokenizer; `record` runs one on a text.

Nothing is fetched from the network unless it is asked for: what is given by a hub id is read from the local Hugging
Face cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from clearhead._utils.bounded_reads import TOKEN_LIMIT
from clearhead._utils.checks import check_int
from clearhead._utils.extras import needs_extra
from clearhead.functional import keeping_vectors
from clearhead.recording.recording import Recording, Stack, Tokens
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.translator import BUNDLED_MODELS, Translator
from clearhead.weights.matrix import AttentionWeights

NEW_TOKENS = 128  # that an encoder–decoder writes at most, where no target is given
# What a model reads where no text is given: a sentence that is reordered when it is translated, and
# ordinary prose, longer than any fixed offset.
SENTENCE = "My mother was cooking dinner in the kitchen when I came home from school yesterday."
PASSAGE = (
    "When the ferry left the harbour, the rain had already stopped, and the old woman at the window folded her coat. "
    "She had promised her brother that she would not wait for him, but she was still looking back at the lighthouse. "
    "Behind her, two children were arguing quietly about the colour of the sea: one said that it was green, the other "
    "that it was never the same twice. The captain, who knew the passage better than anybody, was drinking cold tea.",
    "The first machines that could translate a sentence did it word by word. They looked each word up in a table, "
    "wrote down what they found, and left it to the reader to put the pieces in order. That works for a shopping list. "
    "It does not work for a question, for a joke, or for a language that keeps its verbs for the end.",
)


@dataclass(frozen=True, eq=False)
class HuggingFaceModel:
    """A transformers model that runs on clearhead, with its tokenizer."""

    name: str
    model: Any
    tokenizer: Any


def load(
    name: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> HuggingFaceModel | Translator:
    """A model by its name, its folder of Hugging Face files or of a training run, its GGUF file, or its hub id.

    Args:
        name: "en-ja" is the bundled translator.
        dtype: float32 by default; a model of our own is always in float32.
        download: fetch it from the hub where it is not in the local cache.
    """
    path = Path(name)
    if str(name) in BUNDLED_MODELS or RunDirectory(path).is_run:
        if dtype not in (None, torch.float32):
            raise ValueError(f"dtype is {dtype}, but {name} is a model of our own; expected torch.float32")
        return Translator.load(name, device=device)
    from clearhead.huggingface import attention_modules  # isort: skip, it says what to install where it is missing
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

    source = str(name)
    options: dict[str, Any] = {"local_files_only": not download, "dtype": dtype or torch.float32}
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"{name}: there is no such file")
        with needs_extra("hf", "a .gguf file"):
            import gguf  # noqa: F401
        source = str(path.parent)
        options |= {"gguf_file": path.name, "local_files_only": True}
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{name}: a folder without a config.json; expected one of Hugging Face files")
    elif path.exists():
        raise ValueError(f"{name}: expected a folder of Hugging Face files, a .gguf file, a hub id or en-ja")
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
    return HuggingFaceModel(path.name if path.exists() else str(name), model.to(device).eval(), tokenizer)


def default_text(model: HuggingFaceModel | Translator) -> str:
    """What is shown of a model where no text is given."""
    return SENTENCE if isinstance(model, Translator) else PASSAGE[0]


def token_count(model: HuggingFaceModel | Translator, text: str) -> int:
    """How many tokens a model would read."""
    if isinstance(model, Translator):
        return len(model.vocabulary.encode(model.config.text.source(text)))
    return len(model.tokenizer(text)["input_ids"])


def layer_count(model: HuggingFaceModel | Translator | Recording) -> int:
    """Of the stack that has most."""
    if isinstance(model, Recording):
        return max(len(stack.layers) for stack in model.stacks.values())
    if isinstance(model, Translator):
        return max(len(model.model.encoder), len(model.model.decoder))
    from clearhead.huggingface import attention_modules

    return 1 + max(attention.layer for attention in attention_modules(model.model))


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
    model: HuggingFaceModel | Translator | str | os.PathLike[str] | nn.Module,
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
        values: keep the values too, for each key's contribution to the output, and queries and keys in any case:
            of short texts a recording otherwise holds the scores, where they are fewer numbers.
    """
    if isinstance(model, str | os.PathLike):
        model = load(model)
    if isinstance(model, Translator):
        return model.record(text, target=target, values=values)
    model = _with_tokenizer(model, tokenizer)
    return _record(model, prepare(model, text, target), values)


def record_repeated(
    model: HuggingFaceModel | nn.Module, length: int = 64, *, tokenizer: Any = None, seed: int = 0
) -> Recording:
    """Record random tokens, twice in a row, which show induction heads and duplicate-token heads.

    The tokens that the tokenizer adds before and after a text are there too.

    Args:
        model: a model from `load`, or a transformers model with its `tokenizer`.
        length: the number of different tokens.
    """
    model = _with_tokenizer(model, tokenizer)
    length = check_int("length", length, least=2)
    special = set(model.tokenizer.all_special_ids)
    ordinary = [number for number in range(len(model.tokenizer)) if number not in special]
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.tensor(ordinary)[torch.randperm(len(ordinary), generator=generator)[:length]]
    around = model.tokenizer("a", return_tensors="pt", return_special_tokens_mask=True)
    own = (around["special_tokens_mask"][0] == 0).nonzero().flatten()
    before, after = around["input_ids"][0, : own[0]], around["input_ids"][0, own[-1] + 1 :]
    ids = torch.cat([before, chosen, chosen, after])
    added = [True] * len(before) + [False] * 2 * len(chosen) + [True] * len(after)
    source = _tokens(model.tokenizer, ids, [None] * len(ids), added)
    inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
    return _record(model, _prepared(model, inputs, source, None), values=False)


def _with_tokenizer(model: HuggingFaceModel | nn.Module, tokenizer: Any) -> HuggingFaceModel:
    if not isinstance(model, HuggingFaceModel | nn.Module):
        raise TypeError(f"model is {model!r}; expected a model from load(), or a transformers model with its tokenizer")
    if isinstance(model, HuggingFaceModel):
        return model
    if tokenizer is None:
        raise ValueError("tokenizer is None; a model that load() did not return needs its tokenizer")
    return HuggingFaceModel(getattr(model, "name_or_path", "") or type(model).__name__, model, tokenizer)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a model is called with for one text, and the tokens of each stack: queries and keys."""

    inputs: dict[str, Tensor]
    axes: dict[str, tuple[Tokens, Tokens]]


def prepare(model: HuggingFaceModel, text: str | Sequence[str], target: str | None = None) -> Prepared:
    """A text as tokens; for an encoder–decoder, also what it writes, or is told to write."""
    if not isinstance(text, str) and not all(isinstance(word, str) for word in text):
        raise TypeError(f"text is {text!r}; expected a string, or the words of one")
    words = None if isinstance(text, str) else list(text)
    whole = text if isinstance(text, str) else " ".join(text)
    tokenizer = model.tokenizer
    asked = {"return_offsets_mapping": tokenizer.is_fast, "return_special_tokens_mask": True}
    encoded = tokenizer(whole, return_tensors="pt", **asked)
    offsets = encoded.pop("offset_mapping")[0].tolist() if tokenizer.is_fast else None
    special = [bool(added) for added in encoded.pop("special_tokens_mask")[0]]
    ids = encoded["input_ids"]
    if ids.shape[1] == 0:
        raise ValueError("text has no tokens; expected at least one")
    if ids.shape[1] > TOKEN_LIMIT.value:
        raise TOKEN_LIMIT.exceeded(f"text has {ids.shape[1]:,} tokens")
    longest = _most_tokens(model.model)
    if ids.shape[1] > longest:
        raise ValueError(f"text has {ids.shape[1]} tokens, but {model.name} takes at most {longest}")
    source = _tokens(tokenizer, ids[0], _word_numbers(whole, words, offsets, encoded), special)
    return _prepared(model, {**encoded}, source, target)


def _prepared(loaded: HuggingFaceModel, encoded: dict[str, Tensor], source: Tokens, target: str | None) -> Prepared:
    from clearhead.huggingface import attention_modules

    model = loaded.model
    inputs = {name: tensor.to(model.device) for name, tensor in encoded.items()}
    axes = {"encoder": (source, source), "decoder": (source, source)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = written = _written(model, loaded.tokenizer, inputs, target)
        own = _tokens(loaded.tokenizer, written[0], [None] * written.shape[1], _special(loaded.tokenizer, written[0]))
        axes |= {"decoder": (own, own), "cross": (own, source)}
    elif target is not None:
        raise ValueError(f"target is given, but {loaded.name} is no encoder–decoder")
    for attention in attention_modules(model):
        if attention.stack not in axes:
            raise ValueError(f"{loaded.name} has a {attention.stack}; a text alone can be recorded of language models")
    return Prepared(inputs, axes)


def _most_tokens(model: nn.Module) -> float:
    """How many positions a model has learned; those that rotate, or count distances, have no end."""
    config: Any = model.config
    rotates = any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
    most = getattr(config, "max_position_embeddings", None)
    if rotates or not isinstance(most, int) or most <= 0:
        return float("inf")
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.num_embeddings - table.padding_idx - 1  # it counts from after the padding's own
    return most


def _record(loaded: HuggingFaceModel, prepared: Prepared, values: bool) -> Recording:
    from clearhead.huggingface.modules import attention_modules, tapped

    model, modules = loaded.model, attention_modules(loaded.model)
    kept: dict[nn.Module, list[AttentionWeights]] = {attention.module: [] for attention in modules}
    training = model.training
    model.eval()  # dropout is no part of what a model attends to
    try:
        keeping = keeping_vectors() if values else nullcontext()
        with torch.no_grad(), keeping, tapped(model, {module: _Keeper(own, values) for module, own in kept.items()}):
            model(**prepared.inputs, use_cache=False)
    finally:
        model.train(training)
    stacks: dict[str, list[AttentionWeights]] = {}
    for attention in modules:
        if not kept[attention.module]:
            raise ValueError(f"{loaded.name}: {attention.name} did not run, so there is nothing to record of it")
        stacks.setdefault(attention.stack, []).extend(kept[attention.module])
    return Recording(loaded.name, {name: Stack(tuple(own), *prepared.axes[name]) for name, own in stacks.items()})


@torch.no_grad()
def _written(model: Any, tokenizer: Any, inputs: dict[str, Tensor], target: str | None) -> Tensor:
    """What the decoder of an encoder–decoder reads: its start token, and what it has written before each next token."""
    if target is None:
        if not hasattr(model, "generate"):
            raise ValueError(f"{type(model).__name__} cannot write by itself; give it a target")
        return model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1)[:, :-1]
    labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(model.device)
    start = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
    return torch.cat([start, labels[:, :-1]], dim=1)


@dataclass(frozen=True, eq=False)
class _Keeper:
    """Keeps the weights it is shown, one layer's after the other's where layers share a module."""

    kept: list[AttentionWeights]
    values: bool
    looks = True
    keeps = True

    def __call__(
        self, repeat: int | None, weights: AttentionWeights | None, output: Tensor, attention_mask: Tensor | None
    ) -> Tensor:
        assert weights is not None
        self.kept.append(weights if self.values else weights.without_values())
        return output


def _tokens(tokenizer: Any, ids: Tensor, words: list[int | None], special: list[bool]) -> Tokens:
    texts = tuple(tokenizer.decode([number], clean_up_tokenization_spaces=False) for number in ids.tolist())
    return Tokens(texts, tuple(special), tuple(words))


def _special(tokenizer: Any, ids: Tensor) -> list[bool]:
    """Which tokens of a text the model writes itself are none of the text's own; an unknown word is."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return [number in special for number in ids.tolist()]


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
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())  # it may begin with the space before its word
        found.append(places[start] if start < end else None)
    return found
