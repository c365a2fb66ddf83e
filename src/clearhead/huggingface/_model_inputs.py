"""Inputs of a transformers model for one text, with the tokens of each axis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clearhead._utils.bounded_reads import TOKEN_LIMIT
from clearhead._utils.checks import describe
from clearhead._utils.tensor_checks import check_int_tensor
from clearhead.huggingface.modules import attention_modules
from clearhead.recording.decoding import decoded, make_tokens, token_text
from clearhead.recording.next_tokens import DeferredNextTokens, NextTokens, TopTokens
from clearhead.recording.recording import Tokens

MAX_NEW_TOKENS = 128  # of an encoder–decoder without a target


@runtime_checkable
class TokenizedModel(Protocol):
    """Transformers model with its tokenizer and its name."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> Any: ...
    @property
    def tokenizer(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Arguments of one call of a model, and the query and key tokens of each stack.

    Attributes:
        arguments: tensors by the names of the model's arguments.
        axes: query and key tokens of each stack.
        written: token that follows each query of the decoder. The last one may be missing, if it is unknown.
        input: text that was tokenized; None for token ids.
        output: text that the decoder of an encoder–decoder writes; None for other models, or without a tokenizer.
    """

    arguments: dict[str, Tensor]
    axes: dict[str, tuple[Tokens, Tokens]]
    written: Tokens
    input: str | None = None
    output: str | None = None

    def complete_written(self, next_tokens: NextTokens | DeferredNextTokens | None, tokenizer: Any) -> Tokens:
        """Return `written`, with the most probable token at the end if one is missing; an empty one if unknown."""
        position = len(self.axes["decoder"][0]) - 1
        if len(self.written) > position:
            return self.written
        predicted = () if next_tokens is None else next_tokens.at(position)
        text = predicted[0][0] if predicted else ""
        special = tokenizer is not None and text in tokenizer.all_special_tokens
        texts, flags, words = self.written.texts, self.written.special, self.written.words
        return Tokens((*texts, text), (*flags, special), (*words, None))


def prepare_inputs(owner: TokenizedModel, text: str | Sequence[str], target: str | None = None) -> ModelInputs:
    """Tokenize a text or a list of words. For an encoder–decoder, also tokenize `target` or generate the output."""
    if not isinstance(text, str) and not all(isinstance(word, str) for word in text):
        raise TypeError(f"text is {text!r}; expected a string or a list of words")
    words = None if isinstance(text, str) else list(text)
    joined = text if isinstance(text, str) else " ".join(text)
    tokenizer = owner.tokenizer
    encoded = tokenizer(
        joined, return_tensors="pt", return_offsets_mapping=tokenizer.is_fast, return_special_tokens_mask=True
    )
    offsets = encoded.pop("offset_mapping")[0].tolist() if tokenizer.is_fast else None
    special = [bool(flag) for flag in encoded.pop("special_tokens_mask")[0]]
    ids = encoded["input_ids"]
    _check_length(owner, "text", ids.shape[1])
    source = make_tokens(tokenizer, ids[0].tolist(), _word_indices(joined, words, offsets, encoded), special)
    return replace(_with_target(owner, {**encoded}, source, target), input=joined)


def prepare_token_ids(
    owner: TokenizedModel, input_ids: object, *, target: str | None = None, decoder_input_ids: object = None
) -> ModelInputs:
    """Check the token ids of one sequence, and for an encoder–decoder those of the decoder. The tokenizer may be None.

    Tokens are shown as the tokenizer decodes them, or as numbers without a tokenizer; then none of them is special.
    """
    ids = checked_ids(owner, "input_ids", input_ids)
    encoded = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
    if decoder_input_ids is not None:
        if target is not None:
            raise ValueError("target and decoder_input_ids are both given; expected one of them")
        if not owner.model.config.is_encoder_decoder:
            raise ValueError(f"decoder_input_ids is given, but {owner.name} is not an encoder–decoder; omit it")
        encoded["decoder_input_ids"] = checked_ids(owner, "decoder_input_ids", decoder_input_ids)[None]
    return _with_target(owner, encoded, decoded(owner.tokenizer, ids.tolist()), target)


def prepare_repeated_inputs(owner: TokenizedModel, length: int, seed: int) -> ModelInputs:
    """Draw a random sequence of `length` ordinary tokens, and repeat it once between the usual special tokens."""
    tokenizer = owner.tokenizer
    special_ids = set(tokenizer.all_special_ids)
    ordinary = [token for token in range(len(tokenizer)) if token not in special_ids]
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.tensor(ordinary)[torch.randperm(len(ordinary), generator=generator)[:length]]
    template = tokenizer("a", return_tensors="pt", return_special_tokens_mask=True)
    inner = (template["special_tokens_mask"][0] == 0).nonzero().flatten()
    before, after = template["input_ids"][0, : inner[0]], template["input_ids"][0, inner[-1] + 1 :]
    ids = torch.cat([before, drawn, drawn, after])
    special = [True] * len(before) + [False] * 2 * len(drawn) + [True] * len(after)
    source = make_tokens(tokenizer, ids.tolist(), [None] * len(ids), special)
    return _with_target(owner, {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}, source, None)


def _with_target(owner: TokenizedModel, encoded: dict[str, Tensor], source: Tokens, target: str | None) -> ModelInputs:
    model, tokenizer = owner.model, owner.tokenizer
    arguments = {name: tensor.to(model.device) for name, tensor in encoded.items()}
    axes = {"encoder": (source, source), "decoder": (source, source)}
    written = Tokens(source.texts[1:], source.special[1:], source.words[1:])
    output = None
    if model.config.is_encoder_decoder:
        given = arguments.get("decoder_input_ids")
        ids = _decoder_ids(model, tokenizer, arguments, target) if given is None else given
        arguments["decoder_input_ids"] = ids[:, :-1] if given is None else ids
        read, written = (
            decoded(tokenizer, arguments["decoder_input_ids"][0].tolist()),
            decoded(tokenizer, ids[0, 1:].tolist()),
        )
        output = None if tokenizer is None else tokenizer.decode(ids[0, 1:].tolist(), skip_special_tokens=True)
        axes |= {"decoder": (read, read), "cross": (read, source)}
    elif target is not None:
        raise ValueError(f"target is given, but {owner.name} is not an encoder–decoder; omit target")
    for attention in attention_modules(model):
        if attention.stack not in axes:
            raise ValueError(f"{owner.name} has a {attention.stack}; expected a model that takes text only")
    return ModelInputs(arguments, axes, written, output=output)


def _check_length(owner: TokenizedModel, name: str, count: int) -> None:
    if count == 0:
        raise ValueError(f"{name} has no tokens; expected at least one")
    if count > TOKEN_LIMIT.value:
        raise TOKEN_LIMIT.exceeded(f"{name} has {count:,} tokens")
    max_tokens = _max_tokens(owner.model)
    if max_tokens is not None and count > max_tokens:
        raise ValueError(f"{name} has {count} tokens, but {owner.name} takes at most {max_tokens}")


def checked_ids(owner: TokenizedModel, name: str, values: object) -> Int[Tensor, " tokens"]:
    """Return the token ids of one sequence as an int64 tensor on the CPU."""
    expected = "expected the token ids of one sequence, [tokens] or [1, tokens]"
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(values)
        ids = check_int_tensor(name, tensor).cpu() if tensor.numel() else tensor
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        dtype = f"a tensor of {values.dtype}" if isinstance(values, Tensor) else describe(values)
        raise TypeError(f"{name} is {dtype}; {expected}") from None
    if ids.ndim not in (1, 2) or (ids.ndim == 2 and ids.shape[0] != 1):
        raise ValueError(f"{name} has shape {list(ids.shape)}; {expected}")
    ids = ids.flatten()
    _check_length(owner, name, len(ids))
    vocabulary = _vocabulary_size(owner, decoder=name.startswith("decoder"))
    for token in (int(ids.min()), int(ids.max())):
        if not 0 <= token < vocabulary:
            raise ValueError(f"{name} contains {token}; expected ids from 0 to {vocabulary - 1}, as {owner.name} has")
    return ids


def _vocabulary_size(owner: TokenizedModel, *, decoder: bool) -> int:
    """Return the number of token embeddings."""
    count: object = None
    part: Any
    for part in (owner.model, getattr(owner.model, "text_model", None)):  # CLIP's is not that of the whole model
        with suppress(NotImplementedError, AttributeError):
            count = count or getattr(part.get_input_embeddings(), "num_embeddings", None)
    if not isinstance(count, int):
        raise ValueError(f"{owner.name} has no token embeddings; expected a model that takes text")
    return (getattr(owner.model.config, "decoder_vocab_size", None) or count) if decoder else count


def _max_tokens(model: nn.Module) -> int | None:
    """Return the number of learned position embeddings; None for rotary and relative positions."""
    config: Any = model.config
    rotary = any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta", "rope_scaling"))
    positions = getattr(config, "max_position_embeddings", None)
    if rotary or not isinstance(positions, int) or positions <= 0:
        return None
    for module in model.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.num_embeddings - table.padding_idx - 1  # positions start after the padding index
    return positions


@torch.no_grad()
def _decoder_ids(
    model: Any, tokenizer: Any, arguments: dict[str, Tensor], target: str | None
) -> Int[Tensor, "batch tokens"]:
    """Return the start token, then the target or the greedy output. The decoder's input is without the last token."""
    if target is None:
        if not hasattr(model, "generate"):
            raise ValueError(f"{type(model).__name__} has no generate(); pass target")
        return model.generate(**arguments, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, num_beams=1)
    if tokenizer is None:
        raise ValueError("target is given, but tokenizer is None; pass decoder_input_ids instead")
    labels = tokenizer(text_target=target, return_tensors="pt")["input_ids"].to(model.device)
    start = torch.full_like(labels[:, :1], model.config.decoder_start_token_id)
    return torch.cat([start, labels], dim=1)


def named_tokens(top: TopTokens, tokenizer: Any) -> NextTokens | None:
    """Return predicted tokens with their texts; None if the logits were not finite."""
    return top.named(lambda token: token_text(tokenizer, token))


def _word_indices(
    text: str, words: list[str] | None, offsets: list[list[int]] | None, encoded: Any
) -> list[int | None]:
    """Return the index of each token's word, in `words` or as the tokenizer splits the text; None if unknown."""
    if offsets is None:
        return [None] * encoded["input_ids"].shape[1]
    if words is None:
        return encoded.word_ids(0)
    # the word of each letter; the space after a word counts as part of it
    word_of_letter = [index for index, word in enumerate(words) for _ in range(len(word) + 1)]
    indices = []
    for start, end in offsets:
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())  # a token may begin with the space before its word
        indices.append(word_of_letter[start] if start < end else None)
    return indices
