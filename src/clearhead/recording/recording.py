"""`Recording`: a model's attention on one text, by stack and layer, with the tokens of both axes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from clearhead._utils.checks import check_path, describe
from clearhead._utils.tensor_checks import FLOAT_DTYPES, check_device
from clearhead._utils.text import count_noun, is_unicode, one_line
from clearhead.recording.addresses import find_address
from clearhead.recording.media import Media, Region, check_references, check_regions, regions_between, unpack_region
from clearhead.recording.names import model_name
from clearhead.recording.next_tokens import DeferredNextTokens, NextTokens
from clearhead.recording.output_projection import OutputProjection
from clearhead.weights import serialization
from clearhead.weights.lazy_matrix import LazyMatrix
from clearhead.weights.matrix import AttentionWeights

FORMAT, VERSION = "clearhead.Recording", 1
VALUE_NORMS = "value_norms"  # name of the tensor of a layer
PROBABILITIES = "next_tokens.probabilities"
MAX_NAME = 10_000  # characters in the name of a model or a stack, which commands print
Address = tuple[str, int, int]  # stack, layer, head


@dataclass(frozen=True)
class Tokens:
    """Tokens along one axis of an attention matrix.

    Attributes:
        texts: text of each token.
        special: True for special tokens, which the tokenizer added.
        words: index of each token's word in the text. None for a token outside of words, or if unknown.
        regions: tokens that are patches of a picture or frames of a sound. They do not overlap.
    """

    texts: tuple[str, ...]
    special: tuple[bool, ...]
    words: tuple[int | None, ...]
    regions: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        for name in ("texts", "special", "words"):
            if not isinstance(entries := getattr(self, name), Sequence):
                raise TypeError(f"Tokens: {name} is {describe(entries)}; expected a tuple with one entry per token")
        lengths = {len(self.texts), len(self.special), len(self.words)}
        if len(lengths) > 1:
            raise ValueError(f"Tokens: texts, special and words have {lengths} entries; expected one of each per token")
        for index, (text, special, word) in enumerate(zip(self.texts, self.special, self.words, strict=True)):
            if not isinstance(text, str) or not is_unicode(text):
                raise ValueError(f"Tokens: texts[{index}] is {describe(text)}; expected a string of valid Unicode")
            if not isinstance(special, bool):
                raise ValueError(f"Tokens: special[{index}] is {describe(special)}; expected True or False")
            if word is not None and (type(word) is not int or not 0 <= word < 2**31):
                raise ValueError(f"Tokens: words[{index}] is {describe(word)}; expected a word's index from 0, or None")
        check_regions(self.regions, len(self.texts))

    def __len__(self) -> int:
        return len(self.texts)

    def part(self, start: int, end: int) -> Tokens:
        """Return the tokens from `start` to `end`, with the regions that lie within them."""
        regions = regions_between(self.regions, start, end)
        return Tokens(self.texts[start:end], self.special[start:end], self.words[start:end], regions)


@dataclass(frozen=True, eq=False)
class Stack:
    """Layers of one kind of attention in a model, on one text.

    There is at least one layer, one query and one key. Every layer has at least one head.

    Attributes:
        layers: attention of each layer, with batch size 1.
        queries: tokens of the query axis.
        keys: tokens of the key axis.
        written: token that each query row predicts, in causal self-attention and in cross-attention: the next token
            of the text. An empty text if it is unknown. None for other attention.
        value_norms: norm of each key's value after the head's output projection, ‖v W_O‖, for each layer
            [heads, kv_len]. None if values were not recorded, or if W_O is unknown.
        output_projections: output projection W_O of each layer, a reference to the model's parameters that is not
            saved. None after `load`, or if W_O is unknown.
    """

    layers: tuple[AttentionWeights, ...]
    queries: Tokens
    keys: Tokens
    written: Tokens | None = None
    value_norms: tuple[Tensor, ...] | None = None
    output_projections: tuple[OutputProjection, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple | list) or not all(isinstance(each, LazyMatrix) for each in self.layers):
            raise TypeError(f"Stack: layers is {describe(self.layers)}; expected a tuple of AttentionWeights")
        for name, tokens in {"queries": self.queries, "keys": self.keys, "written": self.written}.items():
            if not isinstance(tokens, Tokens) and not (name == "written" and tokens is None):
                raise TypeError(f"Stack: {name} is {describe(tokens)}; expected Tokens")
        parts = {"layers": self.layers, "query tokens": self.queries, "key tokens": self.keys}
        for name, part in parts.items():
            if not len(part):
                raise ValueError(f"Stack: there are no {name}; expected at least one")
        for index, weights in enumerate(self.layers):
            batch, heads, q_len, kv_len = weights.shape
            if not heads:
                raise ValueError(f"Stack: layer {index} has no heads; expected at least one")
            if (batch, q_len, kv_len) != (1, len(self.queries), len(self.keys)):
                raise ValueError(
                    f"Stack: layer {index} is {tuple(weights.shape)}, but the stack has"
                    f" {count_noun(len(self.queries), 'query token')} and {count_noun(len(self.keys), 'key token')};"
                    " expected one text"
                )
        if self.written is not None and len(self.written) != len(self.queries):
            raise ValueError(
                f"Stack: written has {len(self.written)} tokens; expected {len(self.queries)}, one per query token"
            )
        if self.value_norms is not None:
            self._check_value_norms(self.value_norms)

    def _check_value_norms(self, norms: tuple[Tensor, ...]) -> None:
        if len(norms) != len(self.layers):
            raise ValueError(f"Stack: value_norms has {len(norms)} layers; expected {len(self.layers)}")
        for index, (layer, weights) in enumerate(zip(norms, self.layers, strict=True)):
            shape = (weights.shape[1], weights.shape[3])
            if not isinstance(layer, Tensor) or layer.dtype not in FLOAT_DTYPES or layer.shape != shape:
                raise ValueError(f"Stack: value_norms[{index}] is {describe(layer)}; expected floats {list(shape)}")
            if not bool(((layer >= 0) & (layer < torch.inf)).all()):
                raise ValueError(f"Stack: value_norms[{index}] is negative or not finite; expected norms")

    @property
    def has_values(self) -> bool:
        """True if every layer contains its values."""
        return all(weights.value is not None for weights in self.layers)


@dataclass(frozen=True, eq=False)
class Recording:
    """Attention of a model on one text, from `record(model, text)`.

    `recording["decoder"].layers[3]` is an `AttentionWeights`.

    Attributes:
        model: name of the model. Of a path, only the name of the last folder or file is kept, because files are shared.
        stacks: stacks by name ("encoder", "decoder", "cross"), in the order in which the model runs them. There is at
            least one.
        input: the text as given; None if the model ran on something else.
        output: the text that an encoder–decoder wrote, such as a translation; None for other models.
        next_tokens: most probable next tokens at each query of the decoder, or at each mask token of a masked language
            model: `recording.next_tokens.at(position)`. None for a model without a language-model head. A file of a
            language model contains the last 1,024 positions.
        media: pictures and sounds that the model ran on, to which the regions of the tokens refer.
    """

    model: str
    stacks: dict[str, Stack]
    input: str | None = None
    output: str | None = None
    next_tokens: NextTokens | DeferredNextTokens | None = None
    media: Media = field(default_factory=Media)

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not is_unicode(self.model):
            raise ValueError(f"Recording: model is {describe(self.model)}; expected a name of valid Unicode")
        object.__setattr__(self, "model", model_name(self.model))
        if not isinstance(self.stacks, dict):
            raise TypeError(f"Recording: stacks is {describe(self.stacks)}; expected a dict of Stack by name")
        if not self.stacks:
            raise ValueError("Recording: there are no stacks; expected at least one")
        for name, stack in self.stacks.items():
            if not isinstance(name, str) or not name.isprintable() or not name.strip():
                raise ValueError(f"Recording: a stack is named {describe(name)}; expected printable text")
            if not isinstance(stack, Stack):
                raise TypeError(f"Recording: stacks[{describe(name)}] is {describe(stack)}; expected a Stack")
        for name in (self.model, *self.stacks):
            if len(name) > MAX_NAME:
                raise ValueError(f"Recording: a name has {len(name):,} characters; expected at most {MAX_NAME:,}")
        for name, text in (("input", self.input), ("output", self.output)):
            if text is not None and not (isinstance(text, str) and is_unicode(text)):
                raise ValueError(f"Recording: {name} is {describe(text)}; expected a string of valid Unicode, or None")
        longest = max(len(stack.queries) for stack in self.stacks.values())
        if self.next_tokens is not None and self.next_tokens.positions[-1] >= longest:
            last = self.next_tokens.positions[-1]
            raise ValueError(f"Recording: next_tokens has position {last}; expected less than {longest} queries")
        if not isinstance(self.media, Media):
            raise ValueError(f"Recording: media is {describe(self.media)}; expected Media")
        for stack in self.stacks.values():
            check_references((*stack.queries.regions, *stack.keys.regions), self.media)

    def __getitem__(self, name: str) -> Stack:
        if not isinstance(name, str) or name not in self.stacks:
            raise KeyError(f"{self.model} has no stack {name!r}; expected one of {', '.join(map(repr, self.stacks))}")
        return self.stacks[name]

    @property
    def layer_count(self) -> int:
        """Number of layers of the deepest stack."""
        return max(len(stack.layers) for stack in self.stacks.values())

    def heads(self) -> Iterator[Address]:
        """Yield the address (stack, layer, head) of every head."""
        for name, stack in self.stacks.items():
            for layer, weights in enumerate(stack.layers):
                for head in range(weights.shape[1]):
                    yield name, layer, head

    def weights(self, address: Address | str) -> AttentionWeights:
        """Return the attention weights of one head, [1, 1, q_len, kv_len].

        Args:
            address: the head, as `("cross", 2, 5)` or "cross.2.5".
        """
        stack, layer, head = find_address(self, address)
        return self[stack].layers[layer].part(heads=head)

    def to(self, device: torch.device | str) -> Recording:
        """Return a copy of the recording on another device."""
        device = check_device("device", device) or "cpu"

        def moved(stack: Stack) -> Stack:
            norms = stack.value_norms and tuple(layer.to(device) for layer in stack.value_norms)
            return replace(stack, layers=tuple(weights.to(device) for weights in stack.layers), value_norms=norms)

        predictions = self.next_tokens and self.next_tokens.to(device)
        stacks = {name: moved(stack) for name, stack in self.stacks.items()}
        return replace(self, stacks=stacks, next_tokens=predictions)

    def __repr__(self) -> str:
        parts = []
        for name, stack in self.stacks.items():
            heads = stack.layers[0].shape[1]
            parts.append(f"{name} {len(stack.layers)} × {heads} heads, {len(stack.queries)} × {len(stack.keys)} tokens")
        return f"Recording({self.model!r}: {'; '.join(parts)})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to one safetensors file, with O(n · d) numbers per layer."""
        check_path("path", path)
        tensors, media = self.media.pack()
        stacks, optional = {}, {"media": media}
        for name, stack in self.stacks.items():
            layers = []
            for index, weights in enumerate(stack.layers):
                packed, layer_header = weights.pack()
                tensors |= {f"{name}.{index}.{key}": tensor for key, tensor in packed.items()}
                layers.append(layer_header)
            stacks[name] = {"queries": asdict(stack.queries), "keys": asdict(stack.keys), "layers": layers}
            if stack.written is not None:
                stacks[name]["written"] = asdict(stack.written)
            for index, norms in enumerate(stack.value_norms or ()):
                tensors[f"{name}.{index}.{VALUE_NORMS}"] = norms
        predictions = self.next_tokens and self.next_tokens.computed()
        if predictions is not None:
            tensors[PROBABILITIES], optional["next_tokens"] = predictions.pack()
        optional |= {name: text for name, text in (("input", self.input), ("output", self.output)) if text is not None}
        header = {"format": FORMAT, "version": VERSION, "model": self.model, "stacks": stacks, **optional}
        serialization.write(path, tensors, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Recording:
        """Read a file written by `save`."""
        check_path("path", path)
        tensors, header = serialization.read(path, FORMAT, VERSION, check_device("device", device) or "cpu")
        try:
            stacks = {}
            for name, stack in header["stacks"].items():
                layers = []
                for index, layer_header in enumerate(stack["layers"]):
                    prefix = f"{name}.{index}."
                    packed = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
                    layers.append(AttentionWeights(*serialization.unpack(packed, layer_header)))
                written = _tokens(stack["written"]) if "written" in stack else None
                names = [f"{name}.{index}.{VALUE_NORMS}" for index in range(len(layers))]
                norms = tuple(tensors[each] for each in names if each in tensors)
                stacks[name] = Stack(
                    tuple(layers),
                    _tokens(stack["queries"]),
                    _tokens(stack["keys"]),
                    written,
                    norms or None,
                )
            predictions = header.get("next_tokens")
            return cls(
                header["model"],
                stacks,
                header.get("input"),
                header.get("output"),
                None if predictions is None else NextTokens.unpack(tensors[PROBABILITIES], predictions),
                Media.unpack(tensors, header["media"]) if "media" in header else Media(),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path}: saved by Recording.save, but damaged ({one_line(error)})") from None


def check_one_model(recordings: Iterable[Recording]) -> Iterator[Recording]:
    """Yield the recordings; raise if there is not at least one, or if they are of different models."""
    if isinstance(recordings, Recording):  # has __getitem__, so iter() would accept it as a sequence
        raise TypeError("recordings is a single Recording; expected several, such as [recording]")
    model, heads = None, None
    for index, recording in enumerate(recordings):
        if not isinstance(recording, Recording):
            raise TypeError(f"recordings[{index}] is {recording!r}; expected a Recording")
        addresses = set(recording.heads())
        if heads is None:
            model, heads = recording.model, addresses
        if (recording.model, addresses) != (model, heads):
            raise ValueError(
                f"recordings[{index}] is of {recording.model!r} with {len(addresses)} heads, but recordings[0] is of"
                f" {model!r} with {len(heads)}; expected recordings of one model"
            )
        yield recording
    if heads is None:
        raise ValueError("recordings has no entries; expected at least one Recording")


def is_self_attention(name: str, stack: Stack) -> bool:
    """Return whether queries and keys are the same tokens. Always False for cross-attention."""
    return not name.startswith("cross") and stack.queries == stack.keys


def _tokens(fields: dict[str, list]) -> Tokens:
    texts, special, words = (tuple(fields[name]) for name in ("texts", "special", "words"))
    return Tokens(texts, special, words, tuple(unpack_region(region) for region in fields.get("regions", ())))
