"""`HuggingFaceModel`: a transformers model and its tokenizer, for recordings and corpus statistics."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from clearhead._utils.checks import check_int, describe
from clearhead._utils.evaluating import evaluating
from clearhead._utils.extras import needs_extra
from clearhead._utils.progress import StageProgress
from clearhead._utils.text import one_line
from clearhead.analysis.spans import StackSpansLike
from clearhead.analysis.summary import AttentionSummary, LayerSummary
from clearhead.huggingface._language_heads import check_head, class_with_head, has_head, missing_head, task_of
from clearhead.huggingface._loading import loading_files
from clearhead.huggingface._model_inputs import (
    ModelInputs,
    named_tokens,
    prepare_inputs,
    prepare_repeated_inputs,
    prepare_token_ids,
)
from clearhead.huggingface._predictions import FinalStates
from clearhead.huggingface.modules import attention_modules, hooked
from clearhead.recording.example_texts import EXAMPLE_PASSAGES
from clearhead.recording.names import model_name
from clearhead.recording.next_tokens import DeferredNextTokens, NextTokens, TopTokens
from clearhead.recording.output_projection import OutputProjection
from clearhead.recording.recording import Recording, Stack
from clearhead.watching.output_projections import ProjectionInputs, with_projections
from clearhead.watching.seen import Seen
from clearhead.watching.watcher import watch
from clearhead.weights.matrix import AttentionWeights


@dataclass(frozen=True, eq=False)
class HuggingFaceModel:
    """Transformers model with its tokenizer. Implements `RecordableModel`."""

    name: str
    model: Any
    tokenizer: Any
    max_interactive_tokens = 8192

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        download: bool = False,
        head: bool | None = False,
        progress: StageProgress | None = None,
    ) -> HuggingFaceModel:
        """Load a model and its tokenizer.

        Args:
            name: a folder of Hugging Face files, a GGUF file, or a hub id.
            device: device of the parameters.
            dtype: dtype of the parameters (default: float32).
            download: download the model from the hub if it is not in the local cache.
            head: load the language-model head too, so that the model returns logits and, with labels, a loss.
                Encoder–decoders always have it. None: load it if the files contain one.
            progress: called with a stage, the steps done and their total, 0 if it is unknown (default: bars of
                transformers, if stderr is a terminal).
        """
        path, source = Path(name), str(name)
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
                raise FileNotFoundError(f"{name}: a folder without config.json; expected a Hugging Face model")
        elif path.exists():
            raise ValueError(f"{name}: expected a folder of Hugging Face files, a .gguf file, a hub id or en-ja")
        report = progress or _ignore
        with loading_files(progress, is_gguf="gguf_file" in options):
            with named_errors(name, download):
                report("reading the configuration", 0, 0)
                config = AutoConfig.from_pretrained(source, **options)
                report("loading the tokenizer", 0, 0)
                tokenizer = AutoTokenizer.from_pretrained(source, **options)
            model_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModel
            if head or (head is None and has_head(config)):
                model_class = class_with_head(str(name), config)
            options |= {"attn_implementation": "clearhead", "output_loading_info": True}
            with named_errors(name, download):
                report("loading the model", 0, 0)
                model, loading = model_class.from_pretrained(source, **options)
        if head:
            check_head(str(name), model, loading["missing_keys"])
        elif head is None and missing_head(model, loading["missing_keys"]):
            model = model.base_model
        attention_modules(model)  # raises if the model does not use AttentionInterface
        if path.is_file():
            model.name_or_path = str(path.absolute())  # transformers sets it to the folder of a GGUF file
        return cls(name_of(model), model.to(device).eval(), tokenizer)

    @classmethod
    def from_module(cls, model: nn.Module, tokenizer: Any = None) -> HuggingFaceModel:
        """Wrap a transformers model that is already loaded. Without a tokenizer, only `record_ids` can be called."""
        if not isinstance(model, PreTrainedModel):
            raise TypeError(f"model is a {type(model).__name__}; expected a transformers model")
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(f"tokenizer is {describe(tokenizer)}; expected a tokenizer of transformers")
        return cls(name_of(model), model, tokenizer)

    @property
    def layer_count(self) -> int:
        """Number of layers of the deepest stack."""
        return 1 + max(attention.layer for attention in attention_modules(self.model))

    @property
    def default_text(self) -> str:
        """Default text of `clearhead view` and `clearhead record`."""
        return EXAMPLE_PASSAGES[0]

    def token_count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.tokenizer(text)["input_ids"])

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of the model."""
        return self.model.parameters()

    def record(self, text: str | Sequence[str], *, target: str | None = None, values: bool = False) -> Recording:
        """Run the model on a text and return its attention.

        Args:
            text: a string, or a list of its words.
            target: output of an encoder–decoder (default: its greedy output).
            values: record the values too, and queries and keys even if the scores take less memory.
        """
        return self._record(prepare_inputs(self, text, target), values)

    def record_ids(
        self, input_ids: object, *, decoder_input_ids: object = None, target: str | None = None, values: bool = False
    ) -> Recording:
        """Run the model on token ids and return its attention. The tokenizer may be None.

        Args:
            input_ids: token ids of one sequence, [tokens] or [1, tokens].
            decoder_input_ids: input of an encoder–decoder's decoder, which begins with its start token.
            target: text of the decoder instead (default: the greedy output).
            values: as for `record`.
        """
        inputs = prepare_token_ids(self, input_ids, target=target, decoder_input_ids=decoder_input_ids)
        return self._record(inputs, values)

    def record_repeated(self, length: int = 64, *, seed: int = 0) -> Recording:
        """Record a random sequence of tokens, repeated once, which reveals induction and duplicate-token heads.

        The tokenizer's special tokens surround the sequence, as in an ordinary text.

        Args:
            length: number of tokens of the sequence, all different.
            seed: seed of the random sequence.
        """
        inputs = prepare_repeated_inputs(self, check_int("length", length, least=2), seed)
        return self._record(inputs, values=False, predict=False)

    def summarize(self, text: str, *, spans: StackSpansLike | None = None) -> AttentionSummary:
        """Run the model on a text and return statistics of every head, without a recording.

        Args:
            text: the text.
            spans: spans of keys, whose mean attention is also returned, as in `watch`.
        """
        inputs = prepare_inputs(self, text)  # an encoder–decoder generates here, outside of `watch`
        statistics = watch(self.model, entropy=True, distance=True, top=1, spans=spans)
        with evaluating(self.model), torch.no_grad(), statistics as seen:
            self._run(inputs)
        return self._summary_by_layer(seen)

    def _summary_by_layer(self, seen: Seen) -> AttentionSummary:
        """Return the statistics of one forward pass by layer. Layers may share a module, which then runs for each."""
        modules = attention_modules(self.model)
        summary = AttentionSummary([(attention.stack, attention.layer) for attention in modules])
        for attention in modules:
            for index, call in enumerate(seen[attention.name].calls if attention.name in seen else ()):
                address = (attention.stack, attention.layer + (index if attention.shared else 0))
                layer = summary.layers.setdefault(address, LayerSummary())
                layer.spans = seen[attention.name].summary.spans
                layer.add(call, call.valid)
        return summary

    def _run(self, inputs: ModelInputs, base: nn.Module | None = None) -> Any:
        """Run the model once. Its head computes the logits of one token only, except that of an encoder–decoder.

        Args:
            inputs: arguments of the model.
            base: the model without its head, which runs instead if the head always computes all logits.
        """
        takes = inspect.signature(self.model.forward).parameters
        if "logits_to_keep" in takes and not self.model.config.is_encoder_decoder:
            return self.model(**inputs.arguments, logits_to_keep=1, use_cache=False)
        return (self.model if base is None else base)(**inputs.arguments, use_cache=False)

    def _record(self, inputs: ModelInputs, values: bool, *, predict: bool = True) -> Recording:
        modules = attention_modules(self.model)
        weights: dict[nn.Module, list[AttentionWeights]] = {attention.module: [] for attention in modules}
        hooks = {module: _WeightsRecorder(layers, values) for module, layers in weights.items()}
        states = FinalStates(self.model)
        projected = ProjectionInputs(self.model, [attention.name for attention in modules] if values else [])
        with evaluating(self.model), torch.no_grad():
            with hooked(self.model, hooks), states.kept(), projected.kept():
                outputs = self._run(inputs, states.base)
            next_tokens = self._next_tokens(inputs, outputs, states) if predict else None
        written = inputs.complete_written(next_tokens, self.tokenizer)
        stacks: dict[str, list[AttentionWeights]] = {}
        projections: dict[str, list[OutputProjection | None]] = {}
        for attention in modules:
            layers = weights[attention.module]
            if not layers:
                raise ValueError(f"{self.name}: {attention.name} did not run, so its attention cannot be recorded")
            stacks.setdefault(attention.stack, []).extend(layers)
            if values:
                projections.setdefault(attention.stack, []).extend(projected.projections(attention.name, layers))
        made = {
            name: Stack(tuple(layers), *inputs.axes[name], None if name == "encoder" else written)
            for name, layers in stacks.items()
        }
        return Recording(
            self.name,
            {name: with_projections(stack, projections.get(name, ())) for name, stack in made.items()},
            inputs.input,
            inputs.output,
            next_tokens,
        )

    def _next_tokens(
        self, inputs: ModelInputs, outputs: Any, states: FinalStates
    ) -> NextTokens | DeferredNextTokens | None:
        """Return the most probable tokens at each query of the decoder or at each mask token; None without a head."""
        tokenizer = self.tokenizer
        if self.model.config.is_encoder_decoder:
            logits = getattr(outputs, "logits", None)
            return None if logits is None else named_tokens(TopTokens.of(logits[0]), tokenizer)
        ids = inputs.arguments["input_ids"]
        head, positions = states.head(ids), range(ids.shape[1])
        if head is not None and task_of(self.model) == "masked":
            mask = getattr(tokenizer, "mask_token_id", None)
            positions = [position for position, token in enumerate(ids[0].tolist()) if token == mask]
        if head is None or not positions:
            return None
        # the function must not refer to `self`, which would keep the whole model in memory
        return DeferredNextTokens(lambda chosen: named_tokens(head.predict(chosen), tokenizer), positions)


@dataclass(frozen=True, eq=False)
class _WeightsRecorder:
    """Hook that appends the weights of each call to a list. Layers that share a module call it in turn."""

    layers: list[AttentionWeights]
    values: bool

    @property
    def keep_qk(self) -> bool:
        return self.values

    def __call__(self, weights: AttentionWeights) -> None:
        self.layers.append(weights if self.values else weights.without_values())


def name_of(model: PreTrainedModel) -> str:
    """Return the name of a model: never a path, because recordings and reports show it.

    It is the hub id, or the name of the GGUF file, the name in that file, or the name of the model's folder. A model
    without any of these is named after its class.
    """
    source = str(getattr(model, "name_or_path", ""))
    if os.path.exists(source):
        source = os.path.abspath(source)
    in_gguf = getattr(model.config, "_model_name_or_path", None)  # transformers reads it from the file's metadata
    given = [source, in_gguf]
    if os.path.exists(source) and not os.path.exists(os.path.join(source, "config.json")):  # a GGUF file, or its folder
        file = os.sep + os.path.basename(source) if os.path.isfile(source) else None
        given = [file, in_gguf, source]
    names = (model_name(each, "") for each in given if isinstance(each, str))
    return next(filter(str.strip, names), type(model).__name__)


@contextmanager
def named_errors(name: str | os.PathLike[str], download: bool) -> Iterator[None]:
    """Raise transformers' errors in one line that begins with the name of the model."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        if Path(name).exists() or download:
            raise ValueError(f"{name}: {one_line(error)}") from None
        raise ValueError(
            f"{name}: there is no such folder or file, and the local Hugging Face cache has no model of that name;"
            " pass --download (download=True) to download it from the hub"
        ) from None


def _ignore(stage: str, done: int, total: int) -> None:
    """Report no progress."""
